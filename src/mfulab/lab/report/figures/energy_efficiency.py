"""Energy: FLOPs per joule against MFU."""

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report.drawing import Figure, Texts, points, ticks
from mfulab.lab.report.frames import Tables, ok, with_machine

TOPIC = "energy"
PLACE = ("mfu_percent", "gflop_per_j")


def rows(tables: Tables) -> pd.DataFrame:
    """Runs whose energy was measured."""
    measured = with_machine(tables, ok(tables["profile"], "flops_per_j", "mfu_percent", "samples_per_j"))
    measured = measured[measured["flops_per_j"] > 0]  # without FLOPs nothing is compared
    return measured.assign(gflop_per_j=measured["flops_per_j"] / 1e9)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The most and the least efficient run."""
    best, worst = rows.loc[rows["flops_per_j"].idxmax()], rows.loc[rows["flops_per_j"].idxmin()]
    values = {"factor": best["flops_per_j"] / worst["flops_per_j"], "sample_j": 1 / best["samples_per_j"]}
    return text("finding_one" if values["factor"] == 1 else "finding", best=best, worst=worst, **values)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; colour is the precision, size the batch."""

    def finish(axes: Axes, here: pd.DataFrame) -> list[tuple[float, float]]:
        axes.set(xlim=(0, 1.3 * here["mfu_percent"].max()))
        ticks.decades(axes.yaxis)
        return []

    points.draw(rows, figure, text, PLACE, (text("mfu"), "GFLOP/J"), finish, sharey=True)
