"""Text of `mfulab trace` for each file: ladder, verdict, lost milliseconds, the longest of each kind; and of `mfulab
compare` where a step of a second trace takes more or less than one of the first."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.core.terminal import Terminal
from mfulab.loop.interactive.show import bar
from mfulab.measurements.read_trace.reader import Read, read_file
from mfulab.mfu import ladder as rungs
from mfulab.mfu.headroom import PARTS
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.device_time import CAUSES
from mfulab.tracing.difference import Difference, Part, difference

PRODUCTS = ("operator", "shapes", "calls", "share", "speed_column", "padding", "rate")
OPERATORS = ("operator", "shapes", "bound", "ms", "best", "headroom")
KERNELS = ("kernel", "calls", "share")
COLLECTIVES = ("collective", "calls", "size", "processes", "ms", "algorithm_gb_s", "bus_gb_s", "wait")
MODULES = ("module", "calls", "ms", "share", "flop", "mfu_percent")
DEEPEST, LEAST_PERCENT = 5, 2.0  # modules shown: levels, and share of the longest
GAPS = ("ended_by", "cause", "ms")
OVERVIEW = ("file", "device", "step_time", "kernel_busy_percent", "mfu_percent", "verdict")
RANKS = ("rank", "step_time", "kernel_busy_percent", "exposed", "transfer", "waiting")
KINDS = {"products": "matmuls", "recomputed": "recomputation", "others": "other_operators"}  # of time, as named there
COMPARED = ("operator", "shapes", "before", "after", "change")
LONGEST, MOST_PARTS = 5, 15
OF_KERNELS = ("products", "recomputed", "uncounted", "others")
# Columns that hold words, of which a narrow terminal shows the begin.
TEXTS = {"operator", "shapes", "kernel", "ended_by", "cause", "kind", "bound", "module", "collective", "file"}
TEXTS |= {"device", "verdict"}
NAME = 64  # characters of a kernel's name
TITLED: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title_justify": "left", "title_style": "bold"}


def show(pairs: Sequence[tuple[Read, dict[str, Any]]], language: str) -> None:
    """Prints every file that was read; of several, then a line each, and the jobs that their ranks make."""
    console, text = Terminal(highlight=False), Texts(language, "trace")
    for read, row in pairs:
        if read.analysis is not None:
            _file(console, text, read.analysis, row, language)
    rows = [row for _, row in pairs if row["status"] == "ok"]
    if len(rows) > 1:
        overview = []
        for row in rows:
            shares = (_share(row[name]) for name in ("kernel_busy_percent", "mfu_percent"))
            verdict = verdicts.columns(row, language=language)["verdict"]
            overview.append((row["model"], row["device"] or "—", quantity(row["time_s"], "s"), *shares, verdict))
        table(console, text, "overview", OVERVIEW, overview)
    for row in {row["job"] if row.get("job_ranks") else id(row): row for row in rows}.values():
        # Of a job the time of the rank that waits least, of one rank its own.
        kinds = []
        for kind in json.loads(row.get("collective_bandwidth") or "[]"):
            counts = f"{kind['calls']}", quantity(kind["bytes"], "B"), f"{kind['processes']}"
            rates = ("—" if kind[name] is None else significant(kind[name], 3) for name in COLLECTIVES[5:7])
            kinds.append((kind["kind"], *counts, _ms(kind["ms"]), *rates, _ms(kind["wait_ms"])))
        table(console, text, "collectives", COLLECTIVES, kinds)
    for job in {row["job"]: row for row in rows if row.get("job_ranks")}.values():
        ranks = sorted((row for row in rows if row["job"] == job["job"]), key=lambda row: row["rank"])
        world, mfu = job["world_size"] or job["job_ranks"], _share(job["job_mfu_percent"])
        console.print(Text(text("job", ranks=job["job_ranks"], world=world, mfu=mfu), style="bold"))
        names = [f"{part}_percent" for part in ("kernel_busy", "communication", "transfer", "waiting")]
        marks = [f"{row['rank']}" + " ←" * (row["rank"] == job["job_slowest_rank"]) for row in ranks]
        lines = [(quantity(row["time_s"], "s"), *(_share(row[name]) for name in names)) for row in ranks]
        table(console, text, "ranks", RANKS, [(mark, *line) for mark, line in zip(marks, lines, strict=True)])
        if any(row["transfer_percent"] is None and row["communication_percent"] for row in ranks):
            console.print(Text(text("unmatched"), style="dim"))


def _file(console: Terminal, text: Texts, analysis: Analysis, row: dict[str, Any], language: str) -> None:
    device = _device(text, analysis, row["device"])
    ends = dict.fromkeys(str(row[name]) for name in ("first_step", "last_step") if row[name] is not None)
    numbers = " " + "–".join(ends) if ends else ""
    console.print(Text(f"{row['model']} · {device}", style="bold"))
    source, time = verdicts.flags(row["window_source"], language), quantity(row["time_s"], "s")
    console.print(text("window", steps=row["steps"], numbers=numbers, time=time, source=source, events=row["events"]))
    console.print(_ladder(text, row, language))
    if row["tflop_s"] is not None:
        peak = "" if row["peak_tflop_s"] is None else text("of_peak", peak=significant(row["peak_tflop_s"], 4))
        speed, flops = quantity(row["tflop_s"] * 1e12, "FLOP/s"), quantity(row["flops"], "FLOP")
        weights = [(name, share) for name, share in json.loads(row["peak_weights"] or "{}").items() if share >= 0.0005]
        formats = ", ".join(name + f" {percent(100 * share)} %" * (len(weights) > 1) for name, share in weights)
        console.print(text("speed", speed=speed, peak=peak, formats=formats, flops=flops))
    words = verdicts.columns(row, language=language)
    console.print(Text(f"{words['verdict']}: {words['verdict_reason']}", style="yellow"))
    for flag in filter(None, (words["mfu_note"] if row["mfu_percent"] is not None else "", words["verdict_flags"])):
        console.print(Text(str(flag), style="red"))
    if (attainable := row["attainable_mfu_percent"]) is not None:
        gap = percent(attainable - row["mfu_percent"])
        console.print(text("attainable", share=percent(attainable), gap=gap))
    elif row["mfu_percent"] is not None:
        console.print(Text(text("no_attainable"), style="dim"))
    console.print(_budget(text, row))
    if sentence := verdicts.misaligned(row, language):
        console.print(Text(sentence, style="yellow"))
    if row["useful_ms"] is not None:
        if row["best_basis"]:
            console.print(Text(text(f"best_{row['best_basis']}"), style="dim"))
        reasons = json.loads(row["reasons"] or "{}")
        for part in (part for part in PARTS if f"{part}_ms" in reasons and row[f"{part}_ms"] is None):
            why = verdicts.reason(reasons[f"{part}_ms"], language)
            console.print(Text(text("empty_part", part=text(part), reason=why), style="dim"))
    _longest(console, text, analysis, row, language)
    console.print()


def _device(text: Texts, analysis: Analysis, name: str | None) -> str:
    return name or text("no_device" if analysis.on_gpu else "cpu")


def _ladder(text: Texts, row: dict[str, Any], language: str) -> Table:
    """The rungs that a trace has; a GPU's utilization is its kernel-busy share."""
    table, reasons = Table(box=None, pad_edge=False, show_header=False), json.loads(row["reasons"] or "{}")
    for rung in rungs.RUNGS:
        name = rung.column
        if name not in row or name == "utilization_percent":
            continue
        label, value = _label(text, name), row[name]
        if value is not None:
            table.add_row(label, _share(value), Text(bar(value), style="green"))
            continue
        why = verdicts.reason(reasons.get(name, ""), language)
        if name in ("hfu_percent", "mfu_percent"):
            why = verdicts.flags(row["mfu_reason"], language)
        table.add_row(label, "—", Text(why, style="dim"))
    return table


def _budget(text: Texts, row: dict[str, Any]) -> Table:
    numbers = [Column(text(name), justify="right") for name in ("ms", "points")]
    table = Table("", *numbers, title=text("budget"), **TITLED)
    step = 1e3 * row["time_s"]
    for part, value in ((part, row[f"{part}_ms"]) for part in PARTS if row.get(f"{part}_ms")):
        style = "green" if part == "useful" else ""
        table.add_row(text(part), _ms(value), f"{100 * value / step:.2f}", style=style)
        causes = json.loads(row["idle_causes"] or "{}") if part == "idle" else {}
        for cause, ms in ((cause, time / 1e6 / row["steps"]) for cause, time in causes.items() if time):
            table.add_row(f"  {text(cause)}", _ms(ms), f"({100 * ms / step:.2f})", style="dim")
    table.add_row(text("step"), _ms(step), "100", style="bold")
    return table


def _longest(console: Terminal, text: Texts, analysis: Analysis, row: dict[str, Any], language: str) -> None:
    wall, products = analysis.window.length, []
    for product in analysis.products[:LONGEST]:
        name = short(product.name.removeprefix("aten::").removeprefix("xla::matmul ").lstrip("_"), 24)
        operands = [shape for shape in json.loads(product.shapes or "[]") if len(shape) > 1][:3]
        shapes = " · ".join("×".join(map(str, shape)) for shape in operands)  # 16×559×1024 · 2816×1024
        name += f" ({text('recomputation')})" if product.recomputed else ""
        what = short(f"{shapes} {product.format or ''}".strip() or product.kernel, 40)
        times = f"{product.calls}", percent(100 * product.time_ns / wall)
        speed = 1e9 * product.flops / product.time_ns if product.flops and product.time_ns else None
        padding = "" if product.executed_ratio is None else percent(100 * product.executed_ratio - 100)
        rate = "" if product.slowdown == 1 else percent(100 / product.slowdown)
        products.append((name, what, *times, "" if speed is None else quantity(speed, "FLOP/s"), padding, rate))
    shown = len(PRODUCTS) - all(not product[-1] for product in products)  # no rates where all are full
    table(console, text, "products", PRODUCTS[:shown], [product[:shown] for product in products])
    roofs = [roof for roof in json.loads(row.get("operator_roofline") or "[]") if roof["kind"] in OF_KERNELS]
    lines = list[Sequence[str]]()
    for roof in roofs[: 2 * LONGEST]:
        bound = text(roof["bound"]) + text("doubtful") * roof["doubtful"] if roof["bound"] else "—"
        names = short(roof["operator"].removeprefix("aten::"), 30), short(roof["shapes"] or "", 34)
        lines.append((*names, bound, *(_ms(roof[name]) for name in ("time_ms", "best_ms", "headroom_ms"))))
    table(console, text, "operators", OPERATORS, lines)
    without = Counter[str]()
    for roof in roofs:
        for key, numbers in (roof["reason"] or {}).items():
            without[verdicts.sentence(key, numbers, language)] += roof["time_ms"]
    for why, time in without.most_common(LONGEST):
        console.print(Text(text("no_best", time=_ms(time), reason=why), style="dim"))
    table(console, text, "modules", MODULES, _modules(row))
    lines = [
        (short(str(kernel["kernel"]), NAME), f"{kernel['calls']}", percent(1e11 * float(str(kernel["time_s"])) / wall))
        for kernel in analysis.kernels[:LONGEST]
    ]
    table(console, text, "kernels", KERNELS, lines)
    gaps = [(short(name, NAME), text(cause), _ms(time / 1e6)) for cause, time, name in analysis.gaps if time]
    table(console, text, "gaps", GAPS, gaps)
    for name, (time, reason) in sorted(analysis.uncounted.items(), key=lambda item: -item[1][0])[:LONGEST]:
        share = percent(100 * time / wall)
        why = verdicts.sentence(reason.key, reason.numbers, language)
        console.print(Text(text("uncounted_line", name=short(name, 44), share=share, reason=why), style="dim"))
    if row["notes"]:
        console.print(Text(verdicts.flags(row["notes"], language), style="dim"))


def _modules(row: dict[str, Any]) -> Sequence[Sequence[str]]:
    """Modules and ranges as a tree: ms of a step, the share of the step, FLOPs, and MFU of that time."""
    modules = json.loads(row.get("module_times") or "[]")
    least = LEAST_PERCENT / 100 * max((module["ms"] for module in modules), default=0.0)
    lines = []
    for module in modules:
        if 0 < module["depth"] <= DEEPEST and module["ms"] > least:
            name, share = "  " * (module["depth"] - 1) + short(module["name"], 44), module["ms"] / 10 / row["time_s"]
            flops = quantity(module["flops"], "FLOP") if module["flops"] else ""
            mfu = percent(module["mfu_percent"]) if "mfu_percent" in module else ""
            lines.append((name, f"{module['calls']}", _ms(module["ms"]), percent(share), flops, mfu))
    return lines


def table(console: Terminal, text: Texts, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table in which only texts give way to a narrow terminal: numbers are shown whole."""
    if not rows:
        return
    drawn = Table(title=text(title), **TITLED)
    for name in names:
        drawn.add_column(_label(text, name), justify="left" if name in TEXTS else "right", no_wrap=name not in TEXTS)
    for row in rows:
        drawn.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    console.print(drawn)


def _label(text: Texts, name: str) -> str:
    """The title of a column: a rung's name, or a word of these tables."""
    return text.within("rungs" if name.endswith("_percent") else "trace")(name)


def _ms(value: float | None) -> str:
    return "—" if value is None else f"{value:,.3f}"


def _share(value: float | None) -> str:
    return "—" if value is None else f"{percent(value)} %"


def short(name: str, most: int) -> str:
    """A name without what all have, cut to `most` characters."""
    name = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return name if len(name) <= most else name[: most - 1] + "…"


def either(old: Path, new: Path, noticeable: float, gate: float | None, out: Path | None, as_json: bool) -> int:
    """Compares two traces, or two sets of results. Raises ConfigurationError for none, or `out` of traces."""
    if not (old.is_file() and new.is_file()):
        from mfulab.lab.tables.compare import show as show_results

        return show_results(old, new, noticeable, gate, out, as_json)
    if out:
        raise ConfigurationError(f"--out {out}: it holds the runs of two sets of results; of traces print --json.")
    return compare([old, new], gate, as_json, "en")


def compare(paths: Sequence[Path], gate: float | None, as_json: bool, language: str, **options: Any) -> int:
    """Shows the difference of the first rows of two files; 1 where the second is slower by more than the gate. Raises
    ConfigurationError unless there are two files, TraceError if one cannot be read."""
    if len(paths) != 2:
        raise ConfigurationError(f"--compare: give two traces, the old one and the new one; here are {len(paths)}")
    reads, text = [read_file(path, **options)[0] for path in paths], Texts(language, "trace")
    analyses = [read.analysis for read in reads if read.analysis is not None]
    compared = difference(*analyses)
    devices = [_device(text, analysis, read.row.device) for analysis, read in zip(analyses, reads, strict=True)]
    failed = gate is not None and compared.verdict == "slower" and compared.change > gate
    if as_json:
        print(json.dumps({"devices": devices, **_plain(compared, failed)}, ensure_ascii=False))
    else:
        console = Terminal(highlight=False)
        console.print(
            text("one_device" if len({*devices}) == 1 else "two_devices", before=devices[0], after=devices[1])
        )
        _difference(console, text, compared, gate)
    return int(failed)


def _difference(console: Terminal, text: Texts, compared: Difference, gate: float | None) -> None:
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
    rows = [_cells(text, part)[1:] for part in compared.parts[:MOST_PARTS] if part.difference]
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
