"""A figure that lies there as a file comes into the page only if it draws and does nothing else."""

import re
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mfulab.lab.report.drawing import kinds, runs, style, ticks, vector

HEAD = '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">'
NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def svg(body: str, head: str = HEAD) -> str:
    return f"{head}<svg {NAMES}>{body}</svg>"


@pytest.mark.parametrize(
    "body",
    [
        '<g id="a"><!-- D --><path d="M 0 0" style="fill: #fff; clip-path: url(#p)"/></g>',
        '<use xlink:href="#a"/>',
        '<image xlink:href="data:image/png;base64,AAAA"/>',
        "<style>*{stroke-linejoin: round}</style>",
    ],
)
def test_a_drawing_is_taken(tmp_path, body):
    (tmp_path / "x.svg").write_text(svg(body))
    assert vector.saved(tmp_path, "x") is not None


TWICE = "".join(
    f'<g id="g{n}"><use href="#g{n + 1}"/><use href="#g{n + 1}"/></g>' for n in range(30)
)
# Single quotes around double ones: an edit of the text, not of the tree, would end an attribute.
ACROSS = """<svg x=' id="x' y="' onload=alert(1) c='"/><g id="'"/>"""


@pytest.mark.parametrize(
    "text",
    [
        svg("<script>alert(1)</script>"),
        svg('<g onload="alert(1)"/>'),
        svg('<a xlink:href="javascript:alert(1)"><text>x</text></a>'),
        svg('<use xlink:href="http://example.org/x.svg#a"/>'),
        svg('<image xlink:href="/etc/passwd"/>'),
        svg('<image xlink:href="data:image/svg+xml;base64,AAAA"/>'),
        svg('<path style="fill: url(http://example.org)"/>'),
        svg('<path style="position: fixed; inset: 0"/>'),
        svg("<foreignObject/>"),
        svg('<html xmlns="http://www.w3.org/1999/xhtml"/>'),
        svg("<title><style>*{}</style></title>"),
        svg("<title><g/></title>"),
        svg("", '<!DOCTYPE svg [<!ENTITY a "x">]>'),
        svg("<g>" * 100_000 + "</g>" * 100_000),
        svg(TWICE),
        svg('<clipPath id="a"><path clip-path="url(#a)"/></clipPath>'),
        svg(ACROSS),
        f"<g {NAMES}/>",
        "<svg",
        "no drawing",
        "",
    ],
)
def test_anything_else_is_drawn_anew(tmp_path, text):
    (tmp_path / "x.svg").write_text(text)
    assert vector.saved(tmp_path, "x") is None


@pytest.mark.parametrize(
    "text",
    [
        svg("<g><!--><script>alert(1)</script>--></g>"),
        svg("<?x ><script>alert(1)</script> ?>"),
        svg("<style>@import 'x'; </style>"),
        svg("<style><![CDATA[</style><script>]]></style>"),
        svg("<metadata><script>alert(1)</script></metadata>"),
        svg("<g><title><![CDATA[</title><script>alert(1)</script>]]></title></g>"),
        svg("<![CDATA[<script>alert(1)</script>]]>"),
        svg("", "<!-- <svg><script>alert(1)</script> -->"),
    ],
)
def test_what_is_left_out_or_a_text_stays_so(text):
    page = vector.inline(vector.parsed(text), "x", {})
    assert not re.search(r"<script|<!|<\?|@import", page)
    assert page.startswith('<svg id="svg-x"')


def attributes() -> st.SearchStrategy[str]:
    names = st.sampled_from(["id", "style", "d", "x", "data-run", "transform", "href", "onload"])
    values = st.text("'\"= <>&;:#()idxonload-1f", max_size=24)
    return st.builds(lambda name, value: f"{name}={quoteattr(value)}", names, values)


@given(
    st.lists(
        st.builds(
            lambda tag, words, text: f"<{tag} {' '.join(words)}>{escape(text)}</{tag}>",
            st.sampled_from(["g", "path", "title", "svg", "use"]),
            st.lists(attributes(), max_size=3, unique_by=lambda word: word.partition("=")[0]),
            st.text("<>/scripton='\" ", max_size=24),
        ),
        max_size=4,
    )
)
def test_no_border_of_an_attribute_moves(elements):
    """What is taken has the same elements and no other attributes once a browser has read it."""
    try:
        drawing = vector.parsed(svg("".join(elements)))
    except vector.NotADrawingError:
        return
    page = vector.inline(drawing, "x", {})
    read = ElementTree.fromstring(page)
    allowed = {*vector.ATTRIBUTES, "class", "style", "stroke-linejoin", "stroke-linecap"}
    assert {key for element in read.iter() for key in element.attrib} <= allowed
    assert {element.tag for element in read.iter()} <= vector.ELEMENTS


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text(svg("<g/>"))
    (tmp_path / "x.svg").symlink_to(tmp_path / "secret")
    assert vector.saved(tmp_path, "x") is None


def test_words_in_a_heat_map_stay_as_they_are_in_a_dark_page():
    with style.theme():
        figure = Figure()
        axes = figure.subplots()
        table = pd.DataFrame({"a": [0.0, 1.0]})
        rows = pd.DataFrame(
            {"x": ["a", "a"], "y": [0, 1], "run": ["one", "two"], "doubtful": False}
        )
        kinds.cells(axes, table, table.astype(str), rows, "x", "y", "y")
        drawn = vector.inline(vector.parsed(runs.svg(figure)), "x", {})
    assert {words.get_color() for words in axes.texts} == {style.ON_PALE, style.ON_DEEP}
    assert style.ON_DEEP in drawn


def test_a_letter_stands_once_in_a_page_and_a_circle_is_one():
    glyphs: dict[str, str] = {}
    for name, words in (("one", "aba"), ("two", "ab")):
        with style.theme():
            figure = style.blank(words, "")
            axes = figure.subplots()
            axes.scatter([1, 2], [1, 2], s=[20, 40])
            axes.set(yscale="log", ylim=(1e-9, 10), xlabel=r"$10^{-4}$")
            ticks.decades(axes.yaxis)
            svg = vector.inline(vector.parsed(runs.svg(figure)), name, glyphs)
        assert svg.count("<circle") == 2
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= {
            *glyphs,
            *re.findall(r' id="([^"]+)"', svg),
        }
        raised = re.findall(r'<use href="#L\d+" transform="[^"]*scale', svg)
        assert len(raised) > 6, "powers are drawn"
    assert len(set(glyphs.values())) == len(glyphs)
    assert not re.search(r'id="[^"]*DejaVu', svg)
