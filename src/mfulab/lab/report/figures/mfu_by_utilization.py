"""MFU against device utilization in a large sweep: each model's best run in a mode and number
format. The axis is stretched near 100 %, where most runs are."""

import numpy as np

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, points, style
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.frames import DataFrame, Tables

TOPIC = "ladder"
ORDER = 1
CLAIM = claims.below("mfu_percent", "utilization_percent")
NEAR = 95  # % utilization from which it no longer distinguishes runs


def rows(tables: Tables) -> DataFrame:
    """Selects each model's run of highest MFU in a mode and number format. Sound runs and plain
    steps are preferred, synthetic loads avoided. Empty if the first figure has all runs."""
    measured = mfu_versus_utilization.of_all_machines(tables)
    if len(measured) <= mfu_versus_utilization.MOST:
        return measured.iloc[:0]
    plain = selection.pick(measured, "synthetic", "variant")
    best = plain.assign(doubtful=trust.doubtful(plain)).sort_values(
        ["doubtful", "mfu_percent"], ascending=[True, False], kind="stable"
    )
    return best.drop_duplicates(["machine", "model", "mode", "precision"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the runs that utilization cannot tell apart, and the range of their MFU."""
    near = rows.loc[rows["utilization_percent"] >= NEAR, "mfu_percent"]
    counts = {"count": len(near), "total": len(rows), "near": NEAR}
    key = "finding_few"
    if near.empty:
        key = "finding_none"
    elif len(near) > 1:
        key = "finding"
    return text(key, **counts, half=near.median(), high=near.max())


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each machine. Colour shows the precision, shape the mode, size the batch.
    Both axes include zero."""
    modes = style.modes(rows, text)
    top = max(110.0, 1.3 * rows["mfu_percent"].max())
    shapes = dict(zip(modes, style.MARKERS, strict=False))
    # Scale of the x axis: logarithmic in the distance from 102 %.
    spread = (
        lambda busy: -np.log10(np.maximum(102 - np.asarray(busy), 0.1)),
        lambda place: 102 - 10.0**-place,
    )
    place = ("utilization_percent", "mfu_percent")
    names = {"x": text("utilization"), "y": text("mfu")}
    for axes, here in points.panels(figure, rows, place, shapes, **names, sharey=True):
        axes.set_yscale("symlog", linthresh=1, linscale=0.5)
        axes.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
        axes.minorticks_off()
        axes.set_xscale("function", functions=spread)
        axes.set_xticks([0, 50, 80, 90, 95, 100])
        axes.set(ylim=(-0.08, top), xlim=(max(0.0, here["utilization_percent"].min() - 5), 101.2))
    points.legend(
        figure,
        rows,
        text,
        [style.dot(style.MUTED, word, shapes[mode]) for mode, word in modes.items()],
    )
