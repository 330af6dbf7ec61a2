"""Longer sequences: attention's share of the FLOPs, and memory and MFU for each attention
backend."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, specs, style, ticks
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    alone,
    highest,
    ok,
    one_each,
    with_machine,
)

TOPIC = "memory"
ORDER = 10
REASONS = selection.TOGETHER
ALIKE = ["machine", "model", "workload", "batch_size", "precision"]
COLORS = {
    "math": style.PALETTE[1],
    "flash": style.PALETTE[0],
    "efficient": style.PALETTE[2],
    "cudnn": style.PALETTE[4],
}
FAILED = "out_of_memory"


EDGE = 0.97  # height of marks at the upper edge, as a share of the panel's


def rows(tables: Tables) -> DataFrame:
    """Selects runs with a chosen backend at two lengths or more. `share` is attention's share of
    forward FLOPs in percent."""
    chosen = alone(tables["profile"])
    chosen = chosen[chosen["attention"].isin(COLORS)]
    measured = ok(chosen, "time_s", "sequence_length")
    tried = pd.concat([measured, chosen[chosen["status"] == FAILED]])
    counted = tables["flops"].drop_duplicates("run").set_index("run")
    share = 100 * counted["attention_flops"] / counted["forward_flops"]
    tried = tried.assign(share=tried["flops_run"].map(share))
    tried = with_machine(tables, tried)
    tried = one_each(tried, [*ALIKE, "attention", "sequence_length", "status"])
    measured_length = tried["sequence_length"].where(tried["status"] == "ok")
    lengths = measured_length.groupby([tried[key] for key in ALIKE]).transform("nunique")
    return tried[lengths > 1].sort_values("sequence_length")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case with the longest sequence: attention's share, memory and speed of
    backends, and failures."""
    measured = rows[rows["status"] == "ok"]
    longest = highest(measured, "sequence_length")
    here = measured[(measured[ALIKE] == longest[ALIKE]).all(axis=1)]
    here = here.sort_values("sequence_length", kind="stable")
    key = "finding_without"
    if here["share"].notna().all():
        key = "finding"
    sentences = [
        text(
            key,
            short=here.iloc[0],
            long=longest,
        )
    ]
    last = here[here["sequence_length"] == longest["sequence_length"]].set_index("attention")
    if {"math", "flash"} <= set(last.index):
        sentences += _beside(last.loc["math"], last.loc["flash"], text)
    failed = int((rows["status"] == FAILED).sum())
    if failed:
        sentences.append(text("failed", count=failed))
    return " ".join(sentences)


def _beside(math: Series, flash: Series, text: Texts) -> list[str]:
    """Sentences on the times and, if known, the peak memory of two backends."""
    times = math["time_s"] / flash["time_s"]
    if claims.differs(flash, math, "time_s"):
        key = "slower"
    elif claims.differs(math, flash, "time_s"):
        key = "faster"
    else:
        key = "equal"
    sentences = [
        text(
            key,
            times=max(times, 1 / times),
            math=math,
            flash=flash,
        )
    ]
    if pd.notna(math["memory_bytes"]) and pd.notna(flash["memory_bytes"]):
        sentences.append(text("peaks", math=math, flash=flash))
    return sentences


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws for each machine, over sequence length, the share of FLOPs, peak memory and MFU, with a
    line for each backend."""
    rows = rows.assign(memory_mib=rows["memory_bytes"] / 2**20)
    colors = specs.present(COLORS)(rows["attention"])
    look = style.hued("attention", colors) | {"by": [*ALIKE, "attention"]}
    titles = [text("shares"), text("memory"), text("useful")]
    length = "sequence_length"
    for (left, middle, right), here in style.in_rows(figure, rows, titles, x=text("tokens")):
        measured = here[here["status"] == "ok"]
        shares = measured.drop_duplicates([*ALIKE, length])
        kinds.lines(
            left,
            shares,
            length,
            "share",
            "share",
            by=ALIKE,
            color=style.MUTED,
        )
        kinds.lines(middle, measured, length, "memory_mib", "memory_bytes", **look)
        kinds.lines(right, measured, length, "mfu_percent", "mfu_percent", "time_s", **look)
        _mark_failed(middle, here[here["status"] == FAILED], colors)
        left.set_ylim(0, 100)
        right.set_ylim(bottom=0)
        ticks.decades(middle.yaxis)
        for axes in (left, middle, right):
            ticks.doublings(axes, rows[length])
    entries = []
    for backend, color in colors.items():
        entries.append(style.line(color, text.name("attention", backend)))
    if (rows["status"] == FAILED).any():
        entries.append(style.dot(style.INK, text("failure"), "x"))
    return entries


def _mark_failed(axes: Axes, failed: DataFrame, colors: Mapping[str, str]) -> None:
    """Draws a cross at the upper edge for each run that was out of memory."""
    axes.scatter(
        failed["sequence_length"],
        [EDGE] * len(failed),
        color=failed["attention"].map(colors),
        marker="x",
        transform=axes.get_xaxis_transform(),
    )
