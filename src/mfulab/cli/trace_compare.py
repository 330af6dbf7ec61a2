"""`mfulab compare` for two traces: where a step of the second takes more or less time than one of
the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from mfulab.cli.options import AS_JSON, CSV, FORMAT, GATE, NOTICEABLE, PATH, command
from mfulab.cli.trace_text import NAME, device_name, mfu_text, milliseconds, short, table
from mfulab.core.answer import of_change
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, with_minus
from mfulab.core.parts import Record
from mfulab.core.printing import say_json
from mfulab.core.said import Said
from mfulab.core.terminal import Terminal
from mfulab.core.terminal_language import usual_language
from mfulab.measurements.read_trace.reader import Read, read_file
from mfulab.mfu.headroom import KINDS
from mfulab.mfu.three_lines import is_part
from mfulab.mfu.traced import trace_columns
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.device_time import CAUSES
from mfulab.tracing.difference import ComparedPart, Difference, difference

MOST_PARTS = 15


@command("compare", "compare before/results results --gate 5%")
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@NOTICEABLE
@GATE
@CSV
@FORMAT
@AS_JSON
def either(
    old: Path,
    new: Path,
    noticeable: float,
    gate: float | None,
    out: Path | None,
    as_json: bool,
    form: str,
) -> int:
    """Compares two traces, or two sets of results. Returns the exit status. Raises
    ConfigurationError for an option that traces do not support."""
    if as_json:
        form = "json"
    if not (old.is_file() and new.is_file()):
        from mfulab.lab.tables.compare import show as show_results

        return show_results(old, new, noticeable, gate, out, form, usual_language())
    if out:
        raise ConfigurationError(Said("results_for_out", file=str(out)))
    if form == "markdown":
        raise ConfigurationError(Said("results_for_markdown"))
    return compare([old, new], gate, form == "json", "en")


def compare(
    paths: Sequence[Path], gate: float | None, as_json: bool, language: str, **options: Any
) -> int:
    """Prints the difference of two files' first traces. Returns 1 if the second is slower by more
    than the gate, else 0. Raises ConfigurationError unless there are two files, TraceError if one
    cannot be read."""
    if len(paths) != 2:
        raise ConfigurationError(Said("give_two_traces", count=len(paths)))
    text = Texts(language, "trace")
    steps = [_step(read_file(path, **options)[0], text) for path in paths]
    compared = difference(*(step.analysis for step in steps))
    failed = gate is not None and compared.verdict == "slower" and compared.change > gate
    if as_json:
        before_s = float(compared.before) / 1e9
        answer = of_change(1 + compared.change, compared.verdict, {}, old=before_s)
        say_json(answer.line(_details(steps, compared, failed)))
    else:
        _show(text, steps, compared, gate)
    return int(failed)


@dataclass(frozen=True)
class ComparedStep:
    """A step of one of two compared traces."""

    analysis: Analysis
    row: Record
    device: str


def _step(read: Read, text: Texts) -> ComparedStep:
    row = read.row.model_dump()
    if read.analysis is None:
        raise ConfigurationError(Said("compared_without_step", trace=str(row["trace"])))
    device = device_name(text, read.analysis, row["device"])
    return ComparedStep(read.analysis, row | trace_columns(row), device)


def _show(
    text: Texts, steps: Sequence[ComparedStep], compared: Difference, gate: float | None
) -> None:
    console = Terminal()
    first, second = steps
    devices = "one_device" if first.device == second.device else "two_devices"
    console.print(text(devices, before=first.device, after=second.device))
    before, after = _ms(compared.before), _ms(compared.after)
    change = with_minus(f"{100 * compared.change:+.2f}")
    key = "compared_same" if compared.verdict == "same" else "compared"
    heading = text(key, before=before, after=after, change=change)
    console.print(heading, style="bold")
    noise = text("no_noise")
    if compared.noise is not None:
        noise = text("noise", share=percent(100 * compared.noise))
    console.print(f"{text(compared.verdict)}; {noise}")
    if any(step.row["mfu_percent"] is not None for step in steps):
        before, after = (mfu_text(step.row, step.row["mfu_percent"]) for step in steps)
        console.print(text("compared_mfu", before=before, after=after))
    for step in steps:
        if is_part(step.row):
            known = percent(100 - step.row["uncounted_percent"])
            remark = text("compared_part", file=step.row["trace"], known=known)
            console.print(remark, style="dim")
    if gate is not None:
        console.print(text("gate", share=percent(100 * gate)))
    _tables(console, text, compared)


def _tables(console: Terminal, text: Texts, compared: Difference) -> None:
    """Prints the difference by kind of time, then by operator."""
    step = ComparedPart("step", "", "", compared.before, compared.after)
    parts = (*compared.kinds(), step)
    kinds = [{"kind": _kind(text, part), **_times(text, part)} for part in parts]
    table(console, text, "budget", kinds)
    lines = []
    for part in compared.parts[:MOST_PARTS]:
        if part.difference:
            operator = part.operator or _kind(text, part)
            if part.operator in CAUSES:
                operator = text(part.operator)
            names = {"operator": short(operator, NAME), "shapes": short(part.shapes, 40)}
            lines.append({**names, **_times(text, part)})
    table(console, text, "differences", lines)


def _kind(text: Texts, part: ComparedPart) -> str:
    return text(KINDS.get(part.kind, part.kind))


def _times(text: Texts, part: ComparedPart) -> dict[str, str]:
    """Cells with the time of a part before and after, and the change."""
    change = with_minus(f"{float(part.difference) / 1e6:+,.3f}")
    if not part.before:
        change = f"{change} ({text('appears')})"
    elif not part.after:
        change = f"{change} ({text('vanishes')})"
    return {"before": _ms(part.before), "after": _ms(part.after), "change": change}


def _ms(span_ns: Fraction) -> str:
    return milliseconds(float(span_ns) / 1e6)


def _details(steps: Sequence[ComparedStep], compared: Difference, failed: bool) -> Record:
    """Fields of the line of JSON."""
    parts = []
    for part in compared.parts:
        names = {"kind": part.kind, "operator": part.operator, "shapes": part.shapes}
        parts.append({**names, **_both_ms(part), "difference_ms": float(part.difference) / 1e6})
    first, second = (step.row for step in steps)
    return {
        "devices": [step.device for step in steps],
        **_both_ms(compared),
        "change_percent": 100 * compared.change,
        "noise_percent": None if compared.noise is None else 100 * compared.noise,
        "before_mfu_percent": first["mfu_percent"],
        "after_mfu_percent": second["mfu_percent"],
        "before_uncounted_percent": first["uncounted_percent"],
        "after_uncounted_percent": second["uncounted_percent"],
        "verdict": compared.verdict,
        "gate_failed": failed,
        "parts": parts,
    }


def _both_ms(times: Difference | ComparedPart) -> dict[str, float]:
    return {"before_ms": float(times.before) / 1e6, "after_ms": float(times.after) / 1e6}
