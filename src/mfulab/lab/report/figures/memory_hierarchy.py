"""The memory hierarchy as a program sees it: time of an access by working set and access pattern,
with the sizes of caches."""

from typing import get_args

from matplotlib.axes import Axes

from mfulab.core.json_text import parse_json
from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Texts, significant, specs, style, ticks
from mfulab.lab.report.frames import (
    DataFrame,
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
    virtual = machines[machines["virtual_machine"] & (machines["device"] == "cpu")]
    is_virtual = here["hardware"].isin(virtual["hardware"])
    here = here.assign(nominal_mhz=here["clock_mhz"].where(is_virtual))
    keys = ["pattern", "working_set_bytes"]
    return one_each(here, keys).sort_values(keys)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on a dependent access in the smallest and largest set, columns relative to rows,
    memory by hand, and the clock that cycles refer to."""
    pattern = rows["pattern"].iloc[0]
    if (rows["pattern"] == "random").any():
        pattern = "random"
    walked = rows[rows["pattern"] == pattern].sort_values("working_set_bytes")
    first = walked.iloc[0]
    last = walked.iloc[-1]
    key = "finding"
    if len(walked) == 1:
        key = "finding_one"
    finding = text(
        key,
        pattern=text(pattern),
        first=first,
        last=last,
        small=size_of(first["working_set_bytes"]),
        large=size_of(last["working_set_bytes"]),
        factor=last["time_per_access_s"] / first["time_per_access_s"],
    )
    sentences = [finding, *_beside(rows, text)]
    for clock in rows["nominal_mhz"].dropna().head(1):
        sentences.append(text("nominal", clock=f"{clock:,.0f}"))
    return " ".join(sentences)


def _beside(rows: DataFrame, text: Texts) -> list[str]:
    """Sentences on patterns that belong together: columns and rows, and memory by hand."""
    table = rows.pivot_table(
        index="working_set_bytes", columns="pattern", values="time_per_access_s"
    )
    sentences = []
    if {"columns", "rows"} <= {*table}:
        ratio = (table["columns"] / table["rows"]).dropna()
        for size, factor in ratio.nlargest(1).items():
            sentences.append(
                text(
                    "orders",
                    size=size_of(size),
                    factor=significant(factor),
                )
            )
    if {"cuda_malloc", "cuda_memcpy"} <= {*table}:
        by_hand = table[["cuda_malloc", "cuda_memcpy"]].dropna().tail(1)
        for size, times in by_hand.iterrows():
            empty, copied = times * (size / 8)
            sentences.append(
                text(
                    "by_hand",
                    size=size_of(size),
                    empty=empty,
                    copied=copied,
                )
            )
    return sentences


def size_of(size: float) -> str:
    """A size in binary units: `4 KiB`, `1 GiB`."""
    if size >= KIB**3:
        return f"{size / KIB**3:.4g} GiB"
    if size >= KIB**2:
        return f"{size / KIB**2:.4g} MiB"
    return f"{size / KIB:.4g} KiB"


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds times in nanoseconds."""
    return rows.assign(time_ns=1e9 * rows["time_per_access_s"])


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic, and draws a line at the size of each cache."""
    sizes = sorted(rows["working_set_bytes"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(size_of, sizes)), fontsize=9)
    axes.minorticks_off()
    axes.margins(y=0.16)
    place: style.Look = {
        "transform": axes.get_xaxis_transform(),
        "va": "top",
        "ha": "right",
    }
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
