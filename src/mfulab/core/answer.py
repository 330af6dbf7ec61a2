"""The field `answer` in each line of a command's JSON: a value, its denominator, the reason why it
is missing, and doubts about it. docs/answer.schema.json describes it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mfulab.core.said import Numbers, Said

Basis = Literal["spec", "measured", "counted", "predicted", "exact"]
# Verdicts of a comparison that decide nothing, and the key of the reason for each.
OPEN = {"ambiguous": "ambiguous", "not comparable": "not_comparable"}


Doubt = dict[str, Numbers]  # keys of reasons to look again, and their numbers


@dataclass(frozen=True)
class Answer:
    """A number in a command's JSON. Exactly one of `value` and `reason` is None."""

    value: float | None
    unit: str
    denominator: float | None = None  # in `denominator_unit`
    denominator_unit: str | None = None
    basis: str | None = None  # a `Basis`: of the denominator, else of the value
    reason: Mapping[str, Numbers] | None = None  # key and numbers of why there is no value
    doubt: Mapping[str, Numbers] = field(default_factory=dict)  # keys of reasons to look again

    def line(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """One line of a command's JSON: this answer, followed by the command's `details`."""
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
    """An answer with a value. Infinity and NaN, which JSON lacks, become an answer without one."""
    if not math.isfinite(value):
        return unanswered(unit, Said("no_finite_number", value=str(value)))
    return Answer(value, unit, denominator, denominator_unit, basis, None, doubt or {})


def unanswered(unit: str, reason: Said) -> Answer:
    """An answer without a value, with the reason."""
    return Answer(None, unit, reason={reason.key: reason.numbers})


def refused(sentence: str) -> dict[str, Any]:
    """The line of JSON that a command prints when it rejects its input; `sentence` says why."""
    return unanswered("", Said("refused", because=sentence)).line({})


def of_change(
    ratio: float | None,
    verdict: str,
    because: Numbers,
    *,
    old: float | None = None,
) -> Answer:
    """Answer of a comparison: the change of time in %, relative to `old` (s). It has no value if
    the verdict decides nothing, and a doubt if the new version is slower."""
    if ratio is None or verdict in OPEN:
        return unanswered("%", Said(OPEN.get(verdict, "not_comparable"), because))
    doubt: Doubt = {"slower": because} if verdict == "slower" else {}
    change = 100 * (ratio - 1)
    return answered(change, "%", "measured", denominator=old, denominator_unit="s", doubt=doubt)
