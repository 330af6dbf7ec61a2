"""One matrix product in every implementation: throughput and error against its size."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mfulab.language import Texts
from mfulab.language.quantities import quantity, significant
from mfulab.report import labels, matmuls, style
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 0
MOST_ERRORS = 8  # that are named: the largest; most implementations err alike


def rows(tables: Tables) -> pd.DataFrame:
    """Square products of the precision that most implementations share."""
    timed = with_machine(tables, ok(tables["matmul"], "tflop_s", "n"))
    square = matmuls.square(timed)
    if square.empty:
        return square
    common = square.groupby("precision")["kernel"].nunique().idxmax()
    return square[square["precision"] == common].sort_values("n")


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The fastest and the slowest implementation of the largest size that several have."""
    here = rows[rows["machine"] == rows["machine"].iloc[0]]
    shared = here.groupby("n")["kernel"].nunique()
    largest = shared[shared == shared.max()].index.max()
    here = here[here["n"] == largest]
    best, worst = here.loc[here["tflop_s"].idxmax()], here.loc[here["tflop_s"].idxmin()]
    return text(
        "finding",
        size=int(largest),
        precision=text.name("precision", best["precision"]),
        machine=best["machine"],
        best=best["kernel"],
        best_speed=quantity(best["tflop_s"] * 1e12, "FLOP/s"),
        worst=worst["kernel"],
        worst_speed=quantity(worst["tflop_s"] * 1e12, "FLOP/s"),
        factor=significant(best["tflop_s"] / worst["tflop_s"]),
        error=f"{here['relative_error'].max():.1e}",
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Left FLOP/s with the measured ceiling, right the relative error with its tolerance; one row a machine.

    A family has one colour, and a rung's shade of it is the darker the higher it stands.
    """
    machines = style.machines(rows)
    titles = [text("speed"), text("error")]
    grid = style.panels(figure, machines, titles, sharex=True, width_ratios=[1.5, 1])
    families = style.family_colors(rows["family"])
    colors = style.shades(rows.sort_values("rung"), "kernel", rows["family"].map(families))
    every = sorted(rows["n"].unique())
    powers = [n for n in every if np.log2(n) % 1 == 0]
    sizes = powers if len(powers) > 1 else every
    for machine in machines:
        here = rows[rows["machine"] == machine]
        speed, error = grid[machine, titles[0]], grid[machine, titles[1]]
        for kernel, line in here.groupby("kernel", sort=False):
            look = {"color": colors[kernel], "marker": "o", "markersize": 5, "gid": kernel}
            speed.plot(line["n"], line["tflop_s"], **look)
            error.plot(line["n"], line["relative_error"], **look)
        ceiling = here["ceiling_tflop_s"].max()
        if ceiling == ceiling:
            speed.axhline(ceiling, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
            speed.text(0.01, ceiling, text("ceiling"), transform=speed.get_yaxis_transform(), va="bottom", fontsize=9)
        if here["tolerance"].notna().any():
            bound = here.groupby("n")["tolerance"].max()
            error.plot(bound.index, bound, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
            where = {"textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 9}
            error.annotate(text("tolerance"), (bound.index[-1], bound.iloc[-1]), (0, -8), **where)
        for axes in (speed, error):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(FixedLocator(sizes if len(sizes) < 7 else sizes[:: len(sizes) // 5]))
            axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.margins(y=0.1)
        style.speeds(speed)
        style.decades(error.yaxis)
        error.set_ylabel("‖C − R‖ / ‖R‖")
    for title in titles:
        grid[machines[-1], title].set_xlabel(text("size"))
    style.legend(figure, [style.dot(color, text.name("family", name), "s") for name, color in families.items() if name])
    labels.settle(figure)
    for machine in machines:
        last = rows[rows["machine"] == machine].groupby("kernel").last().reset_index()
        for title, value, most in zip(titles, ("tflop_s", "relative_error"), (len(last), MOST_ERRORS), strict=True):
            known = last[last[value] > 0].nlargest(most, value)
            ends = zip(known["n"], known[value], known["kernel"], known["kernel"].map(colors), strict=True)
            labels.at_line_ends(grid[machine, title], list(ends))
