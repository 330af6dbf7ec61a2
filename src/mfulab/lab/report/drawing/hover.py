"""Titles of marks, shown while the pointer rests on one, and the runs that the page links them to."""

import re
import zlib
from io import BytesIO

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from mfulab.lab.report.drawing import style

# Matplotlib writes a collection's URLs as links, an element each; what begins so is no link but a title.
MARK = "hover:"
LINK = re.compile(rf'<a xlink:href="{MARK}(\w*):([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)


def link(recorded: object, hardware: object, run: object, says: str) -> str:
    """The URL of a mark: its run, under the checksum that the page links it by, and what it says."""
    name = f"{'recorded/' if recorded else ''}{hardware}/{run}"
    return f"{MARK}{zlib.crc32(name.encode(errors='replace')):08x}:{says}"


def svg(figure: Figure) -> str:
    """The figure as the text of an SVG file; the same figure gives the same text."""
    buffer = BytesIO()
    with style.theme():
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return LINK.sub(r'<g data-run="\1"><title>\2</title>\3</g>', buffer.getvalue().decode())
