"""Runs as points: colour is the precision, size the batch, shape the mode; doubtful ones are hollow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mfulab.core.language import Texts
from mfulab.lab.report.drawing import kinds, labels, runs, style

NAMED = 12  # models a panel
KEPT_CLEAR = 400  # points that labels keep off; among more there is no free place


def scatter(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, colors: Mapping[str, str], shapes: Mapping[str, str] | None = None
) -> None:
    """One point a row at its columns `x` and `y`; `colors` by precision, `shapes` by mode; doubtful rows are hollow."""
    area = 36 + 16 * np.log2(rows["batch_size"].fillna(1).clip(lower=1))  # points², by the number of doublings
    look: style.Look = {"s": area, "alpha": 0.85, "edgecolor": style.PAPER, "linewidth": 0.5}
    look |= {"style": "mode", "markers": shapes} if shapes else {}
    kinds.points(axes, rows, x, y, hue="precision", palette=colors, **look)


def draw(
    rows: pd.DataFrame,
    figure: Figure,
    text: Texts,
    place: tuple[str, str],
    words: tuple[str, str],
    finish: Callable[[Axes, pd.DataFrame], Sequence[tuple[float, float]]],
    shapes: Mapping[str, str] | None = None,
    entries: Sequence[Line2D] = (),
    **shared: Any,
) -> None:
    """A panel a machine; `finish` sets scales and limits and returns points of lines that the models' names avoid."""
    colors = style.usual_colors(rows["precision"])
    for axes, here in style.by_machine(figure, rows, **shared):
        scatter(axes, here, *place, colors, shapes)
        name_highest(axes, here, *place, finish(axes, here))
        axes.set_xlabel(words[0])
    style.label(figure, y=words[1])
    sizes = [style.dot(style.MUTED, text("dot_size"))] if rows["batch_size"].nunique() > 1 else []
    style.legend(figure, [*style.dots(colors, text, "precision"), *entries, *runs.key(rows, text), *sizes])


def name_highest(axes: Axes, rows: pd.DataFrame, x: str, y: str, lines: Sequence[tuple[float, float]] = ()) -> None:
    """Names the highest point of each model, off the others and, where there is room, off `lines`."""
    highest = rows.loc[rows.groupby("model")[y].idxmax()].nlargest(NAMED, y)
    named = highest[[x, y, "model"]].itertuples(index=False, name=None)
    others = rows[[x, y]].head(KEPT_CLEAR).itertuples(index=False, name=None)
    labels.later(labels.beside_points, axes, list(named), list(others), lines)
