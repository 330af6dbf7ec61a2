"""A figure as SVG inside the page: its own ids, as wide as the page, and in the colours of the page's theme."""

import re
from io import BytesIO
from pathlib import Path

from mfulab.report.drawing import style
from mfulab.report.figures import Drawn


def svg_of(drawn: Drawn) -> str:
    """The figure as a stand-alone SVG file's text; the same figure gives the same text."""
    buffer = BytesIO()
    with style.theme():
        drawn.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue().decode()


def inline(svg: str, name: str) -> str:
    """The element of an SVG file, made part of a page. `name` sets its ids apart from those of other figures."""
    svg = svg[svg.index("<svg") :]
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    # Coordinates need no more than a hundredth of a point; factors below one, such as a glyph's scale, keep theirs.
    body = re.sub(r"(?<![\d.])[1-9]\d*\.\d{3,}", lambda number: f"{float(number.group()):.2f}", body)
    for color, variable in _theme().items():
        body = body.replace(color, f"var(--{variable})")
    return f"{head}>{body}"


def saved(folder: Path | None, name: str) -> str | None:
    """The figure's SVG as it was drawn before, if it was."""
    path = folder / f"{name}.svg" if folder else None
    return path.read_text(encoding="utf-8") if path and path.exists() else None


def _theme() -> dict[str, str]:
    inks = {style.INK: "ink", style.MUTED: "muted", style.GRID: "grid", style.PAPER: "paper"}
    return inks | {color: f"c{index}" for index, color in enumerate(style.PALETTE)}
