"""Shapes that do not fit: share of the measured ceiling where matmuls are no cubes or no multiples of a tile."""

import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mfulab.lab.report.drawing import Figure, Texts, kinds, matmuls, percent, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, most, ok, own, with_machine

TOPIC, ORDER = "kernels", 2
SHARE, MOST_SHAPES, MOST_KERNELS = "share_of_measured_percent", 16, 16
NO_MATMUL = "elementwise"  # how the names of kernels end that multiply element by element
FITS = 32  # what tiles and vectors divide
FLAT_NAMES = 8  # so many names of implementations stand beside one another, in lines of so many letters
LETTERS = 96
BESIDE = 0.1  # an odd cube is compared with those that fit and are so near in size


def rows(tables: Tables) -> DataFrame:
    """Odd shapes of the machine and precision with most, and cubes to compare, of implementations given both."""
    timed = matmuls.fastest(with_machine(tables, ok(tables["matmul"], SHARE, "m", "n", "k")))
    timed = timed[~timed["kernel"].str.endswith(NO_MATMUL)]
    # Measured or recorded machines, whichever have odd shapes; their cubes too.
    timed = timed[timed["recorded"].isin(own(timed[odd(timed)])["recorded"])]
    here = most(timed, ["machine", "precision"], "size")
    strange = here[odd(here)]
    fits = here[~odd(here) & here["kernel"].isin(strange["kernel"])]
    cubes = strange.loc[matmuls.cube(strange), "n"]
    near = [((n - cubes).abs() <= BESIDE * cubes).any() for n in fits["n"]]
    compared = pd.concat([fits[near] if any(near) else fits[fits["n"] == fits["n"].max()], strange])
    compared = compared.assign(shape=[shape(row) for row in compared[["batch", "m", "n", "k"]].to_dict("records")])
    given = compared.groupby("shape").agg({"kernel": "nunique", "flops": "max"})
    return compared[compared["shape"].isin(given.nlargest(MOST_SHAPES, ["kernel", "flops"]).index)]


def odd(rows: DataFrame) -> Series:
    """True for a matmul that is not n × n × n, or whose n is no multiple of a common tile."""
    return ~(matmuls.cube(rows) & (rows["n"] % FITS == 0))


def shape(row: Mapping[str, Any] | Series) -> str:
    """`1024³`, `16×1024×1024`, and of a batch `32 · 128³`."""
    sides = [int(row[side]) for side in ("m", "n", "k")]
    single = f"{sides[0]}³" if len(set(sides)) == 1 else "×".join(map(str, sides))
    return f"{int(row['batch'])} · {single}" if row["batch"] > 1 else single


def finding(rows: DataFrame, text: Texts) -> str:
    """The shape that costs most against the best shape, for the implementation that is fastest overall."""
    here = rows[rows["kernel"] == rows.groupby("kernel")[SHARE].max().idxmax()]
    best, worst = here.loc[here[SHARE].idxmax()], here.loc[here[SHARE].idxmin()]
    return text("finding_one" if best[SHARE] == worst[SHARE] else "finding", best=best, worst=worst)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A heat map: shapes down, implementations across, each cell its share of the measured ceiling in percent."""
    rows = rows.assign(batched=rows["batch"] > 1, flat=~matmuls.cube(rows))
    shapes = list(rows.sort_values(["batched", "flat", "flops"])["shape"].drop_duplicates())
    kernels = list(rows.groupby("kernel")[SHARE].median().nlargest(MOST_KERNELS).index)
    table = rows.pivot_table(index="shape", columns="kernel", values=SHARE).reindex(shapes, columns=kernels)
    shown = rows[rows["kernel"].isin(kernels)].drop_duplicates(["shape", "kernel"])
    axes, turned, small = figure.subplots(), len(kernels) > FLAT_NAMES, 8 if len(kernels) > 8 else 10
    look = style.Look(small=small, vmin=0, cbar_kws={"label": text("share")})
    kinds.cells(axes, table, table.map(percent), shown, "kernel", "shape", SHARE, "tflop_s", **look)
    axes.set_ylabel(text("shape"))
    axes.tick_params(labelsize=small + 1)
    if turned:
        axes.set_xticks(axes.get_xticks(), kernels, rotation=35, ha="right", rotation_mode="anchor")
    else:
        lines = [textwrap.fill(name.replace("_", "_ "), LETTERS // len(kernels)).replace("_ ", "_") for name in kernels]
        axes.set_xticks(axes.get_xticks(), lines, rotation=0)
