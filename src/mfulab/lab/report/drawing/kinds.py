"""Points, lines, bars, stacks and heat maps of rows, drawn by seaborn. Each row is one mark,
without further estimation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mfulab.core.parts import pick_present
from mfulab.lab.report.drawing import runs, style
from mfulab.lab.report.frames import DataFrame, Series


@contextmanager
def _unlabelled(axes: Axes) -> Iterator[None]:
    """Keeps the labels of the axes, which seaborn would replace by names of columns. A blank label
    keeps seaborn from setting one."""
    labels = {"xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel()}
    axes.set(xlabel=labels["xlabel"] or " ", ylabel=labels["ylabel"] or " ")
    yield
    axes.set(**labels)


def points(
    axes: Axes,
    rows: DataFrame,
    x: str,
    y: str,
    *tooltip: str,
    x_interval: Sequence[str] = (),
    y_interval: Sequence[str] = (),
    **look: Any,
) -> None:
    """Draws a point for each row at `x` and `y`. `tooltip` are columns of its tooltip. `x_interval`
    and `y_interval` are the columns of an interval's ends."""
    looks = []
    for word in ("hue", "style", "size"):
        if look.get(word):
            looks.append(look[word])
    ends = [*x_interval, *y_interval]
    read = dict.fromkeys([x, y, *tooltip, *looks, *ends, *runs.NAMED, runs.DOUBTFUL])
    rows = rows.filter([*read]).dropna(subset=[x, y])  # only the columns needed, as rows have many
    if rows.empty:
        return
    usual = {
        "color": style.PALETTE[0],
        "s": 49,
        "linewidth": 0,
        "zorder": 3,
        "rasterized": len(rows) > style.MANY,
    }
    with _unlabelled(axes):
        sns.scatterplot(
            rows,
            x=x,
            y=y,
            legend=False,
            ax=axes,
            **usual | look,
        )
    runs.mark(axes.collections[-1], rows, *(tooltip or (x, y)))
    if ends:
        _draw_intervals(axes, rows, x, y, x_interval, y_interval, look)


def _draw_intervals(
    axes: Axes,
    rows: DataFrame,
    x: str,
    y: str,
    x_interval: Sequence[str],
    y_interval: Sequence[str],
    look: style.Look,
) -> None:
    """Draws the interval of each point in the colour of its hue."""
    reach = {}
    if x_interval:
        reach["xerr"] = _reach(rows, x, *x_interval)
    if y_interval:
        reach["yerr"] = _reach(rows, y, *y_interval)
    ink = rows[look["hue"]].map(look["palette"]).tolist()
    axes.errorbar(
        rows[x],
        rows[y],
        **reach,
        fmt="none",
        ecolor=ink,
        elinewidth=1.3,
    )


def _reach(rows: DataFrame, column: str, low: str, high: str) -> list[Series]:
    """Lengths of the intervals below and above the values of a column; 0 where they are
    unknown."""
    below = rows[column] - rows[low]
    above = rows[high] - rows[column]
    return [below.clip(lower=0).fillna(0), above.clip(lower=0).fillna(0)]


def lines(
    axes: Axes,
    rows: DataFrame,
    x: str,
    y: str,
    *tooltip: str,
    by: Sequence[str] = (),
    dash: str = "",
    dashes: Mapping[Any, Any] | None = None,
    linewidth: float = 2,
    **look: Any,
) -> None:
    """Draws a line and its points for each distinct value of `by` (default: hue and dash), in the
    order of rows."""
    rows = rows.dropna(subset=[x, y])
    if rows.empty:
        return
    keys = [*by] or list(filter(None, dict.fromkeys([look.get("hue"), dash])))
    series = 0
    if keys:
        series = rows.groupby(keys, dropna=False, sort=False).ngroup()
    inks = {"color": style.PALETTE[0]} | pick_present(look, ("hue", "palette", "color"))
    kinds = {}
    if dashes:
        kinds = {"style": dash, "dashes": dashes}
    with _unlabelled(axes):
        sns.lineplot(
            rows.assign(series=series),
            x=x,
            y=y,
            **inks,
            **kinds,
            units="series",
            estimator=None,
            sort=False,
            legend=False,
            ax=axes,
            linewidth=linewidth,
            marker="",
            markersize=0,
        )
    points(axes, rows, x, y, *tooltip, **look)


def bars(
    axes: Axes,
    rows: DataFrame,
    value: str,
    name: str,
    *tooltip: str,
    order: Sequence[str] | None = None,
    words: str = "",
    beyond: float = 0,
    pale: str = "",
    start: str = "",
    upright: bool = False,
    fontsize: float = 9,
    labelsize: float = 0,
    **look: Any,
) -> None:
    """Draws a bar for each row, the first at the top (at the left if `upright`). Bars start at the
    column `start`, end with the text of the column `words`, and are pale if `pale` is False.
    A text that a line at `beyond` would cross stands beyond it. Without hue and order, every row
    has a line of its own."""
    lanes, names = _lanes(rows, value, name, order, look)
    drawn: list[Rectangle] = []
    if len(lanes):
        if start:
            look["bottom" if upright else "left"] = lanes[start].to_numpy()
        drawn = _drawn_bars(axes, lanes, value, upright, look)
    runs.mark(drawn, lanes, *(tooltip or (value,)))
    if pale:
        for bar, differs in zip(drawn, lanes[pale], strict=True):
            if not differs:
                bar.set_alpha(style.PALE)
    set_ticks = axes.set_xticks if upright else axes.set_yticks
    set_ticks(range(len(names)), names)
    axes.grid(axis="x" if upright else "y", visible=False)
    if labelsize:
        axes.tick_params(axis="y", labelsize=labelsize)
    if words:
        _label_ends(axes, drawn, lanes[words], beyond, fontsize)


LANES = "lane"  # column with the line of each bar


def _lanes(
    rows: DataFrame, value: str, name: str, order: Sequence[str] | None, look: style.Look
) -> tuple[DataFrame, list[str]]:
    """Returns the rows with a value, in seaborn's drawing order and with LANES, and the names of
    all lines. Sets the order of lines and hues in `look`."""
    names = list(order or dict.fromkeys(rows[name]))
    lanes = rows.assign(**{LANES: rows[name]})
    look["order"] = names
    if order is None and "hue" not in look:
        names = list(rows[name])
        look["order"] = list(map(str, range(len(rows))))
        lanes[LANES] = look["order"]
    lanes = lanes.dropna(subset=[value])
    lanes = lanes.sort_values(
        LANES,
        key=lambda lane: lane.map(look["order"].index),
        kind="stable",
    )
    if "hue" in look:
        hues = look["hue_order"] = [*look["palette"]]
        lanes = lanes.sort_values(
            look["hue"],
            key=lambda hue: hue.map(hues.index),
            kind="stable",
        )
    return lanes, names


def _drawn_bars(
    axes: Axes, lanes: DataFrame, value: str, upright: bool, look: style.Look
) -> list[Rectangle]:
    """Draws the bars and returns them, one for each row in order."""
    before = len(axes.patches)
    place = {"x": LANES, "y": value} if upright else {"x": value, "y": LANES}
    usual = {
        "color": style.PALETTE[0],
        "linewidth": 0,
        "width": 0.7,
        "orient": "x" if upright else "y",
        "errorbar": None,
        "saturation": 1,
        "legend": False,
    }
    with _unlabelled(axes):
        sns.barplot(lanes, **place, ax=axes, **usual | look)
    return list(axes.patches[before:])


def _label_ends(
    axes: Axes, drawn: Sequence[Rectangle], labels: Series, beyond: float, fontsize: float
) -> None:
    """Writes a label after the end of each bar, or beyond a line that it would cross."""
    for bar, label in zip(drawn, labels, strict=True):
        if label:
            right = bar.get_x() + bar.get_width()
            if beyond / 2 < right < beyond:
                right = beyond
            middle = bar.get_y() + bar.get_height() / 2
            end = (right, middle)
            style.beside(
                axes,
                label,
                end,
                5,
                fontsize=fontsize,
                bbox=style.PAPER_BEHIND,
            )


def stacks(
    axes: Axes, rows: DataFrame, parts: Mapping[str, str], name: str, *tooltip: str, **look: Any
) -> None:
    """Draws a bar for each row, composed of its columns `parts` in their colours. Missing parts
    have length 0."""
    start = pd.Series(0.0, rows.index)
    for part, color in parts.items():
        here = rows.assign(**{part: rows[part].astype(float).fillna(0)})
        edge: style.Look = {"edgecolor": style.PAPER, "linewidth": 0.6} | look
        bars(
            axes,
            here.assign(start=start),
            part,
            name,
            *(tooltip or (part,)),
            color=color,
            start="start",
            **edge,
        )
        start = start + here[part]


def cells(
    axes: Axes,
    table: DataFrame,
    words: DataFrame,
    rows: DataFrame,
    across: str,
    down: str,
    *tooltip: str,
    small: float = 10,
    **look: Any,
) -> None:
    """Draws a heat map of `table` with `words` in its cells. Each row of `rows` belongs to the cell
    given by its columns `across` and `down`."""
    sns.heatmap(
        table,
        ax=axes,
        annot=words,
        fmt="",
        annot_kws={"fontsize": small},
        linewidths=1,
        linecolor=style.PAPER,
        **{"cmap": "crest"} | look,
    )
    for label in axes.texts:  # the page's dark theme replaces the usual white and black
        color = style.ON_PALE
        if to_hex(label.get_color()) == style.PAPER:
            color = style.ON_DEEP
        label.set_color(color)
    x = table.columns.get_indexer(rows[across]) + 0.5
    y = table.index.get_indexer(rows[down]) + 0.5
    runs.cells(axes, rows, x, y, *tooltip)
    axes.set(xlabel="", ylabel="")
    axes.grid(visible=False)
    axes.tick_params(axis="y", labelrotation=0)


def lanes(
    axes: Axes,
    rows: DataFrame,
    name: str,
    order: Sequence[Any],
    hue: str = "",
    hues: Sequence[Any] = (),
    apart: float = 0.1,
    **look: Any,
) -> Series:
    """Labels the y axis with the names in `order`, the first at the bottom. Returns the height of
    each row; hues on a line are `apart`, the first at the top."""
    axes.set_yticks(range(len(order)), list(order), **look)
    axes.set_ylim(-0.6, len(order) - 0.4)
    heights = rows[name].map({value: index for index, value in enumerate(order)}).astype(float)
    if not hue:
        return heights
    shift = {value: apart * ((len(hues) - 1) / 2 - index) for index, value in enumerate(hues)}
    return heights + rows[hue].map(shift).astype(float)
