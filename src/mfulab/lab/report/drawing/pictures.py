"""Pictures of figures in few colours, small enough to be kept in a notebook."""

import io
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from mfulab.lab.report.drawing import style

WIDTH = 960  # pixels
FEW = 32  # colours of a picture
MOST = 256  # colours that a PNG with a palette can have
WEIGHTS = (65536, 256, 1)  # of red, green and blue in a colour's number
INKS = (
    "get_facecolor",
    "get_edgecolor",
    "get_color",
    "get_markerfacecolor",
    "get_markeredgecolor",
)
Numbers: TypeAlias = NDArray[np.int64]


def small_png(figure: Figure) -> bytes:
    """Draws a figure as a PNG in FEW colours: its artists' own, unchanged, and the most frequent of
    the shades at edges. Other shades become the nearest of these."""
    figure.set_dpi(WIDTH / figure.get_figwidth())
    canvas = FigureCanvasAgg(figure)
    with style.theme():
        canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3].astype(np.int64)
    numbers, places, counts = np.unique(
        drawn @ np.array(WEIGHTS), return_inverse=True, return_counts=True
    )
    is_own = np.isin(numbers, list(_own_colors(figure)))
    by_rank = np.lexsort((-counts, ~is_own))
    kept = numbers[by_rank[: min(MOST, max(FEW, int(is_own.sum())))]]
    nearest = _nearest(_channels(numbers), _channels(kept))
    pixels = nearest[places].reshape(drawn.shape[:2]).astype(np.uint8)
    picture = Image.fromarray(pixels)
    picture.putpalette(_channels(kept).astype(np.uint8).tobytes())
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return written.getvalue()


def _own_colors(figure: Figure) -> Iterator[int]:
    """Yields the numbers of the opaque colours of a figure's artists."""
    for artist in figure.findobj():
        for name in INKS:
            if hasattr(artist, name):
                colors = to_rgba_array(getattr(artist, name)())
                opaque = colors[colors[:, 3] == 1, :3]
                yield from (255 * opaque).round().astype(np.int64) @ np.array(WEIGHTS)


def _channels(numbers: Numbers) -> Numbers:
    """Red, green and blue of colours' numbers, a row each."""
    return np.stack([numbers // weight % 256 for weight in WEIGHTS], axis=-1)


def _nearest(colors: Numbers, kept: Numbers) -> Numbers:
    """Index of the nearest `kept` colour for each colour."""
    distances = ((colors[:, None] - kept[None]) ** 2).sum(axis=-1)
    return distances.argmin(axis=1)
