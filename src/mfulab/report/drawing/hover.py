"""Titles of marks, shown while the pointer rests on one: part of the SVG, without a script."""

import re
from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from mfulab.core.files import write_text

# Matplotlib writes a collection's URLs as links, an element each; what begins so is no link but a title.
MARK = "hover:"
LINK = re.compile(rf'<a xlink:href="{MARK}([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)


def svg(figure: Figure) -> str:
    """The figure as the text of an SVG file; the same figure gives the same text."""
    buffer = BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return LINK.sub(r"<g><title>\1</title>\2</g>", buffer.getvalue().decode())


def write_svg(figure: Figure, path: Path) -> None:
    """Writes the figure with its titles."""
    write_text(path, svg(figure))
