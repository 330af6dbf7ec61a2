"""Speed and error of a matmul in each number format, by its fastest implementation.

The error is relative to operands that were never rounded. A row holds the error relative to rounded
operands; the error of rounding them is the same on every device, and is computed here.
"""

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Texts, matmuls, specs, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok, with_machine
from mfulab.measurements.number_formats.operands import product_error

TOPIC = "precision"
ORDER = 2
CLAIM = claims.ordered("tflop_s", ["machine"])
SIDES = ["precision", "m", "n", "k", "relative_error"]


def rows(tables: Tables) -> DataFrame:
    """Selects, on each machine with two formats or more, the fastest matmul of each at the largest
    common size."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "tflop_s", "relative_error")))
    formats = square.groupby(["machine", "n"])["precision"].transform("nunique")
    most = formats.groupby(square["machine"]).transform("max")
    shared = square[(formats == most) & (most > 1)]
    same = shared[shared["n"] == shared.groupby("machine")["n"].transform("max")]
    if not len(same):
        return same.assign(error=[])
    fastest = same.loc[same.groupby(["machine", "precision"])["tflop_s"].idxmax()]
    errors = [
        product_error(name, int(m), int(n), int(k), relative_error)
        for name, m, n, k, relative_error in fastest[SIDES].itertuples(index=False)
    ]
    fastest = fastest.assign(error=errors)
    # A format without error is that of the reference, which is compared with none.
    inexact = fastest[fastest["error"] > 0]
    of_machine = inexact.groupby("machine")["precision"].transform("size")
    return inexact[of_machine > 1]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence that compares the fastest format with the most exact one, on the machine of the
    fastest. Formats that could be as fast are named; by how much they are slower, if single
    processes measured them."""
    fast = rows.loc[rows["tflop_s"].idxmax()]
    here = rows[rows["machine"] == fast["machine"]]
    exact = here.loc[here["error"].idxmin()]
    errors = {"fast_error": f"{fast['error']:.1e}", "exact_error": f"{exact['error']:.1e}"}
    as_fast = claims.ties(here, fast, "tflop_s")
    names = ", ".join(specs.names("precision", as_fast["precision"], text))
    both = pd.concat([as_fast, fast.to_frame().T])
    if fast.name == exact.name:
        key = "finding_same"
    elif names and both["time_ci_low_s"].isna().any():
        # Without several processes the interval is assumed, and so gives no tie.
        key = "finding_once"
        names = "; ".join(_less(row, fast, text) for _, row in as_fast.iterrows())
    elif names:
        key = "finding_tied"
    else:
        key = "finding"
    return text(key, fast=fast, exact=exact, others=names, **errors)


def _less(row: Series, fast: Series, text: Texts) -> str:
    """By how much less a format measured than the fastest one."""
    name = text.name("precision", row["precision"])
    less = 100 * (1 - row["tflop_s"] / fast["tflop_s"])
    return text("measured_less", precision=name, less=less)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    return rows.assign(named=specs.names("precision", rows["precision"], text))


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.set_ylim(here["tflop_s"].min() / 3, here["tflop_s"].max() * 3)
    ticks.speeds(axes)


# More exact to the left, faster to the top.
draw = specs.Points(
    x="error",
    y="tflop_s",
    told=("error", "tflop_s"),
    x_label="error",
    named="named",
    dressed=_dressed,
    finished=_finished,
    shared={"sharex": True},
    look={"s": 90, "clip_on": False},
)
