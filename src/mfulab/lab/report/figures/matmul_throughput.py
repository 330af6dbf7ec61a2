"""Throughput of a matmul over its size, in every implementation."""

from functools import partial

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Legend, Texts, matmuls, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, highest, lowest, ok, those, with_machine

TOPIC = "kernels"
ORDER = 0


def rows(tables: Tables) -> DataFrame:
    """Selects square matmuls in the precision that most implementations share. On machines with
    curves, implementations without one are left out."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "tflop_s", "n")))
    square = selection.largest(square, ["precision"], "kernel").sort_values("n")
    # Machines with too few sizes are in the figure `kernel_ladder`.
    square = selection.pick(square, "short")
    is_curve = square.groupby(["machine", "kernel"])["n"].transform("nunique") > 1
    has_curve = is_curve.groupby(square["machine"]).transform("any")
    return those(square, is_curve | ~has_curve)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the fastest and slowest implementation at the largest size that most have."""
    here = rows[rows["machine"] == rows["machine"].iloc[0]]
    kernels = here.groupby("n")["kernel"].nunique()
    largest = kernels.index[kernels == kernels.max()].max()
    here = here[here["n"] == largest]
    best = highest(here, "tflop_s")
    worst = lowest(here, "tflop_s")
    key = "finding_one"
    if claims.differs(worst, best, "tflop_s"):
        key = "finding"
    factor = best["tflop_s"] / worst["tflop_s"]
    error = here["relative_error"].max()
    return text(
        key,
        best=best,
        worst=worst,
        factor=factor,
        error=error,
    )


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic and draws the measured ceiling."""
    ticks.doublings(axes, rows["n"])
    axes.set(yscale="log", ymargin=0.1)
    for ceiling in here["ceiling_tflop_s"].dropna().nlargest(1):
        axes.axhline(ceiling, **style.LIMIT)
    ticks.speeds(axes)


def _ceiling(rows: DataFrame, text: Texts) -> Legend:
    """Legend entry for measured ceilings; empty if there are none."""
    if rows["ceiling_tflop_s"].isna().all():
        return []
    return [style.line(style.MUTED, text("ceiling"), (4, 3))]


draw = specs.Lines(
    x="n",
    y="tflop_s",
    x_label="size",
    hue="family",
    kind="family",
    colors=partial(style.usual_colors, usual=style.FAMILIES),
    marker="s",
    by=["kernel"],
    named="kernel",
    finished=_finished,
    entries=_ceiling,
    below=True,
    shared={"sharex": True},
    look={"s": 25},
)
