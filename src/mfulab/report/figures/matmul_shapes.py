"""Shapes that do not fit: share of the measured ceiling where products are no cubes or no multiples of a tile."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from mfulab.language import Texts
from mfulab.language.quantities import percent
from mfulab.report import matmuls, style
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 2
MOST_SHAPES, MOST_KERNELS = 16, 16
FITS = 32  # what tiles and vectors divide


def rows(tables: Tables) -> pd.DataFrame:
    """The machine and precision with the most shapes, if any of them is odd."""
    timed = matmuls.fastest(with_machine(tables, ok(tables["matmul"], "share_of_measured_percent", "m", "n", "k")))
    if timed.empty:
        return timed
    place = timed.groupby(["machine", "precision"])["size"].nunique().idxmax()
    here = timed[(timed["machine"] == place[0]) & (timed["precision"] == place[1])]
    return here if odd(here).any() else here.head(0)


def odd(rows: pd.DataFrame) -> pd.Series:
    """Whether a product is not n × n × n, or n no multiple of a common tile."""
    cube = (rows["m"] == rows["n"]) & (rows["n"] == rows["k"]) & (rows["batch"].fillna(1) == 1)
    return ~(cube & (rows["n"] % FITS == 0))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The shape that costs most against the best shape, for the implementation that is fastest overall."""
    kernel = rows.groupby("kernel")["share_of_measured_percent"].max().idxmax()
    here = rows[rows["kernel"] == kernel]
    best, worst = (here.loc[here["share_of_measured_percent"].agg(which)] for which in ("idxmax", "idxmin"))
    return text(
        "finding",
        kernel=kernel,
        machine=best["machine"],
        best=best["size"],
        best_share=percent(best["share_of_measured_percent"]),
        worst=worst["size"],
        worst_share=percent(worst["share_of_measured_percent"]),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A heat map: shapes down, implementations across, each cell its share of the measured ceiling in percent."""
    work = rows.groupby("size")["flops"].first().sort_values()
    shapes = list(work.index[-MOST_SHAPES:])
    kernels = list(rows.groupby("kernel")["share_of_measured_percent"].median().nlargest(MOST_KERNELS).index)
    table = rows.pivot_table(index="size", columns="kernel", values="share_of_measured_percent").reindex(
        shapes, columns=kernels
    )
    axes = figure.subplots()
    words = table.map(lambda share: "" if share != share else percent(share))
    small = 8 if len(kernels) > 8 else 10
    sns.heatmap(
        table,
        ax=axes,
        cmap="crest",
        vmin=0,
        annot=words,
        fmt="",
        annot_kws={"fontsize": small},
        linewidths=1,
        linecolor=style.PAPER,
        cbar_kws={"label": text("share")},
    )
    axes.set(xlabel="", ylabel=text("shape"))
    axes.tick_params(axis="x", labelrotation=35, labelsize=small + 1)
    axes.tick_params(axis="y", labelrotation=0, labelsize=small + 1)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
