"""Deviation of other tools' FLOPs from ours: one line a model, one mark a tool."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, style
from mfulab.lab.report.frames import DataFrame, Tables, ok

TOPIC, ORDER = "flops", 2
MOST = 24
AGREES_WITHIN = 1.0  # percent


def rows(tables: Tables) -> DataFrame:
    """Tools that counted a model, the models with the largest disagreement last."""
    counted = ok(tables["counters"], "deviation_percent").drop_duplicates(["model", "counter"])
    off = counted["deviation_percent"].abs().groupby(counted["model"])
    return counted.assign(off=off.transform("max")).sort_values(["off", "model"], kind="stable")


def finding(rows: DataFrame, text: Texts) -> str:
    """The largest deviation with what explains it, and how many counts agree."""
    worst = rows.loc[(off := rows["deviation_percent"].abs()).idxmax()]
    counts = {"agreeing": int((off <= AGREES_WITHIN).sum()), "count": len(rows), "within": AGREES_WITHIN}
    return text("finding", **counts, worst=worst, explanation=text.said(worst["explanation"]))


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Deviation in percent on a line for each model, at most the `MOST` furthest; zero is this project's count."""
    models = list(dict.fromkeys(rows["model"]))[-MOST:]
    rows = rows[rows["model"].isin(models)]
    counters = sorted(set(rows["counter"]))
    style.fit(figure, len(models))
    axes = figure.subplots()
    axes.axvline(0, color=style.MUTED, linewidth=1)
    colors, markers = (dict(zip(counters, looks, strict=False)) for looks in (style.PALETTE, style.MARKERS))
    # Tools that agree stand next to one another.
    small = 10 if len(models) > 14 else 11
    heights = kinds.lanes(axes, rows, "model", models, "counter", counters[::-1], 0.15, fontsize=small)
    rows = rows.assign(place=heights, run=rows["counter"] + ", " + rows["model"])
    look: style.Look = {"hue": "counter", "palette": colors, "style": "counter", "markers": markers}
    kinds.points(axes, rows, "deviation_percent", "place", "deviation_percent", **look)
    axes.set_xlabel(text("deviation"))
    return style.dots(colors, text, "counter", markers)
