"""Pictures in few colours: those of a figure's groups stay what they are."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image
from support.slow import few as at_night

from mfulab.lab.report import figures
from mfulab.lab.report.drawing import pictures, style

# Two of them differ by eight of 256 levels, two by hue alone.
ALIKE = ("#8c8c8c", "#949494", "#c9ced6", "#c9d6ce", "#0173b2")


def colors_of(picture: Image.Image) -> set[str]:
    pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    return {to_hex(pixel / 255) for pixel in np.unique(pixels, axis=0)}


def drawn(figure: Figure) -> Image.Image:
    return Image.open(io.BytesIO(pictures.small_png(figure)))


def whole(figure: Figure) -> Image.Image:
    """The same picture in all its colours."""
    written = io.BytesIO()
    with style.theme():
        figure.savefig(written, dpi=pictures.WIDTH / figure.get_figwidth())
    return Image.open(written)


def groups(marks: int, size: float) -> Figure:
    """A figure of five groups with few small marks each, beside many texts and shades."""
    with style.theme():
        figure = style.blank("Many letters that have shades at their edges " * 2, "footer")
        axes = figure.subplots()
        axes.imshow(np.linspace(0, 1, 6000).reshape(60, 100), extent=(0, 9, 6, 12), cmap="viridis")
        for height, color in enumerate(ALIKE):
            axes.scatter(range(marks), [height] * marks, s=size, color=color, linewidths=0)
            axes.text(4, height, f"a label of group {height}")
        axes.set(xlim=(-1, 9), ylim=(-1, 12), aspect="auto")
    return figure


@pytest.mark.parametrize(("marks", "size"), [(1, 40), (4, 25), (8, 200)])
def test_five_groups_keep_five_colours(marks, size):
    picture = drawn(groups(marks, size))
    assert picture.width == pictures.WIDTH
    shown = colors_of(picture)
    assert set(ALIKE) <= shown
    assert len(shown) <= pictures.MOST


def test_a_mark_is_where_it_was_in_its_own_colour():
    """A pixel of a kept colour never becomes another, and any other only the nearest one."""
    figure = groups(4, 200)
    reduced = np.asarray(drawn(figure).convert("RGB")).astype(int)
    exact = np.asarray(whole(figure).convert("RGB")).astype(int)
    for color in (*ALIKE, style.PAPER, style.INK):
        is_own = (exact == np.round(255 * np.array(to_rgb(color)))).all(axis=-1)
        assert is_own.any()
        assert (exact[is_own] == reduced[is_own]).all(), color
    written = (exact != 255).any(axis=-1)
    assert np.abs(exact - reduced)[written].mean() < 8


NAMES = (
    "memory_breakdown",
    "headroom",
    "training_phases",
    "kernel_ladder",
    "transfers",
    "roofline",
)


@pytest.mark.parametrize("name", at_night([*NAMES], 3))
def test_each_colour_of_a_legend_survives(invented, name):
    figure = figures.render(name, invented).figure
    entries = [handle for legend in figure.legends for handle in legend.legend_handles]
    inks = {to_hex(entry.get_color()) for entry in entries} & colors_of(whole(figure))
    picture = drawn(figure)
    assert len(inks) > 1
    assert inks <= colors_of(picture)
    assert len(picture.getpalette()) // 3 <= max(pictures.FEW, 64)


def test_a_figure_of_few_colours_is_small():
    with style.theme():
        figure = style.blank("words " * 12, "")
    as_it_was = io.BytesIO()
    whole(figure).save(as_it_was, "PNG", optimize=True)
    assert len(pictures.small_png(figure)) < len(as_it_was.getvalue()) / 2
