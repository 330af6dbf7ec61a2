"""Sentences as a key and its numbers. Rows hold these; `mfulab.core.language` turns them into words
where they are shown."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mfulab.core.json_text import parse_json

Number = float | str | None
Numbers = Mapping[str, "Number | Said"]
AS_TOLD = "as_told"  # key of a text that is shown unchanged
LONGEST_CELL = 2000  # characters; a log has the rest


@dataclass(frozen=True, init=False)
class Said:
    """A sentence as its key in the catalogues' sections `verdict` and `reasons`, and the numbers in
    it: `Said("few_samples", count=3)`. A number may itself be a sentence. `str` returns it in
    English."""

    key: str
    numbers: Numbers

    def __init__(
        self, key: str, given: Numbers | None = None, /, **numbers: "Number | Said"
    ) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "numbers", {**(given or {}), **numbers})

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        from mfulab.core.language.sentences import sentence

        return sentence(self.key, self.numbers)


class SaidError(Exception):
    """An error whose message is a sentence of the catalogue, or the message of another library."""

    def __init__(self, message: Said | str) -> None:
        super().__init__(message)
        self.said = message if isinstance(message, Said) else as_told(message)


def as_told(words: object) -> Said:
    """Wraps a text that is in no catalogue, such as another library's message."""
    return Said(AS_TOLD, words=str(words))


def said_by(error: BaseException) -> Said:
    """The sentence that an error carries in `said`, or its message as a text on one line."""
    said = getattr(error, "said", None)
    if isinstance(said, Said):
        return said
    return as_told(" ".join(str(error).split()))


def of_source(source: str, reason: Said | str) -> Said:
    """A reason preceded by its source: `NVML: Not Supported`."""
    return Said("of_source", source=source, reason=reason)


def joined(sentences: Iterable[Said]) -> Said | None:
    """Joins sentences into one, without repetitions; None if there are none."""
    so_far = None
    for said in dict.fromkeys(sentences):
        so_far = said if so_far is None else Said("both", first=so_far, second=said)
    return so_far


def cell_of(said: Said | None) -> str:
    """Text of a cell such as a row's `message`: {key: numbers} as JSON, or plain words for a text
    without a key or if the JSON is too long. Empty for None."""
    if said is None:
        return ""
    if said.key == AS_TOLD:
        return str(said.numbers["words"])[:LONGEST_CELL]
    cell = json.dumps(as_json(said), ensure_ascii=False)
    if len(cell) <= LONGEST_CELL:
        return cell
    return str(said)[:LONGEST_CELL]


def of_cell(cell: str) -> Said | None:
    """Parses a cell that `cell_of` wrote, or a plain text; None if it is empty."""
    if not cell.startswith("{"):
        if cell:
            return as_told(cell)
        return None
    try:
        return from_json(parse_json(cell))
    except (ValueError, AttributeError):
        return as_told(cell)


def with_sentence(cell: str, said: Said) -> str:
    """Appends a sentence to the ones in a cell."""
    before = of_cell(cell)
    return cell_of(said if before is None else joined([before, said]))


def as_json(said: Said) -> dict[str, dict[str, object]]:
    """{key: numbers} of a sentence, with six significant digits."""
    return {said.key: {name: _plain(value) for name, value in said.numbers.items()}}


def from_json(cell: Mapping[str, Mapping[str, Any]]) -> Said:
    """Parses {key: numbers} into a sentence. Raises ValueError if it is empty."""
    for key, numbers in cell.items():
        return Said(key, {name: _unpacked(value) for name, value in numbers.items()})
    raise ValueError("no sentence")


def _unpacked(value: Any) -> Number | Said:
    if isinstance(value, Mapping):
        return from_json(value)
    return value


def _plain(value: Number | Said) -> object:
    if isinstance(value, Said):
        return as_json(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.6g}")
        return str(value)
    return value


def packed(numbers: Numbers) -> str | None:
    """Numbers as JSON with six significant digits; None if there are none."""
    rounded = {name: _plain(value) for name, value in numbers.items()}
    if rounded:
        return json.dumps(rounded, ensure_ascii=False)
    return None


def packed_all(sentences: Iterable[Said]) -> str | None:
    """JSON that maps the key of each sentence to its numbers; None if there are no sentences."""
    named = ", ".join(
        f"{json.dumps(said.key)}: {packed(said.numbers) or '{}'}" for said in sentences
    )
    if named:
        return f"{{{named}}}"
    return None
