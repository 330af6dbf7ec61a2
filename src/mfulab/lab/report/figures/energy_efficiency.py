"""Energy: FLOPs per joule over MFU."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Legend, Texts, curves, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, highest, lowest, ok, with_machine

TOPIC = "energy"
PER_JOULE = "flops_per_j"
ROOM = 1.5  # length of the x axis ÷ highest MFU, so that names have room on a phone, too


def rows(tables: Tables) -> DataFrame:
    """Selects runs whose energy was measured."""
    needed = ("flops_per_j", "mfu_percent", "samples_per_j")
    measured = with_machine(tables, ok(tables["profile"], *needed))
    measured = measured[measured["flops_per_j"] > 0]  # rows without FLOPs cannot be compared
    gflop_per_j = measured["flops_per_j"] / 1e9
    return measured.assign(gflop_per_j=gflop_per_j, sample_j=1 / measured["samples_per_j"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the run that gets most from a joule, and on the largest difference between
    batch sizes of one model, mode and format: others do other work. A batch size measured more
    than once counts with its median."""
    sentences = [text("finding", best=highest(rows, PER_JOULE))]
    gains = {}
    for _, alike in curves.series(rows).groupby(curves.KEYS, dropna=False, sort=False):
        high = highest(alike, PER_JOULE)
        low = lowest(alike, PER_JOULE)
        if claims.differs(low, high, PER_JOULE):
            gains[high[PER_JOULE] / low[PER_JOULE]] = (low, high)
    if gains:
        factor = max(gains)
        low, high = gains[factor]
        run = curves.named(high, text)
        sentences.append(
            text(
                "within",
                run=run,
                factor=factor,
                low=low,
                high=high,
            )
        )
    return " ".join(sentences)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Sets limits and ticks."""
    axes.set(xlim=(0, ROOM * here["mfu_percent"].max()))
    ticks.decades(axes.yaxis)


def _sizes(rows: DataFrame, text: Texts) -> Legend:
    """Legend entry for the sizes of points; empty if all are equal."""
    if rows["batch_size"].nunique() > 1:
        return [style.dot(style.MUTED, text("dot_size"))]
    return []


draw = specs.Runs(
    x="mfu_percent",
    y="gflop_per_j",
    x_label="mfu",
    hue="precision",
    kind="precision",
    colors=style.usual_colors,
    finished=_finished,
    entries=_sizes,
    shared={"sharey": True, "y": "GFLOP/J"},
)
