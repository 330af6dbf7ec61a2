"""Runs as points: colour shows the precision, size the batch, shape the mode. Doubtful runs are
hollow."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, labels, runs, style
from mfulab.lab.report.frames import DataFrame, Series

NAMED = 12  # models named in a panel
KEPT_CLEAR = 400  # points that labels avoid; with more, no free place would be left


EVERY = 3  # of the points of a line, one in so many is avoided


def scatter(
    axes: Axes,
    rows: DataFrame,
    x: str,
    y: str,
    colors: Mapping[str, str],
    shapes: Mapping[str, str] | None = None,
) -> None:
    """Draws one point for each row at columns `x` and `y`. `colors` are by precision, `shapes` by
    mode; doubtful rows are hollow."""
    if len(rows) > style.MANY:
        rows = _distinct(rows, x, y)
    look: style.Look = {
        "hue": "precision",
        "palette": colors,
        "s": _area(rows),
        "alpha": 0.85,
        "edgecolor": style.PAPER,
        "linewidth": 0.5,
    }
    if shapes:
        look |= {"style": "mode", "markers": shapes}
    kinds.points(axes, rows, x, y, **look)


def _distinct(rows: DataFrame, x: str, y: str) -> DataFrame:
    """Rows of which only one of those that look alike, at the same place to three digits, is
    kept."""
    mantissas, exponents = np.frexp(rows[[x, y]])
    places = np.ldexp(mantissas.round(3), exponents)
    looks = rows[["precision", "mode", "batch_size", runs.DOUBTFUL]]
    return rows[~places.join(looks).duplicated()]


def _area(rows: DataFrame) -> Series:
    """Area of each run's point in points², which grows with each doubling of the batch."""
    batches = rows["batch_size"].fillna(1).clip(lower=1)
    return 36 + 16 * np.log2(batches)


def panels(
    figure: Figure,
    rows: DataFrame,
    place: tuple[str, str],
    shapes: Mapping[str, str] | None = None,
    **shared: Any,
) -> Iterator[tuple[Axes, DataFrame]]:
    """Yields the panel and rows of each machine, with its points drawn. Names the models after the
    caller has set scales and lines."""
    colors = style.usual_colors(rows["precision"])
    for axes, here in style.by_machine(figure, rows, **shared):
        scatter(axes, here, *place, colors, shapes)
        yield axes, here
        name_highest(axes, here, *place)


def legend(figure: Figure, rows: DataFrame, text: Texts, entries: Legend) -> None:
    """Adds the legend: colours of precisions, `entries`, and the meaning of hollow and large
    points."""
    colors = style.dots(style.usual_colors(rows["precision"]), text, "precision")
    sizes = []
    if rows["batch_size"].nunique() > 1:
        sizes = [style.dot(style.MUTED, text("dot_size"))]
    style.legend(figure, [*colors, *entries, *runs.key(figure, text), *sizes])


def name_highest(axes: Axes, rows: DataFrame, x: str, y: str) -> None:
    """Names each model's highest point. Labels avoid other points, and some points of lines."""
    lines = []
    for line in axes.lines:
        places = line.get_xydata()[::EVERY]
        lines += places[~np.isnan(places[:, 1])].tolist()
    highest = rows.loc[rows.groupby("model")[y].idxmax()].nlargest(NAMED, y)
    named = highest[[x, y, "model"]].itertuples(index=False, name=None)
    kept_clear = rows.head(KEPT_CLEAR)
    others = kept_clear[[x, y]].itertuples(index=False, name=None)
    radius = np.sqrt(_area(kept_clear).to_numpy() / 2)  # of a diamond, the widest shape
    labels.later(
        labels.beside_points,
        axes,
        list(named),
        list(others),
        lines,
        radius,
    )
