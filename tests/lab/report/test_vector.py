"""A figure that lies there as a file comes into the page only if it draws and does nothing else."""

import re

import pandas as pd
import pytest
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
    assert "<!--" not in (vector.saved(tmp_path, "x") or "<!--")


@pytest.mark.parametrize(
    "text",
    [
        svg("<script>alert(1)</script>"),
        svg('<g onload="alert(1)"/>'),
        svg('<a xlink:href="javascript:alert(1)"><text>x</text></a>'),
        svg('<use xlink:href="http://example.org/x.svg#a"/>'),
        svg('<image xlink:href="/etc/passwd"/>'),
        svg('<path style="fill: url(http://example.org)"/>'),
        svg("<style>@import 'x'</style>"),
        svg("<foreignObject/>"),
        svg('<html xmlns="http://www.w3.org/1999/xhtml"/>'),
        svg("<?x ><script>alert(1)</script> ?>"),
        svg("<style><![CDATA[</style><script>]]></style>"),
        svg("", '<!DOCTYPE svg [<!ENTITY a "x">]>'),
        svg("", "<!-- <svg><script>alert(1)</script> -->"),
        "<svg",
        "no drawing",
        "",
    ],
)
def test_anything_else_is_drawn_anew(tmp_path, text):
    (tmp_path / "x.svg").write_text(text)
    assert vector.saved(tmp_path, "x") is None


def test_a_comment_that_browsers_end_earlier_is_removed(tmp_path):
    (tmp_path / "x.svg").write_text(svg("<g><!--><script>alert(1)</script>--></g>"))
    assert "script" not in (vector.saved(tmp_path, "x") or "")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text(svg("<g/>"))
    (tmp_path / "x.svg").symlink_to(tmp_path / "secret")
    assert vector.saved(tmp_path, "x") is None


def test_words_in_a_heat_map_stay_as_they_are_in_a_dark_page():
    with style.theme():
        figure = Figure()
        axes = figure.subplots()
        table = pd.DataFrame({"a": [0.0, 1.0]})
        rows = pd.DataFrame({"x": ["a", "a"], "y": [0, 1], "run": ["one", "two"], "doubtful": False})
        kinds.cells(axes, table, table.astype(str), rows, "x", "y", "y")
        drawn = vector.inline(runs.svg(figure), "x", {})
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
            svg = vector.inline(runs.svg(figure), name, glyphs)
        assert svg.count("<circle") == 2
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= {*glyphs, *re.findall(r' id="([^"]+)"', svg)}
        assert len(re.findall(r"<!-- \$10\^.*? --><g[^>]*>(?:<use[^>]*>){3,}", svg)) > 3, "powers are drawn"
    assert len(set(glyphs.values())) == len(glyphs)
    assert not re.search(r'id="[^"]*DejaVu', svg)
