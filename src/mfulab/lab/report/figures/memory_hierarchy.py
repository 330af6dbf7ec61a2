"""The memory hierarchy as a program sees it: time of an access by working set and access pattern,
with the sizes of caches."""

from typing import get_args

from matplotlib.axes import Axes

from mfulab.core.json_text import parse_json
from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Texts, significant, specs, style, ticks
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    ok,
    one_each,
    with_machine,
)
from mfulab.measurements.probe_memory import Pattern

TOPIC = "memory"
ORDER = 2
REASONS = selection.TOGETHER
ORDERS = get_args(Pattern)
KIB = 1024
# Patterns of GPUs look like those of files, which never occur with them.
COLORS = dict(zip(ORDERS, (*style.PALETTE, *style.PALETTE[-2:]), strict=True))
MARKERS = dict(zip(ORDERS, (*style.MARKERS, *style.MARKERS[-2:]), strict=True))


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each pattern and working set on one machine. `nominal_mhz` is set if its
    real clock is hidden, as in virtual machines."""
    timed = ok(tables["memory"], "time_per_access_s", "working_set_bytes")
    timed = with_machine(tables, timed[timed["pattern"].isin(ORDERS)])
    here = selection.one_machine(timed)
    machines = tables["environment"]
    virtual = machines.loc[machines["virtual_machine"] & (machines["device"] == "cpu"), "hardware"]
    here = here.assign(nominal_mhz=here["clock_mhz"].where(here["hardware"].isin(virtual)))
    return one_each(here, ["pattern", "working_set_bytes"]).sort_values(
        ["pattern", "working_set_bytes"]
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on a dependent access in the smallest and largest set, columns relative to rows,
    memory by hand, and the clock that cycles refer to."""
    pattern = "random"
    if not (rows["pattern"] == "random").any():
        pattern = rows["pattern"].iloc[0]
    walked = rows[rows["pattern"] == pattern].sort_values("working_set_bytes")
    first = walked.iloc[0]
    last = walked.iloc[-1]
    values = {
        "small": size_of(first["working_set_bytes"]),
        "large": size_of(last["working_set_bytes"]),
    }
    values["factor"] = last["time_per_access_s"] / first["time_per_access_s"]
    key = "finding" if len(walked) > 1 else "finding_one"
    sentences = [text(key, pattern=text(pattern), first=first, last=last, **values)]
    table = rows.pivot_table(
        index="working_set_bytes", columns="pattern", values="time_per_access_s"
    )
    ratio = table.get("columns", Series(dtype=float)) / table.get("rows", Series(dtype=float))
    for size, factor in ratio.dropna().nlargest(1).items():
        sentences.append(text("orders", size=size_of(size), factor=significant(factor)))
    if {"cuda_malloc", "cuda_memcpy"} <= {*table}:
        by_hand = table[["cuda_malloc", "cuda_memcpy"]].dropna().tail(1)
        taken = zip(by_hand.index, by_hand.mul(by_hand.index / 8, axis=0).to_numpy(), strict=True)
        for size, (empty, copied) in taken:
            sentences.append(text("by_hand", size=size_of(size), empty=empty, copied=copied))
    for clock in rows["nominal_mhz"].dropna().head(1):
        sentences.append(text("nominal", clock=f"{clock:,.0f}"))
    return " ".join(sentences)


def size_of(size: float) -> str:
    """A size in binary units: `4 KiB`, `1 GiB`."""
    if size >= KIB**3:
        power = 3
    elif size >= KIB**2:
        power = 2
    else:
        power = 1
    return f"{size / KIB**power:.4g} {'KMG'[power - 1]}iB"


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    return rows.assign(time_ns=1e9 * rows["time_per_access_s"])


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic, and draws a line at the size of each cache."""
    sizes = sorted(rows["working_set_bytes"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(size_of, sizes)), fontsize=9)
    axes.minorticks_off()
    axes.margins(y=0.16)
    place: style.Look = {"transform": axes.get_xaxis_transform(), "va": "top", "ha": "right"}
    for name, capacity in parse_json(rows["caches"].iloc[0] or "{}").items():
        # Only caches within the range of sizes are labelled.
        if isinstance(capacity, int | float) and sizes[0] < capacity < sizes[-1]:
            axes.axvline(capacity, **style.LIMIT)
            axes.text(capacity, 1, f"{name}\n{size_of(capacity)}", fontsize=9, **place)
    ticks.decades(axes.yaxis)


draw = specs.Lines(
    x="working_set_bytes",
    y="time_ns",
    told=("working_set_bytes", "time_per_access_s"),
    x_label="working_set",
    y_label="time",
    hue="pattern",
    colors=specs.present(COLORS),
    markers=specs.present(MARKERS),
    dressed=_dressed,
    finished=_finished,
    look={"linewidth": 1.6},
)
