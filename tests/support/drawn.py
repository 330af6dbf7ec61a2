"""Texts of a drawn figure, and which of them cover one another."""

import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its place in pixels; slanted ones are left out, as their boxes are too large."""
    drawn: list[tuple[str, Bbox]] = []
    original = Text.draw

    def draw(self: Text, renderer: object) -> None:
        if self.get_visible() and self.get_text().strip() and self.get_rotation() % 90 == 0:
            # Not the method of an annotation, whose extent includes its leader.
            drawn.append((self.get_text(), Text.get_window_extent(self, renderer)))
        original(self, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        figure.canvas.draw()
    return drawn


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    placed = [(words, box.padded(-1)) for words, box in texts(figure)]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(placed, 2) if one.overlaps(other)]
