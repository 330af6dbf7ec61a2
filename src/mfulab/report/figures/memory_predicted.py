"""Memory of a step: the predicted peak against the measured one."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import points, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "memory"
PLACE = ("predicted_gib", "measured_gib")


def rows(tables: Tables) -> pd.DataFrame:
    """Runs with a measured peak and a prediction."""
    known = with_machine(tables, ok(tables["profile"], "memory_bytes", "predicted_memory_bytes"))
    return known.assign(
        predicted_gib=known["predicted_memory_bytes"] / 2**30, measured_gib=known["memory_bytes"] / 2**30
    )


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The median deviation and the largest."""
    deviation = (100 * (rows["predicted_memory_bytes"] / rows["memory_bytes"] - 1)).abs()
    return text("finding", count=len(rows), median=deviation.median(), worst=rows.loc[deviation.idxmax()])


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; on the dashed line prediction and measurement agree."""

    def finish(axes: Axes, here: pd.DataFrame) -> list[tuple[float, float]]:
        low, high = here[list(PLACE)].min(axis=None) / 2, here[list(PLACE)].max(axis=None) * 3
        axes.axline((1, 1), (10, 10), **style.LIMIT)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        ticks.decades(axes.xaxis)
        ticks.decades(axes.yaxis)
        return [(each, each) for each in np.geomspace(low, high, 80)]

    points.draw(rows, figure, text, PLACE, (text("predicted"), text("measured_peak")), finish)
