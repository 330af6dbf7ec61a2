"""The ladder on a terminal: one line a rung, from busy to useful, with a bar, and why what is missing is missing."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mfulab.language import Texts, verdicts
from mfulab.samplers.reading import Reading
from mfulab.tables import ladder

BAR = 24


def bar(percent: float) -> str:
    """A bar of up to 24 blocks; above 100 % it ends in an arrow."""
    filled = round(min(percent, 100.0) / 100 * BAR)
    return "█" * filled + "░" * (BAR - filled) + ("▶" if percent > 100 else "")


def ladder_table(values: Mapping[str, Any], readings: Mapping[str, Reading]) -> Table:
    """The rungs of the ladder that were measured, those beside its falling order dimmed.

    If the first is missing, its reason stands in place of a bar.
    """
    table, names = Table(box=None, pad_edge=False, show_header=False), Texts("en", "rungs")
    measured, first = ladder.measured(values), ladder.RUNGS[0].column
    if first in readings and all(rung.column != first for rung in measured):
        table.add_row(names(first), "—", Text(readings[first].reason, style="dim"))
    for rung in measured:
        style = "green" if rung.falls else "dim"
        table.add_row(names(rung.column), f"{rung.percent:6.1f} %", Text(bar(rung.percent), style=style))
    return table


def facts_line(values: Mapping[str, Any]) -> str:
    """Step time, throughput, rate, power and memory in one line, what was not measured left out."""
    parts = []
    if values.get("time_s") is not None:
        parts.append(f"{1e3 * values['time_s']:.3f} ms a step over {values.get('steps')} steps")
    if values.get("samples_per_s") is not None:
        parts.append(f"{values['samples_per_s']:.1f} samples/s")
    if values.get("tflop_s") is not None:
        parts.append(f"{values['tflop_s']:.3g} TFLOP/s in {values.get('effective_precision')}")
    if values.get("power_w") is not None:
        parts.append(f"{values['power_w']:.0f} W")
    if values.get("energy_j") is not None:
        parts.append(f"{values['energy_j']:.3g} J a step")
    if values.get("memory_bytes") is not None:
        parts.append(f"{values['memory_bytes'] / 1e9:.2f} GB at most")
    return " · ".join(parts)


def basis_line(values: Mapping[str, Any]) -> str:
    """MFU by each denominator."""
    names = {
        "mfu_spec_percent": "spec peak",
        "mfu_max_clock_percent": "highest clock",
        "mfu_actual_clock_percent": "actual clock",
        "mfu_measured_percent": "best measured matmul",
    }
    parts = [f"{values[name]:.1f} % of the {label}" for name, label in names.items() if values.get(name) is not None]
    return "MFU: " + ", ".join(parts) if parts else "MFU: none"


def show(window: Any, console: Console | None = None) -> None:
    """Prints a finished window."""
    values, readings = window.row, window.readings
    lines: list[Any] = [
        Text(facts_line(values), style="bold"),
        ladder_table(values, readings),
        basis_line(values),
    ]
    if window.verdict is not None:
        cause, reason = Texts().name("cause", window.verdict.cause), window.verdict.reason
        lines.append(Text(f"{cause}: {verdicts.sentence(reason.key, reason.numbers)}", style="yellow"))
        flags = [verdicts.sentence(flag.key, flag.numbers) for flag in window.verdict.flags]
        lines += [Text(f"look: {flag}", style="red") for flag in flags]
    for name in ("flops", "peak_tflop_s"):
        if name in readings and readings[name].value is None:
            lines.append(Text(f"{name}: {readings[name].reason}", style="dim"))
    (console or Console()).print(Group(*lines))
