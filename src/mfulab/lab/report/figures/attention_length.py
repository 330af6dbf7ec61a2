"""Longer sequences: attention's share of the FLOPs, and memory and MFU for each attention
backend."""

import pandas as pd

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, alone, ok, one_each, with_machine

TOPIC = "memory"
ORDER = 10
REASONS = selection.TOGETHER
ALIKE = ["machine", "model", "workload", "batch_size", "precision"]
COLORS = {
    way: style.PALETTE[place]
    for way, place in {"math": 1, "flash": 0, "efficient": 2, "cudnn": 4}.items()
}
FAILED = "out_of_memory"


def rows(tables: Tables) -> DataFrame:
    """Selects runs with a chosen backend at two lengths or more. `share` is attention's share of
    forward FLOPs in percent."""
    chosen = alone(tables["profile"])[lambda table: table["attention"].isin(COLORS)]
    tried = pd.concat([ok(chosen, "time_s", "sequence_length"), chosen[chosen["status"] == FAILED]])
    counted = tables["flops"].drop_duplicates("run").set_index("run")
    share = tried["flops_run"].map(100 * counted["attention_flops"] / counted["forward_flops"])
    tried = with_machine(tables, tried.assign(share=share))
    tried = one_each(tried, [*ALIKE, "attention", "sequence_length", "status"])
    lengths = (
        tried["sequence_length"]
        .where(tried["status"] == "ok")
        .groupby([tried[key] for key in ALIKE])
    )
    return tried[lengths.transform("nunique") > 1].sort_values("sequence_length")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case with the longest sequence: attention's share, memory and speed of
    backends, and failures."""
    measured = rows[rows["status"] == "ok"]
    longest = measured.loc[measured["sequence_length"].idxmax()]
    here = measured[(measured[ALIKE] == longest[ALIKE]).all(axis=1)].sort_values(
        "sequence_length", kind="stable"
    )
    key = "finding" if here["share"].notna().all() else "finding_without"
    sentences = [text(key, short=here.iloc[0], long=longest)]
    last = here[here["sequence_length"] == longest["sequence_length"]].set_index("attention")
    if {"math", "flash"} <= set(last.index):
        math = last.loc["math"]
        flash = last.loc["flash"]
        times = math["time_s"] / flash["time_s"]
        if claims.differs(flash, math, "time_s"):
            key = "slower"
        elif claims.differs(math, flash, "time_s"):
            key = "faster"
        else:
            key = "equal"
        sentences.append(text(key, times=max(times, 1 / times), math=math, flash=flash))
        if pd.notna(math["memory_bytes"] + flash["memory_bytes"]):
            sentences.append(text("peaks", math=math, flash=flash))
    failed = int((rows["status"] == FAILED).sum())
    if failed:
        sentences.append(text("failed", count=failed))
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws for each machine, over sequence length, the share of FLOPs, peak memory and MFU, with a
    line for each backend."""
    rows = rows.assign(
        memory_mib=rows["memory_bytes"] / 2**20, failed=(rows["status"] == FAILED).map({True: 0.97})
    )
    colors = specs.present(COLORS)(rows["attention"])
    look: style.Look = {"by": [*ALIKE, "attention"], "hue": "attention", "palette": colors}
    titles = [*map(text, ("shares", "memory", "useful"))]
    for (left, middle, right), here in style.in_rows(figure, rows, titles, x=text("tokens")):
        measured, failed = (here[here["status"] == status] for status in ("ok", FAILED))
        shares = measured.drop_duplicates([*ALIKE, "sequence_length"])
        kinds.lines(left, shares, "sequence_length", "share", "share", by=ALIKE, color=style.MUTED)
        kinds.lines(middle, measured, "sequence_length", "memory_mib", "memory_bytes", **look)
        kinds.lines(
            right, measured, "sequence_length", "mfu_percent", "mfu_percent", "time_s", **look
        )
        # A cross at the upper edge for each run that was out of memory.
        middle.scatter(
            failed["sequence_length"],
            failed["failed"],
            color=failed["attention"].map(colors),
            marker="x",
            transform=middle.get_xaxis_transform(),
        )
        left.set_ylim(0, 100)
        right.set_ylim(bottom=0)
        ticks.decades(middle.yaxis)
        for axes in (left, middle, right):
            ticks.doublings(axes, rows["sequence_length"])
    entries = [
        style.line(color, text.name("attention", backend)) for backend, color in colors.items()
    ]
    if (rows["status"] == FAILED).any():
        entries.append(style.dot(style.INK, text("failure"), "x"))
    return entries
