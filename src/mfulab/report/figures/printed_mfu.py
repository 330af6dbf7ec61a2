"""Deviation of printed MFU from the one recomputed for the same speed: by the publisher's convention, and by ours."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, labels, style
from mfulab.report.frames import Tables, ok

TABLES = ("published",)
TOPIC = "published"
ORDER = 2
WITHIN = 0.3  # points
NAMED = 6
KEPT_CLEAR = 400  # points that labels keep off


def rows(tables: Tables) -> pd.DataFrame:
    """Public runs whose publisher prints an MFU."""
    return ok(tables["published"], "printed_mfu_percent", "convention_mfu_percent", "mfu_percent")


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Number of MFUs that their own convention reproduces, the furthest of them, and their values in ours."""
    off = (rows["printed_mfu_percent"] - rows["convention_mfu_percent"]).abs()
    ours = (rows["printed_mfu_percent"] - rows["mfu_percent"]).abs()
    counts = {"met": int((off <= WITHIN).sum()), "count": len(rows), "within": WITHIN}
    return text("finding", **counts, furthest=rows.loc[off.idxmax()], other=rows.loc[ours.idxmax()])


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Recomputed minus printed; filled by the publisher's convention, hollow by ours; inside the band it is met."""
    axes = figure.subplots()
    axes.axhspan(-WITHIN, WITHIN, color=style.GRID, linewidth=0, alpha=0.7)
    collections = list(dict.fromkeys(rows["published"]))
    colors = style.colors(collections)
    markers = {name: style.MARKERS[place % 8] for place, name in enumerate(collections)}
    shown = "printed_mfu_percent", "convention_mfu_percent", "mfu_percent"
    off = {name: rows[name] - rows["printed_mfu_percent"] for name in shown[1:]}
    rows = rows.assign(theirs=off["convention_mfu_percent"], ours=off["mfu_percent"])
    for name, here in rows.groupby("published", sort=False):
        look: style.Look = {
            "color": colors[name],
            "fillstyle": "none",
            "markersize": 8,
            "linewidth": 0,
            "alpha": 0.6,
        }
        axes.plot(here["printed_mfu_percent"], here["ours"], markers[name], **look)
    look = {"hue": "published", "colors": colors, "shape": "published", "markers": markers, "s": 36, "alpha": 0.85}
    kinds.points(axes, rows, "printed_mfu_percent", "theirs", *shown, **look)
    axes.set_xlabel(text("printed"))
    axes.set_ylabel(text("difference"))
    entries = [style.dot(color, name.replace("_", "-"), markers[name]) for name, color in colors.items()]
    entries += [style.dot(style.MUTED, text("by_theirs")), style.dot(style.MUTED, text("by_ours"), fill="none")]
    style.legend(figure, entries)
    far = rows[rows["theirs"].abs() > WITHIN].drop_duplicates("system").head(NAMED)
    labels.settle(figure)
    named = list(zip(far["printed_mfu_percent"], far["theirs"], far["system"], strict=True))
    others = [(x, y) for kind in off.values() for x, y in zip(rows["printed_mfu_percent"], kind, strict=True)]
    labels.beside_points(axes, named, others[-KEPT_CLEAR:])
