"""Sentences as keys and numbers: rows hold these, `mfulab.core.language` makes words of them at the edge."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Numbers = Mapping[str, float | str | None]


@dataclass(frozen=True)
class Said:
    """A sentence: its key in the catalogues' section `verdict`, and the numbers in it."""

    key: str
    numbers: Numbers = field(default_factory=dict)


def packed(numbers: Numbers) -> str | None:
    """Numbers as JSON of six digits; None for none."""
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in numbers.items()}
    return json.dumps(rounded, ensure_ascii=False) if rounded else None


def packed_all(sentences: Iterable[Said]) -> str | None:
    """JSON: key of each sentence → its numbers; None without sentences."""
    named = ", ".join(f"{json.dumps(said.key)}: {packed(said.numbers) or '{}'}" for said in sentences)
    return f"{{{named}}}" if named else None
