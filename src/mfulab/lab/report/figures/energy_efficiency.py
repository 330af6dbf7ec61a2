"""Energy: FLOPs per joule against MFU."""

from mfulab.lab.report.drawing import Figure, Texts, points, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

TOPIC = "energy"


def rows(tables: Tables) -> DataFrame:
    """Runs whose energy was measured."""
    measured = with_machine(tables, ok(tables["profile"], "flops_per_j", "mfu_percent", "samples_per_j"))
    measured = measured[measured["flops_per_j"] > 0]  # without FLOPs nothing is compared
    return measured.assign(gflop_per_j=measured["flops_per_j"] / 1e9)


def finding(rows: DataFrame, text: Texts) -> str:
    """The most and the least efficient run."""
    best, worst = rows.loc[rows["flops_per_j"].idxmax()], rows.loc[rows["flops_per_j"].idxmin()]
    values = {"factor": best["flops_per_j"] / worst["flops_per_j"], "sample_j": 1 / best["samples_per_j"]}
    return text("finding_one" if values["factor"] == 1 else "finding", best=best, worst=worst, **values)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; colour is the precision, size the batch."""
    place = "mfu_percent", "gflop_per_j"
    for axes, here in points.panels(figure, rows, place, x=text("mfu"), y="GFLOP/J", sharey=True):
        axes.set(xlim=(0, 1.3 * here["mfu_percent"].max()))
        ticks.decades(axes.yaxis)
    points.legend(figure, rows, text, [])
