"""MFU against device utilization in a large sweep: each model's best run in a mode and number
format. The axis is stretched near 100 %, where most runs are."""

import numpy as np
from numpy.typing import ArrayLike

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, points, style
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.frames import DataFrame, Tables

TOPIC = "ladder"
ORDER = 1
CLAIM = claims.below("mfu_percent", "utilization_percent")
NEAR = 95  # % utilization from which it no longer distinguishes runs


END = 102  # % from which distances are taken


def rows(tables: Tables) -> DataFrame:
    """Selects each model's run of highest MFU in a mode and number format. Sound runs and plain
    steps are preferred, synthetic loads avoided. Empty if the first figure has all runs."""
    measured = mfu_versus_utilization.of_all_machines(tables)
    if len(measured) <= mfu_versus_utilization.MOST:
        return measured.iloc[:0]
    plain = selection.pick(measured, "synthetic", "variant")
    judged = plain.assign(doubtful=trust.doubtful(plain))
    best_first = judged.sort_values(
        ["doubtful", "mfu_percent"], ascending=[True, False], kind="stable"
    )
    return best_first.drop_duplicates(["machine", "model", "mode", "precision"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the runs that utilization cannot tell apart, and the range of their MFU."""
    near = rows.loc[rows["utilization_percent"] >= NEAR, "mfu_percent"]
    key = "finding"
    if near.empty:
        key = "finding_none"
    elif len(near) == 1:
        key = "finding_few"
    return text(
        key,
        count=len(near),
        total=len(rows),
        near=NEAR,
        half=near.median(),
        high=near.max(),
    )


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each machine. Colour shows the precision, shape the mode, size the batch.
    Both axes include zero."""
    modes = style.modes(rows, text)
    shapes = dict(zip(modes, style.MARKERS, strict=False))
    top = max(110.0, 1.3 * rows["mfu_percent"].max())
    place = ("utilization_percent", "mfu_percent")
    labels = {"x": text("utilization"), "y": text("mfu")}
    for axes, here in points.panels(figure, rows, place, shapes, **labels, sharey=True):
        axes.set_yscale("symlog", linthresh=1, linscale=0.5)
        axes.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
        axes.minorticks_off()
        axes.set_xscale("function", functions=(_stretched, _unstretched))
        axes.set_xticks([0, 50, 80, 90, 95, 100])
        left = max(0.0, here["utilization_percent"].min() - 5)
        axes.set(ylim=(-0.08, top), xlim=(left, 101.2))
    entries = [style.dot(style.MUTED, word, shapes[mode]) for mode, word in modes.items()]
    points.legend(figure, rows, text, entries)


def _stretched(busy: ArrayLike) -> np.ndarray:
    """Place on the x axis, which is logarithmic in the distance from END."""
    distance = np.maximum(END - np.asarray(busy), 0.1)
    return -np.log10(distance)


def _unstretched(place: np.ndarray) -> np.ndarray:
    """Utilization at a place on the x axis."""
    return END - 10.0**-place
