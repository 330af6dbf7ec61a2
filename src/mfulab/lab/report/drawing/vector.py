"""A figure as SVG inside the page: its own ids, as wide as the page, and in the colours of the page's theme."""

import re
from pathlib import Path
from xml.etree import ElementTree

from mfulab.core.files import UnreadableError, read_text
from mfulab.lab.report.drawing import style
from mfulab.lab.report.figures import FAILED

# What a drawing of Matplotlib consists of; metadata is left out of the page.
ELEMENT = re.compile(
    r"\{[^}]*\}(svg|g|defs|path|use|style|clipPath|rect|text|tspan|image|title|desc|polygon|line|circle|ellipse"
    r"|metadata|RDF|Work|type|date|format|creator|Agent)"
)
# Nothing before the element that could hold another.
BEGINNING = re.compile(r"\s*(<\?xml[^>]*\?>)?\s*(<!DOCTYPE[^>\[]*>)?\s*(?=<svg[\s>])")
GLYPH = re.compile(r'<path id="([\w-]+-[0-9a-f]+)"([^>]*)/>')  # a letter of Matplotlib, by font and number
LETTER = re.compile(r'<use xlink:href="#([\w-]+-[0-9a-f]+)"(?: transform="translate\(([-\d.]+) 0\)")?/>')
REFERENCE = re.compile(r'(href="#|url\(#)([^")]+)')
CURVE = r"C(?: [-\d.e]+){6} "
CIRCLE = re.compile(rf'<path d="M ([\d.]+) ([\d.]+) (?:{CURVE}){{3}}C(?: [-\d.e]+){{5}} ([\d.]+) (?:{CURVE}){{4}}z ?"')
LOADS = re.compile(r"url\((?!['\"]?#)|@import|javascript:|expression\(", re.IGNORECASE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def inline(svg: str, name: str, glyphs: dict[str, str]) -> str:
    """The element of an SVG file as part of a page, `name` in its ids; outlines of letters are put into `glyphs`.
    Classes are what the page's script reads of the drawing: panels, axes, texts, legend and title."""
    svg = svg[svg.index("<svg") :]
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head).replace("<svg", f'<svg id="svg-{name}"', 1)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", body))
    names = {}  # of the drawing's letters in the page
    for glyph, outline in GLYPH.findall(body):
        names[glyph] = next((letter for letter, drawn in glyphs.items() if drawn == outline), f"L{len(glyphs)}")
        glyphs[names[glyph]] = outline
    body = GLYPH.sub("", body).replace("<defs></defs>", "")
    body = LETTER.sub(lambda match: f'<use href="#{names[match[1]]}" x="{match[2] or 0}"/>', body)
    body = CIRCLE.sub(lambda match: _circle(*map(float, match.groups())), body)
    classes = r' id="(axis|heading|leader|legend|panel|provenance|text|title|value)(?:_\d+)?"'
    body = re.sub(classes, r' class="\1"', body.replace("matplotlib.", ""))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body)) - set(glyphs)
    body = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", body)
    names |= {letter: letter for letter in glyphs}  # in a power, letters are raised: those uses keep their drawing's id
    body = REFERENCE.sub(lambda match: match[1] + names.get(match[2], f"{name}-{match[2]}"), body)
    body = body.replace('xlink:href="#L', 'href="#L')  # by which the page's script finds letters, raised ones too
    # Coordinates need no more than a hundredth of a point; factors below one, such as a glyph's scale, keep theirs.
    body = re.sub(r"(?<![\d.])[1-9]\d*\.\d{3,}", lambda number: f"{float(number.group()):.2f}", body)
    inks = {style.INK: "ink", style.MUTED: "muted", style.GRID: "grid", style.PAPER: "paper"}
    for color, variable in (inks | {color: f"c{index}" for index, color in enumerate(style.PALETTE)}).items():
        body = body.replace(color, f"var(--{variable})")
    return f"{head}>{body}"


def _circle(x: float, bottom: float, top: float) -> str:
    return f'<circle cx="{x:.2f}" cy="{(bottom + top) / 2:.2f}" r="{(bottom - top) / 2:.2f}"'


def saved(folder: Path | None, name: str) -> str | None:
    """The figure's SVG as it was drawn before; None if it could not be, or the file holds more than a drawing."""
    try:
        svg = read_text(folder / f"{name}.svg") if folder else ""
    except (FileNotFoundError, UnreadableError):
        return None
    return COMMENT.sub("", svg) if is_drawing(svg) and f'id="{FAILED}"' not in svg else None


def is_drawing(svg: str) -> bool:
    """True if an SVG only draws: shapes and texts that refer to one another, without CDATA and instructions."""
    begins = BEGINNING.match(svg)
    if begins is None or "<?" in svg[begins.end() :] or "<!" in COMMENT.sub("", svg[begins.end() :]):
        return False
    try:
        elements = list(ElementTree.fromstring(svg).iter())  # noqa: S314 (no entities: see above)
    except ElementTree.ParseError:
        return False
    return all(
        ELEMENT.fullmatch(str(element.tag))
        and all(_is_harmless(key.rpartition("}")[2], value) for key, value in element.attrib.items())
        and not LOADS.search(element.text or "")
        for element in elements
    )


def _is_harmless(key: str, value: str) -> bool:
    loads = not value.startswith(("#", "data:image/png;base64,")) if key in ("href", "src") else LOADS.search(value)
    return not key.lower().startswith("on") and not loads
