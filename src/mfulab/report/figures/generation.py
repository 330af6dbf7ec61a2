"""Generating text: prefill beside decoding under their ceilings."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, ok, one_each, with_machine

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 3
ALIKE = ["machine", "model", "precision", "execution", "sequence_length"]
PLACE = ("arithmetic_intensity", "tflop_s")
MARKERS = {"prefill": "o", "decoding": "s"}
DASHES: Mapping[str, style.Dash] = {"prefill": "", "decoding": (4, 2)}
WORDS = ("prefill_mfu", "decoding_mbu")


def rows(tables: Tables) -> pd.DataFrame:
    """Prefill and decoding of the same model and context on the same machine, where both were measured."""
    found = with_machine(tables, ok(tables["profile"], "time_s", "mfu_percent", "mbu_percent", "tokens_per_s"))
    found = one_each(found[found["mode"].isin(DASHES)], [*ALIKE, "mode", "batch_size"])
    halves = found.groupby(ALIKE)["mode"].transform("nunique")
    return found[halves == len(DASHES)].sort_values("batch_size")


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The longest context of the first model: TTFT, TPOT, cache, MFU and MBU."""
    here = _longest(rows)
    halves = {mode: here[here["mode"] == mode] for mode in DASHES}
    said = [text("finding", **{mode: half.iloc[0] for mode, half in halves.items()})]
    largest = halves["decoding"].iloc[-1]
    if pd.notna(largest["key_value_cache_bytes"]):
        said.append(text("cache", largest=largest))
    return " ".join(said)


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first model with the longest context, of those alike the ones with most batch sizes."""
    sizes = rows.groupby(ALIKE)["batch_size"].transform("count")
    ranked = rows.assign(sizes=sizes).sort_values(["sizes", "sequence_length"], ascending=False, kind="stable")
    return rows[(rows[ALIKE] == ranked.iloc[0][ALIKE]).all(axis=1)]


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """For each machine MFU and MBU by batch size, and both halves under one roof."""
    machines = style.machines(rows, 2)
    rows = rows.assign(
        context=rows["sequence_length"].map("{:.0f}".format),
        share=rows["mfu_percent"].where(rows["mode"] == "prefill", rows["mbu_percent"]),
    )
    under = rows.dropna(subset=[*PLACE, "ceiling_tflop_s", "ceiling_gb_s"])
    columns = [text("shares"), *([text("roofline")] if len(under) else [])]
    grid = style.panels(figure, machines, columns)
    colors = style.colors(f"{length:.0f}" for length in sorted(rows["sequence_length"].unique()))
    look: style.Look = {
        "by": [*ALIKE, "mode"],
        "dash": "mode",
        "dashes": DASHES,
        "hue": "context",
        "colors": colors,
    }
    for machine in machines:
        left = grid[machine, columns[0]]
        here = rows[rows["machine"] == machine]
        kinds.lines(left, here, "batch_size", "share", "batch_size", "mfu_percent", "mbu_percent", **look)
        left.axhline(100, color=style.MUTED, linewidth=1)
        left.set_ylim(0, max(105.0, 1.05 * here[["mfu_percent", "mbu_percent"]].max(axis=None)))
        left.set_ylabel(text("share"))
        ticks.doublings(left, rows["batch_size"])
        if len(under):
            _roofline(grid[machine, columns[1]], under[under["machine"] == machine], colors, text)
    grid[machines[-1], columns[0]].set_xlabel(text("batch_size"))
    entries = [style.line(color, text("context", tokens=tokens)) for tokens, color in colors.items()]
    entries += [style.line(style.MUTED, text(name), dash) for name, dash in zip(WORDS, DASHES.values(), strict=True)]
    marks = [style.dot(style.MUTED, text.name("mode", mode), marker) for mode, marker in MARKERS.items()]
    entries += marks if len(under) else []
    style.legend_rows(figure, entries + runs.key(rows, text), columns=4)


def _roofline(axes: Axes, here: pd.DataFrame, colors: Mapping[str, str], text: Texts) -> None:
    """Each step at its FLOPs a byte and its FLOP/s; the roof is the best matmul and the bandwidth measured here."""
    if here.empty:
        axes.set_visible(False)
        return
    x = np.geomspace(here[PLACE[0]].min() / 2, here[PLACE[0]].max() * 2, 100)
    for ceiling, bandwidth in sorted(set(zip(here["ceiling_tflop_s"], here["ceiling_gb_s"], strict=True))):
        axes.plot(x, np.minimum(ceiling, x * bandwidth / 1e3), color=style.MUTED, linewidth=1.2)
    kinds.points(axes, here, *PLACE, hue="context", colors=colors, shape="mode", markers=MARKERS, alpha=0.8)
    axes.set(xscale="log", yscale="log", xlabel=text("intensity"))
    ticks.decades(axes.xaxis, 5)
    ticks.speeds(axes)
