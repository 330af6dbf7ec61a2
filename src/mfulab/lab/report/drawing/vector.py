"""Figures as SVG inside the page: with ids of their own, and in the colours of its theme. One tree
is parsed, checked, edited and written, so that nothing else gets in."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from mfulab.core.files import UnreadableError, read_text
from mfulab.lab.report.drawing import style
from mfulab.lab.report.figures import FAILED

NAMESPACE = "{http://www.w3.org/2000/svg}"
# Elements that Matplotlib draws with. Its metadata and style sheet are left out.
ELEMENTS = frozenset({"svg", "g", "defs", "path", "use", "clipPath", "rect", "title", "image"})
LEFT_OUT = frozenset({f"{NAMESPACE}metadata", f"{NAMESPACE}style"})
NUMBERS = re.compile(r"[-+\d.,e\s]*(?:pt)?")
ATTRIBUTES = {
    "id": re.compile(r"[\w.-]+"),
    "data-run": re.compile(r"\w*"),
    "href": re.compile(r"#[\w.-]+|data:image/png;base64,[\w+/=\s]*"),
    "clip-path": re.compile(r"url\(#[\w.-]+\)"),
    "transform": re.compile(r"(?:\s*(?:translate|rotate|scale|matrix)\([-+\d.,e\s]*\))*"),
    "d": re.compile(r"[MLHVCSQTAZmlhvcsqtaz\d\s.,e+-]*"),
    "version": NUMBERS,
    "viewBox": NUMBERS,
    "x": NUMBERS,
    "y": NUMBERS,
    "width": NUMBERS,
    "height": NUMBERS,
}
PROPERTIES = frozenset(
    {
        "fill",
        "fill-opacity",
        "fill-rule",
        "opacity",
        "stroke",
        "stroke-dasharray",
        "stroke-dashoffset",
        "stroke-linecap",
        "stroke-linejoin",
        "stroke-miterlimit",
        "stroke-opacity",
        "stroke-width",
    }
)
VALUE = re.compile(r"#[0-9a-f]{3,8}|[a-z]+|[-\d.,\s]+")
MOST_BYTES = 1 << 25  # bytes of a file; a drawing of 20,000 runs takes a tenth
DEEPEST = 32  # levels of nested elements; Matplotlib uses nine

GLYPH = re.compile(r"[\w-]+-[0-9a-f]+")  # id of a letter's outline: font and number
MOVED = re.compile(r"translate\(([-\d.]+) 0\)")
READ_BY_SCRIPT = re.compile(
    r"(axis|heading|leader|legend|panel|provenance|text|title|value)(?:-(start|end))?(?:_\d+)?"
)
CURVE = r"C(?: [-\d.e]+){6} "
CIRCLE = re.compile(
    rf"M ([\d.]+) ([\d.]+) (?:{CURVE}){{3}}C(?: [-\d.e]+){{5}} ([\d.]+) (?:{CURVE}){{4}}z"
)
# Coordinates are rounded to hundredths of a point; factors below 1, such as a glyph's scale, are
# not.
LONG = re.compile(r"(?<![\d.])[1-9]\d*\.\d{3,}")
ROUNDED = ("d", "transform", "x", "y", "width", "height", "cx", "cy", "r")
THEME = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "paper",
    **{color: f"c{index}" for index, color in enumerate(style.PALETTE)},
}


class NotADrawingError(ValueError):
    """An SVG with more than shapes and titles; the message names the fault."""


def saved(folder: Path | None, name: str) -> Element | None:
    """Reads a figure drawn before. None if it is missing, marked as failed, or has more than a
    drawing."""
    if folder is None:
        return None
    try:
        drawing = parsed(read_text(folder / f"{name}.svg", MOST_BYTES))
    except (FileNotFoundError, UnreadableError, NotADrawingError):
        return None
    if any(element.get("id") == FAILED for element in drawing.iter()):
        return None
    return drawing


def parsed(svg: str) -> Element:
    """Parses an SVG, without namespaces, comments, metadata and style sheets. Raises
    NotADrawingError for any element, attribute or value that Matplotlib does not write."""
    if "<!ENTITY" in svg:
        raise NotADrawingError("it declares entities")
    try:
        drawing = _checked(ElementTree.fromstring(svg))  # noqa: S314 (no entities: see above)
    except ElementTree.ParseError as error:
        raise NotADrawingError(f"it is not XML ({error})") from error
    if drawing.tag != "svg":
        raise NotADrawingError(f"it is a {drawing.tag}")
    _check_references(drawing)
    return drawing


def _checked(element: Element, depth: int = 0) -> Element:
    """Copies an element and its children. Raises NotADrawingError if one is not allowed."""
    tag = element.tag.removeprefix(NAMESPACE)
    if tag not in ELEMENTS:
        raise NotADrawingError(f"it holds the element {tag[:80]}")
    if depth > DEEPEST:
        raise NotADrawingError(f"its elements are more than {DEEPEST} deep")
    made = Element(tag, _checked_attributes(element))
    if tag == "title":
        if len(element):  # a browser would read them as HTML
            raise NotADrawingError("a title holds elements")
        made.text = element.text
        return made
    for child in element:
        if child.tag not in LEFT_OUT:
            made.append(_checked(child, depth + 1))
    return made


def _checked_attributes(element: Element) -> dict[str, str]:
    """The element's attributes. Raises NotADrawingError if one is not allowed."""
    kept = {}
    for key, value in element.items():
        name = key.rpartition("}")[2]
        if name == "style":
            kept[name] = _checked_style(value)
            continue
        allowed = ATTRIBUTES.get(name)
        if allowed is None or not allowed.fullmatch(value):
            raise NotADrawingError(f"it holds {name[:80]}={value[:80]!r}")
        kept[name] = " ".join(value.split())
    return kept


def _checked_style(text: str) -> str:
    """The style's declarations, with the theme's colours as CSS variables. Raises NotADrawingError
    if one is not allowed."""
    kept = []
    for declaration in text.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if not name:
            continue
        if name == "clip-path" and ATTRIBUTES[name].fullmatch(value):
            kept.append(f"{name}: {value}")
            continue
        if name not in PROPERTIES or not VALUE.fullmatch(value):
            raise NotADrawingError(f"it holds the style {declaration[:80]!r}")
        if value in THEME:
            value = f"var(--{THEME[value]})"
        kept.append(f"{name}: {value}")
    return "; ".join(kept)


def _check_references(drawing: Element) -> None:
    """Raises NotADrawingError for references to elements with references. A few of these could
    expand without end."""
    tags = {f"#{element.get('id')}": element.tag for element in drawing.iter()}
    for element in drawing.iter("use"):
        if tags.get(element.get("href", ""), "path") != "path":
            raise NotADrawingError("it uses more than a shape")
    for clip in drawing.iter("clipPath"):
        for inner in clip:
            if inner.tag not in ("rect", "path") or "clip-path" in inner.attrib:
                raise NotADrawingError("it is clipped by more than a shape")


def inline(drawing: Element, name: str, glyphs: dict[str, str]) -> str:
    """Returns a parsed drawing as part of the page, with `name` in its ids. Outlines of letters are
    moved to `glyphs`. Classes mark what the page's script reads: panels, axes, texts, legend and
    title."""
    letters = _move_letters(drawing, glyphs)
    used: set[str] = set()
    for element in drawing.iter():
        used.update(_references(element))
    for element in drawing.iter():
        _name(element, name, used)
        _refer(element, name, letters)
        _round(element)
    drawing.attrib = {
        "id": f"svg-{name}",
        "viewBox": drawing.get("viewBox", ""),
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return "".join(_serialised(drawing))


def _move_letters(drawing: Element, glyphs: dict[str, str]) -> dict[str, str]:
    """Moves outlines of letters from the drawing to `glyphs`. Returns the new name of each."""
    known = {outline: letter for letter, outline in glyphs.items()}
    moved = {}
    for parent in list(drawing.iter()):
        kept = []
        for child in parent:
            glyph = ""
            if child.tag == "path":
                glyph = child.attrib.pop("id", "")
            if not GLYPH.fullmatch(glyph):
                if glyph:
                    child.attrib |= {"id": glyph}
                kept.append(child)
                continue
            outline = _written_attributes(child)
            letter = known.setdefault(outline, f"L{len(known)}")
            glyphs[letter] = outline
            moved[glyph] = letter
        parent[:] = [child for child in kept if len(child) or child.tag != "defs"]
    return moved


def _references(element: Element) -> Iterator[str]:
    """Yields the ids that an element refers to."""
    for key in ("href", "clip-path", "style"):
        yield from re.findall(r"#([\w.-]+)", element.get(key, ""))


def _name(element: Element, drawing: str, used: set[str]) -> None:
    """Removes an element's id unless it is referred to, and sets the class that the page's script
    looks for."""
    identifier = element.attrib.pop("id", "")
    known = READ_BY_SCRIPT.fullmatch(identifier.removeprefix("matplotlib."))
    if known:
        element.set("class", " ".join(filter(None, known.groups())))
    elif identifier in used:
        element.set("id", f"{drawing}-{identifier}")


def _refer(element: Element, drawing: str, letters: dict[str, str]) -> None:
    """Adapts an element's references to the new ids, and to the page's letters."""
    reference = element.get("href", "").removeprefix("#")
    if element.tag == "use" and reference in letters:
        element.set("href", f"#{letters[reference]}")
        moved = MOVED.fullmatch(element.get("transform", "translate(0 0)"))
        if moved:  # superscripts keep their transform
            element.attrib.pop("transform", None)
            element.set("x", moved[1])
    elif element.tag == "use":
        element.set("href", f"#{drawing}-{reference}")
    for key in ("clip-path", "style"):
        if "url(#" in element.get(key, ""):
            element.set(key, element.get(key, "").replace("url(#", f"url(#{drawing}-"))


def _round(element: Element) -> None:
    """Rounds an element's coordinates, and replaces circular paths by circles."""
    circle = None
    if element.tag == "path":
        circle = CIRCLE.fullmatch(element.get("d", ""))
    if circle:
        x, bottom, top = map(float, circle.groups())
        element.tag = "circle"
        del element.attrib["d"]
        radius = (bottom - top) / 2
        element.attrib |= {"cx": f"{x}", "cy": f"{bottom - radius}", "r": f"{radius}"}
    for key in ROUNDED:
        if key in element.attrib:
            element.set(key, LONG.sub(_hundredths, element.get(key, "")))


def _hundredths(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}"


def _serialised(element: Element) -> Iterator[str]:
    """Yields the element as text."""
    is_empty = not element.text and not len(element)
    yield f"<{element.tag}{_written_attributes(element)}{'/' * is_empty}>"
    if is_empty:
        return
    yield escape(element.text or "")
    for child in element:
        yield from _serialised(child)
    yield f"</{element.tag}>"


def _written_attributes(element: Element) -> str:
    return "".join(f' {key}="{escape(value)}"' for key, value in element.items())
