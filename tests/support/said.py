"""Sentences as tests read them: keys and numbers, never words."""

from collections.abc import Iterator, Mapping

from mfulab.core.said import Said, from_json, said_by


def parts(said: Said | BaseException | Mapping) -> Iterator[Said]:
    """A sentence and all within it, outermost first; of an error what it carries."""
    if isinstance(said, BaseException):
        said = said_by(said)
    elif isinstance(said, Mapping):
        said = from_json(said)
    yield said
    for value in said.numbers.values():
        if isinstance(value, Said):
            yield from parts(value)


def keys(said: Said | BaseException | Mapping) -> set[str]:
    """Keys of a sentence and of all within it."""
    return {part.key for part in parts(said)}


def numbers(said: Said | BaseException | Mapping, key: str) -> Mapping:
    """Numbers of the sentence of a key; raises StopIteration where there is none."""
    return next(part.numbers for part in parts(said) if part.key == key)
