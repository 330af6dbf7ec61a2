"""Deviation of printed MFU from the one recomputed for the same speed: by the publisher's convention, and by ours."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import labels, runs, style
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
    furthest, other = rows.loc[off.idxmax()], rows.loc[ours.idxmax()]
    return text(
        "finding",
        met=int((off <= WITHIN).sum()),
        count=len(rows),
        within=WITHIN,
        system=furthest["system"],
        printed=furthest["printed_mfu_percent"],
        theirs=furthest["convention_mfu_percent"],
        other=other["system"],
        other_printed=other["printed_mfu_percent"],
        ours=other["mfu_percent"],
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Recomputed minus printed; filled by the publisher's convention, hollow by ours; inside the band it is met."""
    axes = figure.subplots()
    axes.axhspan(-WITHIN, WITHIN, color=style.GRID, linewidth=0, alpha=0.7)
    collections = list(dict.fromkeys(rows["published"]))
    looks = {name: (style.PALETTE[place % 8], style.MARKERS[place % 8]) for place, name in enumerate(collections)}
    off = {name: rows[name] - rows["printed_mfu_percent"] for name in ("mfu_percent", "convention_mfu_percent")}
    for name, (color, marker) in looks.items():
        here = rows["published"] == name
        printed = rows.loc[here, "printed_mfu_percent"]
        axes.plot(
            printed, off["mfu_percent"][here], marker, color=color, fillstyle="none", markersize=8, lw=0, alpha=0.6
        )
        look = {"color": color, "markersize": 6, "alpha": 0.85}
        [theirs] = axes.plot(printed, off["convention_mfu_percent"][here], marker, **look)
        shown = "printed_mfu_percent", "convention_mfu_percent", "mfu_percent"
        runs.mark(theirs, rows[here], *shown)
    axes.set_xlabel(text("printed"))
    axes.set_ylabel(text("difference"))
    entries = [style.dot(color, name.replace("_", "-"), marker) for name, (color, marker) in looks.items()]
    entries += [style.dot(style.MUTED, text("by_theirs")), style.dot(style.MUTED, text("by_ours"), fill="none")]
    style.legend(figure, entries)
    theirs = off["convention_mfu_percent"]
    far = rows[theirs.abs() > WITHIN].drop_duplicates("system").head(NAMED)
    labels.settle(figure)
    points = [(row.printed_mfu_percent, theirs[row.Index], row.system) for row in far.itertuples()]
    others = [(x, y) for kind in off.values() for x, y in zip(rows["printed_mfu_percent"], kind, strict=True)]
    labels.beside_points(axes, points, others[-KEPT_CLEAR:])
