"""The memory hierarchy as a program feels it: time of an access by working set and order, caches by their size."""

import json
from typing import get_args

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, significant, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, most, ok, one_each, own, with_machine
from mfulab.measurements.probe_memory import Pattern

TOPIC, ORDER = "memory", 2
ORDERS = get_args(Pattern)
KIB = 1024


def rows(tables: Tables) -> DataFrame:
    """One row a pattern and working set of one machine, the one with the most; `nominal_mhz` if its clock is hidden."""
    timed = own(with_machine(tables, ok(tables["memory"], "time_per_access_s", "working_set_bytes")))
    here = most(timed[timed["pattern"].isin(ORDERS)], ["hardware"])
    machines = tables["environment"]
    virtual = machines.loc[machines["virtual_machine"] & (machines["device"] == "cpu"), "hardware"]
    here = here.assign(nominal_mhz=here["clock_mhz"].where(here["hardware"].isin(virtual)))
    return one_each(here, ["pattern", "working_set_bytes"]).sort_values(["pattern", "working_set_bytes"])


def finding(rows: DataFrame, text: Texts) -> str:
    """A chase in the smallest and the largest set; columns against rows; memory by hand; whose clock the cycles are."""
    pattern = "random" if (rows["pattern"] == "random").any() else rows["pattern"].iloc[0]
    walked = rows[rows["pattern"] == pattern].sort_values("working_set_bytes")
    first, last = walked.iloc[0], walked.iloc[-1]
    values = {"small": size_of(first["working_set_bytes"]), "large": size_of(last["working_set_bytes"])}
    values["factor"] = last["time_per_access_s"] / first["time_per_access_s"]
    key = "finding" if len(walked) > 1 else "finding_one"
    words = [text(key, pattern=text(pattern), first=first, last=last, **values)]
    table = rows.pivot_table(index="working_set_bytes", columns="pattern", values="time_per_access_s")
    ratio = table.get("columns", Series(dtype=float)) / table.get("rows", Series(dtype=float))
    for size, factor in ratio.dropna().nlargest(1).items():
        words.append(text("orders", size=size_of(size), factor=significant(factor)))
    if {"cuda_malloc", "cuda_memcpy"} <= {*table}:
        by_hand = table[["cuda_malloc", "cuda_memcpy"]].dropna().tail(1)
        taken = zip(by_hand.index, by_hand.mul(by_hand.index / 8, axis=0).to_numpy(), strict=True)
        words += [text("by_hand", size=size_of(size), empty=empty, copied=copied) for size, (empty, copied) in taken]
    words += [text("nominal", clock=f"{clock:,.0f}") for clock in rows["nominal_mhz"].dropna().head(1)]
    return " ".join(words)


def size_of(size: float) -> str:
    """`4 KiB`, `1 GiB`."""
    power = 3 if size >= KIB**3 else 2 if size >= KIB**2 else 1
    return f"{size / KIB**power:.4g} {'KMG'[power - 1]}iB"


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Lines of time over working set on logarithmic axes; a line where each cache ends."""
    axes = figure.subplots()
    both = style.PALETTE, style.MARKERS  # a GPU's own orders look like those of files, which it has not
    colors, markers = (dict(zip(ORDERS, (*looks, *looks[-2:]), strict=True)) for looks in both)
    rows = rows.assign(time_ns=1e9 * rows["time_per_access_s"])
    look: style.Look = {"hue": "pattern", "palette": colors, "style": "pattern", "markers": markers, "linewidth": 1.6}
    kinds.lines(axes, rows, "working_set_bytes", "time_ns", "working_set_bytes", "time_per_access_s", **look)
    sizes = sorted(rows["working_set_bytes"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size_of(size) for size in sizes], fontsize=9)
    axes.minorticks_off()
    axes.margins(y=0.16)
    for name, capacity in json.loads(rows["caches"].iloc[0] or "{}").items():
        if isinstance(capacity, int | float) and sizes[0] < capacity < sizes[-1]:  # nobody could read the others
            axes.axvline(capacity, **style.LIMIT)
            place = {"transform": axes.get_xaxis_transform(), "va": "top", "ha": "right", "fontsize": 9}
            axes.text(capacity, 1, f"{name}\n{size_of(capacity)}", **place)
    ticks.decades(axes.yaxis)
    axes.set(title=rows["machine"].iloc[0], xlabel=text("working_set"), ylabel=text("time"))
    present = [pattern for pattern in ORDERS if (rows["pattern"] == pattern).any()]
    return [style.dot(colors[name], text(name), markers[name]) for name in present]
