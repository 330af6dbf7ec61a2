"""Tells a gate's verdict as a sentence, as JSON or as Markdown, with the slowdown that would have been
found; and where it stands meanwhile."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from mfulab.core.answer import Answer
from mfulab.core.language.quantities import at_least, change, duration, quantity
from mfulab.core.markdown import code
from mfulab.core.printing import say, say_over
from mfulab.timing.paired import MARKS, Compared

SAID_EVERY_S = 30.0  # of progress, where no terminal shows it in one line


@dataclass(frozen=True)
class Told:
    """A verdict with what is said beside it; `compared` holds times, of a rate 1 ÷ it."""

    compared: Compared
    count: str  # of what was measured: `12 pairs`
    seconds: float
    unit: str
    is_rate: bool
    noticeable: float
    commands: tuple[str, str]  # the old, or what it is of, and the new
    warning: str = ""

    @property
    def values(self) -> tuple[float, float]:
        """The old and the new value, of a rate as it was printed."""
        old, new = self.compared.old_s, self.compared.new_s
        assert old is not None
        assert new is not None
        if self.is_rate:
            return (1 / old, 1 / new)
        return (old, new)

    def change(self, ratio: float) -> str:
        """A ratio of times as a change of what was measured."""
        if self.is_rate:
            return change(1 / ratio)
        return change(ratio)

    @property
    def verdict(self) -> str:
        """The verdict, and within what where the two are the same."""
        if self.compared.verdict == "same":
            return f"same within {100 * self.noticeable:g} %"
        return self.compared.verdict

    @property
    def answer(self) -> Answer:
        """The change of what was measured in %, of a rate that of the rate."""
        answer = self.compared.answer
        ratio = self.compared.ratio
        if answer.value is None or not ratio:
            return answer
        change = 100 * (1 / ratio - 1) if self.is_rate else answer.value
        return replace(answer, value=change, denominator=self.values[0], denominator_unit=self.unit)

    @property
    def interval(self) -> str:
        """The ends of the 95 % interval of the change, the smaller value first; empty for none."""
        low, high = self.compared.ratio_low, self.compared.ratio_high
        if low is None or high is None:
            return ""
        ends = (high, low) if self.is_rate else (low, high)
        return " … ".join(map(self.change, ends))

    @property
    def power(self) -> str:
        """The slowdown that would have been found."""
        detects = self.compared.detects_percent
        if not detects:
            return "no slowdown of any size would have been found: there is no interval"
        return f"a slowdown of {at_least(1 + detects / 100)} would have been found"

    @property
    def remarks(self) -> list[str]:
        """Count and time of what was measured, why the verdict is open, and the warning."""
        measured = f"{self.count} in {duration(self.seconds)}"
        return list(filter(None, [measured, self.compared.because, self.warning]))


def tell(outcome: Told, form: str) -> None:
    """Prints a verdict as `text`, `json` or `markdown`."""
    say({"text": _text, "json": _json, "markdown": _markdown}[form](outcome))


def progress() -> Callable[[str], object]:
    """Says where a gate stands: in one line of a terminal, elsewhere a line now and then."""
    if sys.stderr.isatty():
        return say_over
    said = [time.monotonic()]

    def say_rarely(line: str) -> None:
        now = time.monotonic()
        if now - said[0] >= SAID_EVERY_S:
            said[0] = now
            say(line, file=sys.stderr, flush=True)

    return say_rarely


def _text(outcome: Told) -> str:
    old, new = (quantity(value, outcome.unit) for value in outcome.values)
    ratio = outcome.compared.ratio
    assert ratio is not None
    lines = [f"{outcome.verdict}: {old} → {new}, {outcome.change(ratio)}"]
    lines.append(
        f"95 % interval {outcome.interval}; {outcome.power}" if outcome.interval else outcome.power
    )
    return "\n".join([*lines, "; ".join(outcome.remarks)])


def _json(outcome: Told) -> str:
    """Keys as in the text; the ratio is of times, also where a rate was read."""
    row = asdict(outcome.compared)
    for key in ("step", "run", "old_s", "new_s"):
        del row[key]
    old, new = outcome.values
    number, _, what = outcome.count.partition(" ")
    row |= {"old": old, "new": new, "unit": outcome.unit, what.replace(" ", "_"): int(number)}
    row |= {"seconds": round(outcome.seconds, 2), "warning": outcome.warning}
    return json.dumps(outcome.answer.line(row))


def _markdown(outcome: Told) -> str:
    """A heading and a table, for a comment where code is reviewed."""
    old, new = (quantity(value, outcome.unit) for value in outcome.values)
    ratio = outcome.compared.ratio
    assert ratio is not None
    before, after = map(code, outcome.commands)
    lines = [
        f"### {MARKS[outcome.compared.verdict]} {outcome.verdict}: {outcome.change(ratio)}",
        "",
        "| | command | median |",
        "|---|---|---:|",
        f"| before | {before} | {old} |",
        f"| after | {after} | {new} |",
        "",
    ]
    if outcome.interval:
        lines.append(f"95 % interval: {outcome.interval}.")
    sentences = [outcome.power, *outcome.remarks]
    lines.append(" ".join(f"{text[:1].upper()}{text[1:]}." for text in sentences))
    return "\n".join(lines)
