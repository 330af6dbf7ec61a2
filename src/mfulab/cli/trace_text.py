"""Text output of `mfulab trace`: ladder, verdict, lost milliseconds, and the longest operators and
kernels."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.table import Column, Table
from rich.text import Text

from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.core.parts import drop_none
from mfulab.core.terminal import Terminal, bare_table, uncut
from mfulab.loop.interactive.show import bar, first_lines
from mfulab.measurements.read_trace.reader import Read
from mfulab.mfu import ladder as rungs
from mfulab.mfu.account import Loss, read
from mfulab.mfu.headroom import PARTS
from mfulab.mfu.job import LinkUse, link_use
from mfulab.mfu.three_lines import at_least, is_part, three_lines
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.products import Product
from mfulab.tracing.shares import KernelRow

Row = dict[str, Any]  # columns of a trace
Cells = dict[str, str]  # of a line in a table, by column
DEEPEST = 5  # levels of modules shown
LEAST_PERCENT = 2.0  # modules shown, relative to the longest
# Shares of a rank's step: columns of the table of ranks, and those of the row without "_percent".
RANK_SHARES = {
    "kernel_busy_percent": "kernel_busy",
    "exposed": "communication",
    "transfer": "transfer",
    "waiting": "waiting",
}
LONGEST = 5
OF_KERNELS = ("products", "recomputed", "uncounted", "others")
# Columns with text, which is cut off in a narrow terminal.
TEXTS = {
    "operator",
    "shapes",
    "kernel",
    "ended_by",
    "cause",
    "kind",
    "bound",
    "module",
    "collective",
    "file",
    "device",
    "verdict",
}
NAME = 64  # characters of a kernel's name that are shown
TITLED: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "pad_edge": False,
    "title_justify": "left",
    "title_style": "bold",
}


def show(pairs: Sequence[tuple[Read, Row]], language: str, *, all_tables: bool = False) -> None:
    """Prints each trace that was read, with further tables if `all_tables`. If there are several,
    also an overview with a line per trace, and the jobs that their ranks form."""
    console = Terminal()
    text = Texts(language, "trace")
    for trace, row in pairs:
        if trace.analysis is not None:
            _trace(console, text, trace.analysis, row, all_tables)
    rows = [row for _, row in pairs if row["status"] == "ok"]
    if len(rows) > 1:
        table(console, text, "overview", (_overview_line(row, text) for row in rows))
    jobs = defaultdict[str, list[Row]](list)
    for row in rows:
        if row.get("job_ranks"):
            jobs[row["job"]].append(row)
        else:
            _collectives(console, text, row)
    for ranks in jobs.values():
        # Rows of a job hold the collective times of the rank that waits least.
        _collectives(console, text, ranks[-1])
    for ranks in jobs.values():
        _job(console, text, ranks)


def _collectives(console: Terminal, text: Texts, row: Row) -> None:
    kinds = parse_json(row.get("collective_bandwidth") or "[]")
    table(console, text, "collectives", map(_collective_line, kinds))
    use = link_use(row)
    if use:
        console.print(text("link_bytes", **_link_numbers(use, row["time_s"])))


def _overview_line(row: Row, text: Texts) -> Cells:
    return {
        "file": row["model"],
        "device": row["device"] or "—",
        "step_time": quantity(row["time_s"], "s"),
        "kernel_busy_percent": _share(row["kernel_busy_percent"]),
        "mfu_percent": mfu_text(row, row["mfu_percent"]),
        "verdict": verdicts.columns(row, language=text.language)["verdict"],
    }


def _link_numbers(use: LinkUse, step_s: float) -> dict[str, str]:
    """Numbers for the sentence on a link: bytes and calls of a step, and its share of the step's
    time."""
    return {
        "sent": quantity(use.bytes, "B"),
        "calls": significant(use.calls),
        "ms": milliseconds(1e3 * use.busy_s),
        "share": percent(100 * use.busy_s / step_s),
    }


def _collective_line(kind: Row) -> Cells:
    rates = {}
    for name in ("algorithm_gb_s", "bus_gb_s"):
        rates[name] = "—" if kind[name] is None else significant(kind[name])
    return {
        "collective": kind["kind"],
        "calls": f"{kind['calls']}",
        "size": quantity(kind["bytes"], "B"),
        "processes": f"{kind['processes']}",
        "ms": milliseconds(kind["ms"]),
        **rates,
        "wait": milliseconds(kind["wait_ms"]),
    }


def _job(console: Terminal, text: Texts, rows: Sequence[Row]) -> None:
    """Prints a job with a line per rank; an arrow marks the rank that the others wait for."""
    ranks = sorted(rows, key=lambda row: row["rank"])
    job = ranks[0]
    world = job["world_size"] or job["job_ranks"]
    mfu = mfu_text(max(ranks, key=is_part), job["job_mfu_percent"])
    console.print(text("job", ranks=job["job_ranks"], world=world, mfu=mfu), style="bold")
    for key, numbers in parse_json(job["job_verdict"] or "{}").items():
        console.print(verdicts.sentence(key, numbers, text.language), style="yellow")
    lines = []
    for row in ranks:
        mark = " ←" if row["rank"] == job["job_slowest_rank"] else ""
        line = {"rank": f"{row['rank']}{mark}", "step_time": quantity(row["time_s"], "s")}
        for column, name in RANK_SHARES.items():
            line[column] = _share(row[f"{name}_percent"])
        lines.append(line)
    table(console, text, "ranks", lines)
    if any(row["transfer_percent"] is None and row["communication_percent"] for row in ranks):
        console.print(text("unmatched"), style="dim")


def _trace(console: Terminal, text: Texts, analysis: Analysis, row: Row, all_tables: bool) -> None:
    """Prints a trace: its verdict, cause and advice, the ladder and the budget. If `all_tables`,
    also the longest operators, modules, kernels and gaps."""
    heading = f"{row['model']} · {device_name(text, analysis, row['device'])}"
    console.print(heading, style="bold")
    console.print(_window(text, row))
    device = "GPU" if analysis.on_gpu else "CPU"
    name = text.within("lines")("step")
    lines = three_lines(row, name, device, text.language, is_read=True)
    for line in first_lines(lines, text.language):
        console.print(line)
    console.print(_ladder(text, row))
    if row["tflop_s"] is not None:
        console.print(_speed(text, row))
    for flag in _flags(row, text):
        console.print(flag, style="red")
    _attainable(console, text, row)
    console.print(_budget(text, row, is_cpu=not analysis.on_gpu))
    _unknown_parts(console, text, row, is_cpu=not analysis.on_gpu)
    if all_tables:
        _longest(console, text, analysis, row)
    else:
        console.print(text.within("lines")("all"), style="dim")
    console.print()


def _window(text: Texts, row: Row) -> str:
    """Sentence about the steps that were read: their number, their step numbers, and how they were
    found."""
    ends = drop_none([row["first_step"], row["last_step"]])
    span = "–".join(dict.fromkeys(map(str, ends)))
    numbers = ""
    if span:
        numbers = text("window_numbers", numbers=span)
    source = verdicts.flags(row["window_source"], text.language)
    time = quantity(row["time_s"], "s")
    return text(
        "window",
        numbers=numbers,
        steps=row["steps"],
        events=row["events"],
        time=time,
        source=source,
    )


def _flags(row: Row, text: Texts) -> list[str]:
    """Sentences about doubts: of the MFU if there is one, and of the verdict."""
    columns = verdicts.columns(row, language=text.language)
    flags = [columns["verdict_flags"]]
    if row["mfu_percent"] is not None:
        flags.insert(0, columns["mfu_note"])
    return [str(flag) for flag in flags if flag]


def _attainable(console: Terminal, text: Texts, row: Row) -> None:
    attainable = row["attainable_mfu_percent"]
    if attainable is not None:
        gap = percent(attainable - row["mfu_percent"])
        console.print(text("attainable", share=percent(attainable), gap=gap))
    elif row["mfu_percent"] is not None:
        console.print(text("no_attainable"), style="dim")


def _unknown_parts(console: Terminal, text: Texts, row: Row, is_cpu: bool) -> None:
    """Prints the source of the best times, and the reasons why parts of the budget are empty."""
    if row["useful_ms"] is None:
        return
    if row["best_basis"]:
        console.print(text(f"best_{row['best_basis']}"), style="dim")
    reasons = parse_json(row["reasons"] or "{}")
    for part in PARTS:
        column = f"{part}_ms"
        if column in reasons and row[column] is None:
            why = verdicts.reason(reasons[column], text.language)
            key = "empty_clock" if part == "clock" else "empty_part"
            name = verdicts.part_of_step(part, is_cpu, text)
            console.print(text(key, part=name, reason=why), style="dim")


def _speed(text: Texts, row: Row) -> str:
    """Sentence about the speed by number format, the peak, and the FLOPs of a step."""
    values = {
        "speed": quantity(row["tflop_s"] * 1e12, "FLOP/s"),
        "flops": quantity(row["flops"], "FLOP"),
        "formats": _formats(row),
        "peak": "",
    }
    if row["peak_tflop_s"] is not None:
        values["peak"] = text("of_peak", peak=significant(row["peak_tflop_s"], 4))
    if not is_part(row):
        return text("speed", **values)
    return text("speed_of_part", known=percent(100 - row["uncounted_percent"]), **values)


def _formats(row: Row) -> str:
    """Number formats of a step's FLOPs, with their shares if there are several."""
    weights = parse_json(row["peak_weights"] or "{}")
    shares = {name: share for name, share in weights.items() if share >= 0.0005}
    if len(shares) < 2:
        return ", ".join(shares)
    return ", ".join(f"{name} {percent(100 * share)} %" for name, share in shares.items())


def device_name(text: Texts, analysis: Analysis, name: str | None) -> str:
    """Name of the device in the trace, or a word for its kind if it has none."""
    return name or text("no_device" if analysis.on_gpu else "cpu")


def _ladder(text: Texts, row: Row) -> Table:
    """Table of the rungs that a trace has. `utilization_percent` is left out: a trace has
    kernel-busy time."""
    table = bare_table()
    reasons = parse_json(row["reasons"] or "{}")
    for rung in rungs.RUNGS:
        name = rung.column
        if name not in row or name == "utilization_percent":
            continue
        is_of_flops = name in ("hfu_percent", "mfu_percent")
        label = _label(text, name)
        value = row[name]
        if value is not None:
            share = mfu_text(row, value) if is_of_flops else _share(value)
            table.add_row(label, text.written(share), Text(bar(value), style="green"))
            continue
        why = verdicts.reason(reasons.get(name, ""), text.language)
        if is_of_flops:
            why = verdicts.flags(row["mfu_reason"], text.language)
        table.add_row(label, "—", uncut(why, "dim"))
    return table


def _budget(text: Texts, row: Row, is_cpu: bool) -> Table:
    """Table of the parts of a step: their milliseconds, and the points of MFU that they cost, or
    their shares of its time if MFU is unknown."""
    points = "share" if row["mfu_percent"] is None else "points"
    numbers = [Column(text(name), justify="right") for name in ("ms", points)]
    table = Table("", *numbers, title=text("budget"), **TITLED)
    step_ms = 1e3 * row["time_s"]
    for part, loss in read(row).losses.items():
        style = "green" if part == "useful" else ""
        name = verdicts.part_of_step(part, is_cpu, text)
        table.add_row(name, milliseconds(loss.ms), f"{loss.points:.2f}", style=style)
        if part == "idle":
            for cells in _idle_causes(text, row, loss):
                table.add_row(*cells, style="dim")
    table.add_row(text("step"), milliseconds(step_ms), "100", style="bold")
    return table


def _idle_causes(text: Texts, row: Row, idle: Loss) -> Iterator[tuple[str, str, str]]:
    """Yields the cells of each cause of idle time: its name, milliseconds and points."""
    for cause, time_ns in parse_json(row["idle_causes"] or "{}").items():
        if time_ns:
            ms = time_ns / 1e6 / row["steps"]
            points = idle.points * ms / idle.ms
            yield f"  {text(cause)}", milliseconds(ms), f"({points:.2f})"


def _longest(console: Terminal, text: Texts, analysis: Analysis, row: Row) -> None:
    """Prints the longest matmuls, operators, modules, kernels and gaps, and operators of unknown
    FLOPs."""
    padding = verdicts.misaligned(row, text.language)
    if padding:
        console.print(padding)
    wall_ns = analysis.window.length
    products = [_product_line(product, wall_ns, text) for product in analysis.products[:LONGEST]]
    table(console, text, "products", products)
    all_roofs = parse_json(row.get("operator_roofline") or "[]")
    roofs = [roof for roof in all_roofs if roof["kind"] in OF_KERNELS]
    operators = [_operator_line(roof, text) for roof in roofs[: 2 * LONGEST]]
    table(console, text, "operators", operators)
    for reason, time_ms in _without_best(roofs, text.language).most_common(LONGEST):
        console.print(text("no_best", time=milliseconds(time_ms), reason=reason), style="dim")
    table(console, text, "modules", _module_lines(row))
    kernels = [_kernel_line(kernel, wall_ns) for kernel in analysis.kernels[:LONGEST]]
    table(console, text, "kernels", kernels)
    table(console, text, "gaps", _gap_lines(analysis, text))
    for line in _uncounted_lines(analysis, text):
        console.print(line, style="dim")
    if row["notes"]:
        console.print(verdicts.flags(row["notes"], text.language), style="dim")


def _product_line(product: Product, wall_ns: int, text: Texts) -> Cells:
    """Cells of a matmul in the table of matmuls; unknown ones are empty."""
    plain = product.name.removeprefix("aten::").removeprefix("xla::matmul ").lstrip("_")
    shapes = f"{_operands(product)} {product.format or ''}".strip() or product.kernel
    line = {
        "operator": short(plain, 24),
        "shapes": short(shapes, 40),
        "calls": str(product.calls),
        "share": percent(100 * product.time_ns / wall_ns),
        **dict.fromkeys(("speed_column", "padding", "rate"), ""),
    }
    if product.recomputed:
        line["operator"] += f" ({text('recomputation')})"
    if product.flops and product.time_ns:
        line["speed_column"] = quantity(1e9 * product.flops / product.time_ns, "FLOP/s")
    if product.executed_ratio is not None:
        line["padding"] = percent(100 * product.executed_ratio - 100)
    if product.slowdown != 1:
        line["rate"] = percent(100 / product.slowdown)
    return line


def _operands(product: Product) -> str:
    """Shapes of a matmul's first three operands: `16×559×1024 · 2816×1024`."""
    shapes = [shape for shape in parse_json(product.shapes or "[]") if len(shape) > 1]
    return " · ".join("×".join(map(str, shape)) for shape in shapes[:3])


def _operator_line(roof: Row, text: Texts) -> Cells:
    """Cells of an operator in the table of operators; a doubtful bound is marked."""
    bound = "—"
    if roof["bound"]:
        bound = text(roof["bound"])
        if roof["doubtful"]:
            bound += text("doubtful")
    return {
        "operator": short(roof["operator"].removeprefix("aten::"), 30),
        "shapes": short(roof["shapes"] or "", 34),
        "bound": bound,
        "ms": milliseconds(roof["time_ms"]),
        "best": milliseconds(roof["best_ms"]),
        "headroom": milliseconds(roof["headroom_ms"]),
    }


def _without_best(roofs: Sequence[Row], language: str) -> Counter[str]:
    """Milliseconds of operators without a best time, summed by the reason."""
    times_ms = Counter[str]()
    for roof in roofs:
        for key, numbers in (roof["reason"] or {}).items():
            times_ms[verdicts.sentence(key, numbers, language)] += roof["time_ms"]
    return times_ms


def _kernel_line(kernel: KernelRow, wall_ns: int) -> Cells:
    return {
        "kernel": short(kernel["kernel"], NAME),
        "calls": str(kernel["calls"]),
        "share": percent(1e11 * kernel["time_s"] / wall_ns),
    }


def _gap_lines(analysis: Analysis, text: Texts) -> Iterator[Cells]:
    for cause, time_ns, name in analysis.gaps:
        if time_ns:
            yield {
                "ended_by": short(name, NAME),
                "cause": text(cause),
                "ms": milliseconds(time_ns / 1e6),
            }


def _uncounted_lines(analysis: Analysis, text: Texts) -> Iterator[str]:
    """Yields a line for each of the longest operators of unknown FLOPs."""
    longest = sorted(analysis.uncounted.items(), key=lambda item: -item[1][0])
    for name, (time_ns, reason) in longest[:LONGEST]:
        why = verdicts.say(reason, text.language)
        share = percent(100 * time_ns / analysis.window.length)
        yield text("uncounted_line", name=short(name, 44), share=share, reason=why)


def _module_lines(row: Row) -> Iterator[Cells]:
    """Yields the cells of modules and annotated ranges as a tree: ms of a step, share of the step,
    FLOPs, and MFU during that time."""
    modules = parse_json(row.get("module_times") or "[]")
    longest_ms = max((module["ms"] for module in modules), default=0.0)
    least_ms = LEAST_PERCENT / 100 * longest_ms
    for module in modules:
        if 0 < module["depth"] <= DEEPEST and module["ms"] > least_ms:
            yield {
                "module": "  " * (module["depth"] - 1) + short(module["name"], 44),
                "calls": f"{module['calls']}",
                "ms": milliseconds(module["ms"]),
                "share": percent(module["ms"] / 10 / row["time_s"]),
                "flop": quantity(module["flops"], "FLOP") if module["flops"] else "",
                "mfu_percent": percent(module["mfu_percent"]) if "mfu_percent" in module else "",
            }


def table(console: Terminal, text: Texts, title: str, rows: Iterable[Mapping[str, str]]) -> None:
    """Prints a table of lines with the same columns, without those that are empty in every line. In
    a narrow terminal texts are cut off, numbers never. Prints nothing if there are no lines."""
    lines = list(rows)
    if not lines:
        return
    filled = [name for name in lines[0] if any(line[name] for line in lines)]
    drawn = Table(title=text(title), **TITLED)
    for name in filled:
        is_text = name in TEXTS
        justify: Literal["left", "right"] = "left" if is_text else "right"
        drawn.add_column(_label(text, name), justify=justify, no_wrap=not is_text)
    for line in lines:
        cells = [text.written(line[name]) for name in filled]
        drawn.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    console.print(drawn)


def _label(text: Texts, name: str) -> str:
    """Header of a column: the name of a rung, or a text of the section `trace`."""
    return text.within("rungs" if name.endswith("_percent") else "trace")(name)


def milliseconds(value: float | None) -> str:
    """Formats milliseconds with three decimals; a dash if unknown."""
    if value is None:
        return "—"
    return f"{value:,.3f}"


def _share(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{percent(value)} %"


def mfu_text(row: Row, value: float | None) -> str:
    """MFU or HFU as text, with "at least" if the FLOPs of only some matmuls are known."""
    if value is None:
        return "—"
    return at_least(row, _share(value))


def short(name: str, most: int) -> str:
    """A kernel's, operator's or range's name without common prefixes, cut to `most` columns, of
    which a wide letter takes two."""
    name = (
        name.removeprefix("void ")
        .replace("at::native::", "")
        .replace("(anonymous namespace)::", "")
    )
    if "scaled_dot_product_" in name:  # cut off, all attention operators would look the same
        name = name.rpartition("scaled_dot_product_")[2]
    if cell_len(name) <= most:
        return name
    return set_cell_size(name, most - 1).rstrip() + "…"
