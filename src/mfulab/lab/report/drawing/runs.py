"""Marks of runs: each has a tooltip that names its run, and is hollow if the run is doubtful."""

import re
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import TypeAlias
from weakref import WeakSet

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.lab.planning.naming import short
from mfulab.lab.report.drawing import Legend, style

NAMED = ("recorded", "hardware", "run")  # the columns that name a run
DOUBTFUL = "doubtful"  # the column of a figure's rows
TRANSPARENT = (0.0, 0.0, 0.0, 0.0)  # not "none", which would not react to the pointer
# Half width and height of the hollow part of a cell, in cells; most cells are wider than high.
RIM = (0.46, 0.38)
EDGE = 1.6  # line width in points of a hollow mark
# Matplotlib writes the URLs of a collection as links, one for each element. URLs with this prefix
# become tooltips instead.
MARK = "hover:"
LINK = re.compile(rf'<a xlink:href="{MARK}(\w*):([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)

Drawn: TypeAlias = PathCollection | Iterable[Rectangle]
_with_hollow: WeakSet[Figure] = WeakSet()


def key(figure: Figure, text: Texts) -> Legend:
    """Legend entry for hollow marks; empty if the figure has none."""
    if figure in _with_hollow:
        return [style.dot(style.MUTED, text("hollow"), fillstyle="none")]
    return []


def mark(drawn: Drawn, rows: pd.DataFrame, *values: str) -> None:
    """Adds a tooltip to each point or bar, one for each row: its run and the columns `values`.
    Doubtful ones become hollow."""
    hollow = rows[DOUBTFUL].to_numpy(dtype=bool)
    if isinstance(drawn, PathCollection):
        if len(rows) <= style.MANY:
            drawn.set_urls(_titles(rows, values))
        if hollow.any():
            faces = np.resize(drawn.get_facecolor(), (len(hollow), 4))
            edges = drawn.get_edgecolor()
            if not len(edges):
                edges = faces
            edges = np.resize(edges, (len(hollow), 4))
            widths = np.resize(drawn.get_linewidths(), len(hollow)).astype(float)
            edges[hollow], faces[hollow], widths[hollow] = faces[hollow], to_rgba(style.PAPER), EDGE
            drawn.set(facecolor=faces, edgecolor=edges, linewidth=widths)
            _with_hollow.add(drawn.figure)
        return
    for bar, title, doubtful in zip(drawn, _titles(rows, values), hollow, strict=True):
        bar.set_url(title)
        if doubtful and bar.get_width() and bar.get_height():
            bar.set(
                edgecolor=bar.get_facecolor(),
                facecolor=style.PAPER,
                linewidth=EDGE,
            )
            _with_hollow.add(bar.figure)


def cells(axes: Axes, rows: pd.DataFrame, x: ArrayLike, y: ArrayLike, *values: str) -> None:
    """Adds tooltips to the cells of a heat map, with centres at `x` and `y`, after their texts are
    drawn. Doubtful cells become hollow."""
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    middles = np.column_stack([x, y]).astype(float)
    faces = [style.PAPER if doubtful else TRANSPARENT for doubtful in rows[DOUBTFUL]]
    squares = middles[:, None] + corners * np.where(rows[[DOUBTFUL]], RIM, 0.5)[:, None]
    axes.add_collection(
        PolyCollection(
            squares, facecolors=faces, linewidth=0, urls=_titles(rows, values), zorder=2.5
        )
    )
    hollow = set(map(tuple, middles[rows[DOUBTFUL].to_numpy(dtype=bool)]))
    for words in axes.texts:
        if words.get_position() in hollow:
            words.set_color(style.INK)
    if hollow:
        _with_hollow.add(axes.figure)


def _titles(rows: pd.DataFrame, values: Sequence[str]) -> list[str]:
    """Tooltips of rows as URLs that `svg` recognises: checksum, run and values."""
    titles = []
    if not set(NAMED) <= set(rows):  # rows without a machine
        rows = rows.assign(recorded=False, hardware="")
    for recorded, hardware, run, *numbers in rows[[*NAMED, *values]].itertuples(
        index=False, name=None
    ):
        parts = []
        for name, value in zip(values, numbers, strict=True):
            if pd.notna(value):
                parts.append(f"{name} {significant(value)}")
        prefix = "recorded/" if recorded else ""
        # The page finds the run by this checksum.
        checksum = zlib.crc32(f"{prefix}{hardware}/{run}".encode(errors="replace"))
        titles.append(f"{MARK}{checksum:08x}:{short(run)}: {', '.join(parts)}")
    return titles


def svg(figure: Figure) -> str:
    """Returns the figure as SVG; the same figure always gives the same text."""
    buffer = BytesIO()
    with style.theme():
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return LINK.sub(r'<g data-run="\1"><title>\2</title>\3</g>', buffer.getvalue().decode())
