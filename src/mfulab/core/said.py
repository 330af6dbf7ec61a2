"""Sentences as keys and numbers: rows hold these, `mfulab.core.language` makes words of them at the
edge."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mfulab.core.json_text import parse_json

Number = float | str | None
Numbers = Mapping[str, "Number | Said"]
AS_TOLD = "as_told"  # key of a text that is shown as it is
LONGEST_CELL = 2000  # characters; a log has the rest


@dataclass(frozen=True)
class Said:
    """A sentence: its key in the catalogues' sections `verdict` and `reasons`, and the numbers in
    it, which may be sentences themselves. `str` gives it in English."""

    key: str
    numbers: Numbers = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        from mfulab.core.language.sentences import sentence

        return sentence(self.key, self.numbers)


class SaidError(Exception):
    """An error whose message is a sentence of the catalogue, or a text as another library told
    it."""

    def __init__(self, message: Said | str) -> None:
        super().__init__(message)
        self.said = message if isinstance(message, Said) else as_told(message)


def as_told(words: object) -> Said:
    """A text that no catalogue has, such as another library's message."""
    return Said(AS_TOLD, {"words": str(words)})


def said_by(error: BaseException) -> Said:
    """The sentence that an error of any kind carries, or its message as it is."""
    said = getattr(error, "said", None)
    if isinstance(said, Said):
        return said
    return as_told(error)


def of_source(source: str, reason: Said | str) -> Said:
    """A reason behind the name of what gave it: `NVML: Not Supported`."""
    return Said("of_source", {"source": source, "reason": reason})


def joined(sentences: Iterable[Said]) -> Said | None:
    """One sentence of several, without repetitions; None of none."""
    so_far = None
    for said in dict.fromkeys(sentences):
        so_far = said if so_far is None else Said("both", {"first": so_far, "second": said})
    return so_far


def cell_of(said: Said | None) -> str:
    """A cell such as a row's message: a text as it is told, else {key: numbers} as JSON, in words
    where that is too long; empty for None."""
    if said is None:
        return ""
    if said.key == AS_TOLD:
        return str(said.numbers["words"])[:LONGEST_CELL]
    cell = json.dumps(as_json(said), ensure_ascii=False)
    if len(cell) <= LONGEST_CELL:
        return cell
    return str(said)[:LONGEST_CELL]


def of_cell(cell: str) -> Said | None:
    """The sentence in a cell that `cell_of` wrote, or the text of an older row; None for an empty
    one."""
    if not cell.startswith("{"):
        if cell:
            return as_told(cell)
        return None
    try:
        return from_json(parse_json(cell))
    except (ValueError, AttributeError):
        return as_told(cell)


def with_sentence(cell: str, said: Said) -> str:
    """A cell with a further sentence behind what it holds."""
    before = of_cell(cell)
    return cell_of(said if before is None else joined([before, said]))


def as_json(said: Said) -> dict[str, dict[str, object]]:
    """{key: numbers} of a sentence; numbers of six digits."""
    return {said.key: {name: _plain(value) for name, value in said.numbers.items()}}


def from_json(cell: Mapping[str, Mapping[str, Any]]) -> Said:
    """The sentence whose {key: numbers} this is; raises ValueError where it holds none."""
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
    """Numbers as JSON of six digits; None for none."""
    rounded = {name: _plain(value) for name, value in numbers.items()}
    if rounded:
        return json.dumps(rounded, ensure_ascii=False)
    return None


def packed_all(sentences: Iterable[Said]) -> str | None:
    """JSON: key of each sentence → its numbers; None without sentences."""
    named = ", ".join(
        f"{json.dumps(said.key)}: {packed(said.numbers) or '{}'}" for said in sentences
    )
    if named:
        return f"{{{named}}}"
    return None
