"""Decoding, a token at a time: the share of the memory's bandwidth beside that of the arithmetic, by batch size."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report.drawing import curves, kinds, labels, runs, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 2
WORDS = ("mbu_percent", "mfu_percent")
DASHES: Mapping[str, style.Dash] = dict(zip(WORDS, ("", (4, 2)), strict=True))


def rows(tables: Tables) -> pd.DataFrame:
    """Decoding runs of series with at least two batch sizes."""
    decoded = ok(tables["profile"], "mbu_percent", "mfu_percent")
    return curves.series(with_machine(tables, decoded[decoded["mode"] == "decoding"]))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The series nearest to the memory's limit at its smallest batch, and at its largest; then the experts."""
    first, last = curves.ends(rows)
    best = first["mbu_percent"].idxmax()
    small, large = first.loc[best], last.loc[best]
    key = "finding_one" if small["batch_size"] == large["batch_size"] else "finding"
    said = text(key, small=small, large=large, slower=large["time_s"] / small["time_s"])
    return " ".join([said, *_experts(rows, text)])


def _experts(rows: pd.DataFrame, text: Texts) -> list[str]:
    """The most uneven step of a mixture of experts at the largest batch measured; nothing of dense models."""
    routed = rows.dropna(subset=["expert_imbalance"])
    if routed.empty:
        return []
    largest = routed[routed["batch_size"] == routed["batch_size"].max()]
    worst = largest.loc[largest["expert_imbalance"].idxmax()]
    key = "experts_even" if worst["expert_imbalance"] <= 1 else "experts"
    batch, times = int(worst["batch_size"]), significant(worst["expert_imbalance"])
    return [text(key, model=worst["model"], batch=batch, times=times)]


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine, both axes logarithmic; MBU solid, MFU dashed, colour is the precision."""
    grid = style.panels(figure, style.machines(rows), [""], sharex=True)
    colors = style.precision_colors(rows["precision"])
    each = rows.melt([*rows.columns.drop([*DASHES])], [*DASHES], "share_of", "share")
    look: style.Look = {"by": [*curves.KEYS, "share_of"], "hue": "precision", "colors": colors, "dash": "share_of"}
    for (machine, _), axes in grid.items():
        here = each[each["machine"] == machine].sort_values("batch_size")
        kinds.lines(axes, here, "batch_size", "share", dashes=DASHES, **look)
        ticks.doublings(axes, rows["batch_size"])
        axes.set_yscale("log")
        axes.axhline(100, color=style.MUTED, linewidth=1)
        axes.margins(y=0.1)
        ticks.decades(axes.yaxis)
        axes.set_ylabel(text("share"))
    style.label(figure, text("batch_size"))
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()]
    entries += [style.line(style.MUTED, text(column), dash) for column, dash in DASHES.items()]
    style.legend(figure, entries + runs.key(rows, text))
    labels.settle(figure)
    for (machine, _), axes in grid.items():
        ends = rows[rows["machine"] == machine].groupby(curves.KEYS, sort=False, dropna=False).tail(1)
        highest = ends.sort_values("mbu_percent").drop_duplicates("model", keep="last")
        named = highest[["batch_size", "mbu_percent", "model"]].itertuples(index=False, name=None)
        labels.at_line_ends(axes, [(*end, style.INK) for end in named])
