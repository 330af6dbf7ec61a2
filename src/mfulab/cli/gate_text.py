"""Prints a gate's verdict as text, JSON or Markdown, with the smallest slowdown that it could
detect; and its progress."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mfulab.core.answer import Answer
from mfulab.core.language import Texts
from mfulab.core.language.quantities import at_least, change, quantity
from mfulab.core.markdown import code
from mfulab.core.printing import say, say_over
from mfulab.core.said import Said
from mfulab.core.terminal_language import in_words, terminal_texts
from mfulab.timing.paired import MARKS, Compared

SAID_EVERY_S = 30.0  # interval of progress lines if stderr is not a terminal


@dataclass(frozen=True)
class Outcome:
    """A gate's verdict and what is printed with it. `compared` holds times; for a rate, 1 ÷
    rate."""

    compared: Compared
    pairs: int
    seconds: float
    unit: str
    is_rate: bool
    noticeable: float
    commands: tuple[Said, Said]  # the old one and the new one

    @property
    def values(self) -> tuple[float, float]:
        """The old and the new value; rates as the command printed them."""
        old, new = self.compared.old_s, self.compared.new_s
        assert old is not None
        assert new is not None
        if self.is_rate:
            return (1 / old, 1 / new)
        return (old, new)

    @property
    def shown(self) -> tuple[str, str]:
        """The old and the new value with their unit."""
        old, new = self.values
        return quantity(old, self.unit), quantity(new, self.unit)

    def change(self, ratio: float | None) -> str:
        """Formats a ratio of times as the change of the measured quantity."""
        assert ratio is not None
        if self.is_rate:
            return change(1 / ratio)
        return change(ratio)

    def verdict(self, text: Texts) -> str:
        """The verdict in words; for "same" also within which margin."""
        word = text.name("compared", self.compared.verdict)
        if self.compared.verdict == "same":
            return text("same_within", same=word, noticeable=100 * self.noticeable)
        return word

    @property
    def answer(self) -> Answer:
        """Change of the measured quantity in %: of the time, or of the rate."""
        answer = self.compared.answer
        ratio = self.compared.ratio
        if answer.value is None or not ratio:
            return answer
        change = 100 * (1 / ratio - 1) if self.is_rate else answer.value
        return replace(answer, value=change, denominator=self.values[0], denominator_unit=self.unit)

    @property
    def interval(self) -> str:
        """Ends of the 95 % confidence interval of the change, the smaller first; "" if there is
        none."""
        low, high = self.compared.ratio_low, self.compared.ratio_high
        if low is None or high is None:
            return ""
        ends = (high, low) if self.is_rate else (low, high)
        return " … ".join(map(self.change, ends))

    def power(self, text: Texts) -> str:
        """Says which slowdown would have been detected."""
        detects = self.compared.detects_percent
        if not detects:
            return text("finds_none")
        return text("finds", size=at_least(1 + detects / 100))

    def remarks(self, text: Texts) -> list[str]:
        """Number and duration of the measurements, and the reason if the verdict is open."""
        remarks = [text("pairs", count=self.pairs, seconds=self.seconds)]
        if self.compared.because:
            remarks.append(in_words(self.compared.because))
        return remarks


def tell(outcome: Outcome, form: str) -> None:
    """Prints an outcome as `text`, `json` or `markdown`."""
    if form == "json":
        say(_json(outcome))
        return
    written = {"text": _text, "markdown": _markdown}[form]
    say(written(outcome, terminal_texts("gate")))


def progress() -> Callable[[Said], object]:
    """Function that prints a gate's progress: updated in place in a terminal, else a line every
    `SAID_EVERY_S` seconds."""
    if sys.stderr.isatty():
        return lambda line: say_over(in_words(line))
    printed_at = time.monotonic()

    def say_rarely(line: Said) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= SAID_EVERY_S:
            printed_at = now
            say(in_words(line), file=sys.stderr, flush=True)

    return say_rarely


def _text(outcome: Outcome, text: Texts) -> str:
    old, new = outcome.shown
    change = text.written(outcome.change(outcome.compared.ratio))
    first = f"{outcome.verdict(text)}: {old} → {new}, {change}"
    power = outcome.power(text)
    if outcome.interval:
        power = f"{text('interval')} {text.written(outcome.interval)}; {power}"
    return "\n".join([first, power, "; ".join(outcome.remarks(text))])


def _json(outcome: Outcome) -> str:
    """Line of JSON with English texts. `ratio` is of times, even if a rate was measured."""
    row = outcome.compared.row()
    for key in ("step", "run", "old_s", "new_s"):
        del row[key]
    old, new = outcome.values
    row |= {"old": old, "new": new, "unit": outcome.unit, "pairs": outcome.pairs}
    row["seconds"] = round(outcome.seconds, 2)
    return json.dumps(outcome.answer.line(row))


def _markdown(outcome: Outcome, text: Texts) -> str:
    """A heading and a table, for comments in code review."""
    old, new = outcome.shown
    change = text.written(outcome.change(outcome.compared.ratio))
    before, after = (code(in_words(command)) for command in outcome.commands)
    mark = MARKS[outcome.compared.verdict]
    lines = [
        f"### {mark} {outcome.verdict(text)}: {change}",
        "",
        f"| | {text('command')} | {text('median')} |",
        "|---|---|---:|",
        f"| {text('before')} | {before} | {old} |",
        f"| {text('after')} | {after} | {new} |",
        "",
    ]
    if outcome.interval:
        lines.append(f"{text('interval')}: {text.written(outcome.interval)}.")
    sentences = [outcome.power(text), *outcome.remarks(text)]
    lines.append(" ".join(f"{words[:1].upper()}{words[1:]}." for words in sentences))
    return "\n".join(lines)
