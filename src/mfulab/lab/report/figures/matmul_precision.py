"""Speed and error of a matmul in each number format, by its fastest implementation.

The error is relative to operands that were never rounded. A row holds the error relative to rounded
operands; the error of rounding them is the same on every device, and is computed here.
"""

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Texts, matmuls, specs, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, highest, lowest, ok, with_machine
from mfulab.measurements.number_formats.operands import product_error

TOPIC = "precision"
ORDER = 2
CLAIM = claims.ordered("tflop_s", ["machine"])


def rows(tables: Tables) -> DataFrame:
    """Selects, on each machine with two formats or more, the fastest matmul of each at the largest
    common size."""
    measured = ok(tables["matmul"], "tflop_s", "relative_error")
    square = matmuls.square(with_machine(tables, measured))
    formats = square.groupby(["machine", "n"])["precision"].transform("nunique")
    most = formats.groupby(square["machine"]).transform("max")
    shared = square[(formats == most) & (most > 1)]
    largest = shared.groupby("machine")["n"].transform("max")
    same = shared[shared["n"] == largest]
    if same.empty:
        return same.assign(error=[])
    fastest = same.loc[same.groupby(["machine", "precision"])["tflop_s"].idxmax()]
    errors = []
    for row in fastest.itertuples():
        sides = (int(row.m), int(row.n), int(row.k))
        errors.append(product_error(row.precision, *sides, row.relative_error))
    fastest = fastest.assign(error=errors)
    # A format without error is that of the reference, which is compared with none.
    inexact = fastest[fastest["error"] > 0]
    of_machine = inexact.groupby("machine")["precision"].transform("size")
    return inexact[of_machine > 1]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence that compares the fastest format with the most exact one, on the machine of the
    fastest. Formats that could be as fast are named; by how much they are slower, if single
    processes measured them."""
    fast = highest(rows, "tflop_s")
    here = rows[rows["machine"] == fast["machine"]]
    exact = lowest(here, "error")
    as_fast = claims.ties(here, fast, "tflop_s")
    others = ", ".join(specs.names("precision", as_fast["precision"], text))
    if fast.name == exact.name:
        key = "finding_same"
    elif as_fast.empty:
        key = "finding"
    elif _is_assumed(as_fast, fast):
        key = "finding_once"
        others = "; ".join(_less(row, fast, text) for _, row in as_fast.iterrows())
    else:
        key = "finding_tied"
    return text(
        key,
        fast=fast,
        exact=exact,
        others=others,
        fast_error=f"{fast['error']:.1e}",
        exact_error=f"{exact['error']:.1e}",
    )


def _is_assumed(as_fast: DataFrame, fast: Series) -> bool:
    """True if single processes measured a format: their interval is assumed, and so gives no
    tie."""
    return bool(pd.isna(fast["time_ci_low_s"]) or as_fast["time_ci_low_s"].isna().any())


def _less(row: Series, fast: Series, text: Texts) -> str:
    """By how much less a format measured than the fastest one."""
    name = text.name("precision", row["precision"])
    less = 100 * (1 - row["tflop_s"] / fast["tflop_s"])
    return text("measured_less", precision=name, less=less)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds the names of formats."""
    return rows.assign(named=specs.names("precision", rows["precision"], text))


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic."""
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
