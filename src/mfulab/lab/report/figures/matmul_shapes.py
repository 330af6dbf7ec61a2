"""Unfavourable shapes: share of the measured ceiling for matmuls that are not cubes or not
multiples of a tile."""

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from mfulab.core.parts import Row
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, matmuls, percent
from mfulab.lab.report.frames import DataFrame, Series, Tables, highest, lowest, ok, with_machine

TOPIC = "kernels"
ORDER = 2
SHARE = "share_of_measured_percent"
MOST_SHAPES = 16
MOST_KERNELS = 16
NO_MATMUL = "elementwise"  # suffix of kernels that multiply element by element
FITS = 32  # a side fits if it is a multiple
FLAT_NAMES = 8  # names of columns that are not rotated
LETTERS = 96  # in one line of all of them
BESIDE = 0.1  # relative difference in size up to which odd cubes are compared with fitting ones


def rows(tables: Tables) -> DataFrame:
    """Selects odd shapes of the machine and precision with the most of them, and cubes to compare
    with, for implementations that have both."""
    timed = matmuls.fastest(
        with_machine(
            tables,
            ok(
                tables["matmul"],
                SHARE,
                "m",
                "n",
                "k",
            ),
        )
    )
    timed = timed[~timed["kernel"].str.endswith(NO_MATMUL)]
    # Keep measured or recorded machines, whichever have odd shapes, with their other shapes.
    shown = selection.pick(timed[odd(timed)], "recorded")
    timed = timed[timed["recorded"].isin(shown["recorded"])]
    here = selection.largest(timed, ["machine", "precision"], "size")
    strange = here[odd(here)]
    fitting = here[~odd(here) & here["kernel"].isin(strange["kernel"])]
    compared = pd.concat([_to_compare_with(strange, fitting), strange])
    shapes = [shape(row) for row in compared[["batch", "m", "n", "k"]].to_dict("records")]
    compared = compared.assign(shape=shapes)
    by_shape = compared.groupby("shape").agg({"kernel": "nunique", "flops": "max"})
    most_kernels = by_shape.nlargest(MOST_SHAPES, ["kernel", "flops"])
    return compared[compared["shape"].isin(most_kernels.index)]


def _to_compare_with(strange: DataFrame, fitting: DataFrame) -> DataFrame:
    """Fitting cubes about as large as odd ones, or the largest fitting ones if there are none."""
    odd_sizes = strange.loc[matmuls.cube(strange), "n"]
    is_near = pd.Series(False, fitting.index)
    for size in odd_sizes:
        is_near |= (fitting["n"] - size).abs() <= BESIDE * size
    if is_near.any():
        return fitting[is_near]
    return fitting[fitting["n"] == fitting["n"].max()]


def odd(rows: DataFrame) -> Series:
    """True for matmuls that are not n × n × n, or whose n is not a multiple of a common tile."""
    return ~(matmuls.cube(rows) & (rows["n"] % FITS == 0))


def shape(row: Row | Series) -> str:
    """Name of a shape: `1024³`, `16×1024×1024`, or with a batch `32 · 128³`."""
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    single = f"{m}×{n}×{k}"
    if m == n == k:
        single = f"{n}³"
    if row["batch"] > 1:
        return f"{int(row['batch'])} · {single}"
    return single


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the worst and the best shape, for the fastest implementation."""
    fastest = rows.groupby("kernel")[SHARE].max().idxmax()
    here = rows[rows["kernel"] == fastest]
    best = highest(here, SHARE)
    worst = lowest(here, SHARE)
    key = "finding_one"
    if claims.differs(worst, best, SHARE):
        key = "finding"
    return text(key, best=best, worst=worst)


def _shapes(rows: DataFrame) -> list[str]:
    """Shapes from top to bottom: single before batched, cubes before others, small before large."""
    placed = rows.assign(batched=rows["batch"] > 1, flat=~matmuls.cube(rows))
    ordered = placed.sort_values(["batched", "flat", "flops"])
    return list(ordered["shape"].drop_duplicates())


def _name_kernels(axes: Axes, kernels: Sequence[str]) -> None:
    """Labels the columns: in wrapped lines, or rotated if there are many."""
    places = axes.get_xticks()
    if len(kernels) > FLAT_NAMES:
        axes.set_xticks(places, kernels, rotation=35, ha="right", rotation_mode="anchor")
        return
    width = LETTERS // len(kernels)
    names = []
    for name in kernels:
        breakable = name.replace("_", "_ ")
        names.append(textwrap.fill(breakable, width).replace("_ ", "_"))
    axes.set_xticks(places, names, rotation=0)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a heat map of the share of the measured ceiling in percent: shapes down,
    implementations across."""
    medians = rows.groupby("kernel")[SHARE].median()
    kernels = list(medians.nlargest(MOST_KERNELS).index)
    table = rows.pivot_table(index="shape", columns="kernel", values=SHARE)
    table = table.reindex(_shapes(rows), columns=kernels)
    shown = rows[rows["kernel"].isin(kernels)].drop_duplicates(["shape", "kernel"])
    axes = figure.subplots()
    small = 10
    if len(kernels) > FLAT_NAMES:
        small = 8
    kinds.cells(
        axes,
        table,
        table.map(percent),
        shown,
        "kernel",
        "shape",
        SHARE,
        "tflop_s",
        small=small,
        vmin=0,
        cbar_kws={"label": text("share")},
    )
    axes.set_ylabel(text("shape"))
    axes.tick_params(labelsize=small + 1)
    _name_kernels(axes, kernels)
