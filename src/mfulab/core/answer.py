"""The answer that every line of a command's JSON holds: a number, what it was divided by, why it is
missing, and what to doubt in it. docs/answer.schema.json describes it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mfulab.core.said import Numbers, Said

Basis = Literal["spec", "measured", "counted", "predicted", "exact"]
# Verdicts of a comparison that decide nothing, as reasons.
OPEN = {"ambiguous": "ambiguous", "not comparable": "not_comparable"}


@dataclass(frozen=True)
class Answer:
    """A number as JSON gives it. Without a value there is a `reason`; with one there is none."""

    value: float | None
    unit: str
    denominator: float | None = None  # in `denominator_unit`
    denominator_unit: str | None = None
    basis: str | None = None  # a `Basis`: of the denominator, else of the value
    reason: Mapping[str, Numbers] | None = None  # key and numbers of why there is no value
    doubt: Mapping[str, Numbers] = field(default_factory=dict)  # keys of reasons to look again

    def line(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """A line of a command's JSON: this answer, and what else the command tells."""
        return {"answer": asdict(self), **details}


def answered(
    value: float,
    unit: str,
    basis: Basis | None = None,
    *,
    denominator: float | None = None,
    denominator_unit: str | None = None,
    doubt: Mapping[str, Numbers] | None = None,
) -> Answer:
    """An answer with a value; infinity and NaN, which JSON lacks, are none."""
    if not math.isfinite(value):
        return unanswered(unit, Said("no_finite_number", {"value": str(value)}))
    return Answer(value, unit, denominator, denominator_unit, basis, None, doubt or {})


def unanswered(unit: str, reason: Said) -> Answer:
    """An answer without a value, and why there is none."""
    return Answer(None, unit, reason={reason.key: reason.numbers})


def refused(sentence: str) -> dict[str, Any]:
    """The line of JSON of a command that refuses what it was given."""
    return unanswered("", Said("refused", {"because": sentence})).line({})


def of_change(
    ratio: float | None,
    verdict: str,
    because: Numbers,
    *,
    old: float | None = None,
) -> Answer:
    """The change from `old` in %, of a comparison; none where its verdict is open, doubtful where
    the new is slower."""
    if ratio is None or verdict in OPEN:
        return unanswered("%", Said(OPEN.get(verdict, "not_comparable"), because))
    doubt: dict[str, Numbers] = {"slower": because} if verdict == "slower" else {}
    change = 100 * (ratio - 1)
    return answered(change, "%", "measured", denominator=old, denominator_unit="s", doubt=doubt)
