"""Energy: FLOPs per joule by batch size."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, curves, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, highest, lowest, ok, spread, with_machine

TOPIC = "energy"
PER_JOULE = "flops_per_j"
MACHINES = 2  # panels, side by side
MOST = 6  # lines of a machine, each with a name


def rows(tables: Tables) -> DataFrame:
    """Selects runs whose energy was measured, of at most MOST series of each machine. `undrawn` is
    the number of the machine's other runs."""
    needed = ("flops_per_j", "mfu_percent", "samples_per_j", "batch_size")
    measured = with_machine(tables, ok(tables["profile"], *needed))
    measured = measured[measured["flops_per_j"] > 0]  # rows without FLOPs cannot be compared
    measured = measured.assign(
        gflop_per_j=measured["flops_per_j"] / 1e9,
        sample_j=1 / measured["samples_per_j"],
        series=measured.groupby(curves.KEYS, dropna=False).ngroup(),
    )
    best = measured.sort_values(PER_JOULE).drop_duplicates("series", keep="last")
    kept = []
    for _, here in best.groupby("machine", sort=False):
        kept += [*spread(here, MOST)["series"]]
    drawn = measured[measured["series"].isin(kept)]
    others = measured["machine"].value_counts() - drawn["machine"].value_counts()
    drawn = drawn.assign(undrawn=drawn["machine"].map(others))
    return drawn.sort_values("batch_size", kind="stable")


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


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and counts the runs that it leaves out."""
    return selection.reading_of_few(rows, text, MOST)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds the names of lines."""
    modes = specs.names("mode", rows["mode"], text)
    return rows.assign(named=rows["model"] + ", " + modes)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Sets ticks."""
    ticks.doublings(axes, rows["batch_size"])
    axes.margins(y=0.1)
    ticks.decades(axes.yaxis)


draw = specs.Lines(
    x="batch_size",
    y="gflop_per_j",
    told=("gflop_per_j", "sample_j", "mfu_percent"),
    x_label="batch_size",
    y_label="gflop_per_j",
    by=curves.KEYS,
    named="named",
    hue="precision",
    kind="precision",
    colors=style.usual_colors,
    dressed=_dressed,
    finished=_finished,
    shared={"sharey": True},
    look={"s": 36},
)
