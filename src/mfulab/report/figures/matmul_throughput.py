"""One matmul in every implementation: throughput and error against its size."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, labels, matmuls, runs, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 0
HEIGHTS = [1.5, 1]  # of the two panels of a machine: speeds differ more than errors
MOST_ERRORS = 8  # that are named: the largest; most implementations err alike
FEWEST = 6  # kernels below which the figure becomes no lower


def rows(tables: Tables) -> pd.DataFrame:
    """Square matmuls of the precision that most implementations share."""
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
    here = here[here["n"] == shared[shared == shared.max()].index.max()]
    best, worst = here.loc[here["tflop_s"].idxmax()], here.loc[here["tflop_s"].idxmin()]
    values = {"factor": best["tflop_s"] / worst["tflop_s"], "error": here["relative_error"].max()}
    return text("finding_one" if values["factor"] == 1 else "finding", best=best, worst=worst, **values)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """FLOP/s with the measured ceiling above, the relative error with its tolerance below; a pair for each machine.

    A family has one colour, and a rung's shade of it is the darker the higher it stands.
    """
    machines = style.machines(rows)
    words = [text("speed"), text("error")]
    pairs = {machine: [f"{machine} · {word}" if len(machines) > 1 else word for word in words] for machine in machines}
    titles = [title for pair in pairs.values() for title in pair]
    grid = style.panels(figure, titles, [""], sharex=True, height_ratios=HEIGHTS * len(machines))
    style.fit(figure, len(machines) * max(FEWEST, rows["kernel"].nunique()))
    families = style.family_colors(rows["family"])
    colors = style.shades(matmuls.from_the_lowest(rows), "kernel", rows["family"].map(families))
    for machine in machines:
        here = rows[rows["machine"] == machine]
        speed, error = (grid[title, ""] for title in pairs[machine])
        for axes, value in ((speed, "tflop_s"), (error, "relative_error")):
            kinds.lines(axes, here, "n", value, hue="kernel", colors=colors, s=25)
            ticks.doublings(axes, rows["n"])
            axes.set_yscale("log")
            axes.margins(y=0.1)
        ceiling = here["ceiling_tflop_s"].max()
        if ceiling == ceiling:
            speed.axhline(ceiling, **style.LIMIT)
            speed.text(0.01, ceiling, text("ceiling"), transform=speed.get_yaxis_transform(), va="bottom", fontsize=9)
        if here["tolerance"].notna().any():
            bound = here.groupby("n")["tolerance"].max()
            error.plot(bound.index, bound, **style.LIMIT)
            where = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": 9}
            error.annotate(text("tolerance"), (bound.index[-1], bound.iloc[-1]), (0, 3), **where)
        ticks.speeds(speed)
        ticks.decades(error.yaxis)
        error.set_ylabel("‖C − R‖ / ‖R‖")
    style.label(figure, text("size"))
    named = {name: color for name, color in families.items() if name}
    style.legend(figure, style.dots(named, text, "family", "s") + runs.key(rows, text))
    labels.settle(figure)
    for machine in machines:
        last = rows[rows["machine"] == machine].groupby("kernel").last().reset_index()
        most = (len(last), MOST_ERRORS)
        for title, value, count in zip(pairs[machine], ("tflop_s", "relative_error"), most, strict=True):
            known = last[last[value] > 0].nlargest(count, value)
            ends = zip(known["n"], known[value], known["kernel"], known["kernel"].map(colors), strict=True)
            labels.at_line_ends(grid[title, ""], list(ends))
