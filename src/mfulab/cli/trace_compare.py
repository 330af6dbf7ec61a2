"""`mfulab compare A B` of two traces (`mfulab trace --compare`): where a step of B takes more or less than one of A."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from mfulab.cli.trace_text import KINDS, NAME, short, table
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.core.terminal import Terminal
from mfulab.lab.tables.compare import show as results
from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing.device_time import CAUSES
from mfulab.tracing.difference import Difference, Part, difference

COMPARED = ("operator", "shapes", "before", "after", "change")
LONGEST = 15


def either(old: Path, new: Path, noticeable: float, gate: float | None, out: Path | None, as_json: bool) -> int:
    """Compares two traces, or two sets of results. Raises ConfigurationError for none, or `out` of traces."""
    if not (old.is_file() and new.is_file()):
        return results(old, new, noticeable, gate, out, as_json)
    if out:
        raise ConfigurationError(f"--out {out}: it holds the runs of two sets of results; of traces print --json.")
    return compare([old, new], gate, as_json, "en")


def compare(paths: Sequence[Path], gate: float | None, as_json: bool, language: str, **options: Any) -> int:
    """Shows the difference of the first rows of two files; 1 where the second is slower by more than the gate. Raises
    ConfigurationError unless there are two files, TraceError if one cannot be read."""
    if len(paths) != 2:
        raise ConfigurationError(f"--compare: give two traces, the old one and the new one; here are {len(paths)}")
    analyses = [read_file(path, **options)[0].analysis for path in paths]
    compared = difference(*(analysis for analysis in analyses if analysis is not None))
    failed = gate is not None and compared.verdict == "slower" and compared.change > gate
    if as_json:
        print(json.dumps(_plain(compared, failed), ensure_ascii=False))
    else:
        _show(Terminal(highlight=False), Texts(language, "trace"), compared, gate)
    return int(failed)


def _show(console: Terminal, text: Texts, compared: Difference, gate: float | None) -> None:
    before, after = (f"{float(span) / 1e6:,.3f}" for span in (compared.before, compared.after))
    noise = text("no_noise") if compared.noise is None else text("noise", share=percent(100 * compared.noise))
    heading = text("compared", before=before, after=after, change=f"{100 * compared.change:+.2f}")
    console.print(Text(heading, style="bold"))
    console.print(f"{text(compared.verdict)}; {noise}")
    if gate is not None:
        console.print(text("gate", share=percent(100 * gate)))
    whole = Part("step", "", "", compared.before, compared.after)
    kinds = [(kind, *numbers) for kind, _, _, *numbers in (_cells(text, part) for part in (*compared.kinds(), whole))]
    table(console, text, "budget", ("kind", *COMPARED[2:]), kinds)
    rows = [_cells(text, part)[1:] for part in compared.parts[:LONGEST] if part.difference]
    table(console, text, "differences", COMPARED, rows)


def _cells(text: Texts, part: Part) -> tuple[str, ...]:
    kind = text(KINDS.get(part.kind, part.kind))
    operator = text(part.operator) if part.operator in CAUSES else part.operator or kind
    change = f"{float(part.difference) / 1e6:+,.3f}"
    if not part.before or not part.after:
        change = f"{change} ({text('appears') if part.after else text('vanishes')})"
    spans = (f"{float(span) / 1e6:,.3f}" for span in (part.before, part.after))
    return kind, short(operator, NAME), short(part.shapes, 40), *spans, change


def _plain(compared: Difference, failed: bool) -> dict[str, Any]:
    rows = [
        {name: getattr(part, name) for name in ("kind", "operator", "shapes")}
        | {f"{name}_ms": float(getattr(part, name)) / 1e6 for name in ("before", "after", "difference")}
        for part in compared.parts
    ]
    noise = None if compared.noise is None else 100 * compared.noise
    numbers: dict[str, Any] = {f"{name}_ms": float(getattr(compared, name)) / 1e6 for name in ("before", "after")}
    numbers |= {"change_percent": 100 * compared.change, "noise_percent": noise}
    return numbers | {"verdict": compared.verdict, "gate_failed": failed, "parts": rows}
