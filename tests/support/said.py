"""Reads the keys and numbers of sentences for tests, so that they do not depend on wording."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from mfulab.core.language import Texts
from mfulab.core.said import Said, from_json, of_cell, said_by
from mfulab.lab.report.frames import DataFrame, Tables

Told = Said | BaseException | Mapping | str


class Heard(Texts):
    """Texts that record the values of each requested key."""

    def __init__(self, section: str):
        super().__init__("en", section)
        self.heard: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def __call__(self, key: str, **values: Any) -> str:
        self.heard[key].append(values)
        return super().__call__(key, **values)


def heard(module: ModuleType, tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Values of the texts in a figure's sentence on these tables, by key."""
    return heard_of(module, module.rows(tables))


def heard_of(module: ModuleType, rows: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Values of the texts in a figure's sentence on these rows, by key."""
    text = Heard(module.__name__.rpartition(".")[2])
    module.finding(rows, text)
    return dict(text.heard)


def parts(said: Told) -> Iterator[Said]:
    """A Said and all nested ones, outermost first. Accepts an error, JSON, or the text of a cell
    too."""
    if isinstance(said, BaseException):
        said = getattr(said, "said", None) or said_by(said)
    elif isinstance(said, Mapping):
        said = from_json(said)
    elif isinstance(said, str):
        said = of_cell(said)
    assert isinstance(said, Said), "nothing is told"
    yield said
    for value in said.numbers.values():
        if isinstance(value, Said):
            yield from parts(value)


def keys(said: Told) -> set[str]:
    """Keys of a Said and of all nested ones."""
    return {part.key for part in parts(said)}


def numbers(said: Told, key: str) -> Mapping:
    """Numbers of the Said with this key. Raises StopIteration if there is none."""
    return next(part.numbers for part in parts(said) if part.key == key)


@contextmanager
def refused(kind: type[Exception], key: str, /, **expected: object) -> Iterator[None]:
    """Asserts that the `with` block raises an error containing the Said `key` with at least these
    numbers."""
    with pytest.raises(kind) as raised:
        yield
    numbers_by_key = {part.key: part.numbers for part in parts(raised.value)}
    assert key in numbers_by_key, str(raised.value)
    assert expected.items() <= dict(numbers_by_key[key]).items()
