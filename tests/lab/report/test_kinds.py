"""Kinds of drawings: each mark is its own row's, in any order, and nothing is estimated."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from mfulab.lab.report.drawing import kinds, runs, style

COLORS = {"warm": "#aa0000", "cold": "#0000aa"}
ROWS = pd.DataFrame(
    {
        "run": [f"model={name}" for name in "abcd"],
        "what": ["second", "first", "first", "second"],
        "kind": ["cold", "warm", "cold", "warm"],
        "x": [1.0, 2.0, 2.0, 3.0],
        "value": [10.0, 20.0, 30.0, 40.0],
        "other": [4.0, 3.0, 2.0, 1.0],
        "x_low": [0.5, 1.0, 2.5, None],
        "x_high": [1.5, 4.0, 2.6, None],
        "doubtful": False,
    }
)


def test_bars_are_named_and_coloured_by_their_rows_in_the_order_given():
    axes = Figure().subplots()
    kinds.bars(axes, ROWS, "value", "what", hue="kind", palette=COLORS, order=["first", "second"])
    found = {bar.get_url().removeprefix(runs.MARK).partition(":")[2]: bar for bar in axes.patches}
    assert [
        f"{name}: value {row.value:.1f}" in found
        for name, row in zip("abcd", ROWS.itertuples(), strict=True)
    ]
    for name, row in zip("abcd", ROWS.itertuples(), strict=True):
        bar = found[f"{name}: value {row.value:.1f}"]
        assert bar.get_width() == row.value
        assert to_hex(bar.get_facecolor()) == COLORS[row.kind]
        assert round(bar.get_y() + bar.get_height() / 2) == ["first", "second"].index(row.what)


def test_bars_without_hue_and_order_have_a_line_each_though_their_names_are_equal():
    axes = Figure().subplots()
    kinds.bars(axes, ROWS, "value", "what")
    assert [bar.get_width() for bar in axes.patches] == [10, 20, 30, 40]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ROWS["what"])


@pytest.mark.parametrize("upright", [True, False])
def test_parts_of_a_stack_follow_one_another_whatever_the_order(upright):
    axes, each = Figure().subplots(), ROWS.iloc[[0, 1]]
    parts = {"value": "#111111", "other": "#222222"}
    kinds.stacks(axes, each, parts, "what", order=["first", "second"], upright=upright)
    boxes = [
        (bar.get_y(), bar.get_height()) if upright else (bar.get_x(), bar.get_width())
        for bar in axes.patches
    ]
    assert boxes == [(0, 20), (0, 10), (20, 3), (10, 4)]


@pytest.mark.parametrize(
    ("columns", "option", "place"),
    [(("x", "value"), "x_interval", 0), (("value", "x"), "y_interval", 1)],
)
def test_intervals_are_those_of_the_rows(columns, option, place):
    axes = Figure().subplots()
    look = {"hue": "kind", "palette": COLORS, option: ("x_low", "x_high")}
    kinds.points(axes, ROWS, *columns, **look)
    [container] = axes.containers
    ends = [tuple(segment[:, place]) for segment in container.lines[2][0].get_segments()]
    # never beyond its point, nothing if unknown
    assert ends == pytest.approx([(0.5, 1.5), (1, 4), (2, 2.6), (3, 3)])
    found = [to_hex(color) for color in axes.collections[0].get_facecolor()]
    assert found == [COLORS[kind] for kind in ROWS["kind"]]


def test_a_line_joins_the_rows_of_its_series_and_no_mean_of_them():
    axes = Figure().subplots()
    kinds.lines(
        axes,
        ROWS.assign(x=1.0),
        "x",
        "value",
        by=["what"],
        hue="kind",
        palette=COLORS | {"mixed": "#000000"},
    )
    assert sorted(y for line in axes.lines for y in line.get_ydata()) == [10, 20, 30, 40]
    assert axes.get_xlabel() == axes.get_ylabel() == ""


def test_a_missing_value_has_no_mark_and_a_picture_of_many_has_no_titles():
    axes = Figure().subplots()
    kinds.points(axes, ROWS.assign(value=[np.nan, 1.0, 2.0, np.nan]), "x", "value")
    kinds.points(axes, pd.concat([ROWS] * style.MANY), "x", "value")
    few, many = axes.collections
    assert len(few.get_offsets()) == len(few.get_urls()) == 2
    assert many.get_rasterized()
    assert many.get_urls() == [None]


def test_no_two_values_look_alike_in_colour_and_marker():
    names = [f"mode {place}" for place in range(20)]
    colors, shapes = style.colors(names), style.shapes(names)
    assert len({(colors[name], shapes[name]) for name in names}) == 20
    assert {shapes[name] for name in names[:8]} == {style.MARKERS[0]}


def test_a_format_beyond_the_usual_takes_a_colour_that_is_free():
    usual = style.usual_colors(["fp32", "bf16"])
    colors = style.usual_colors(["fp32", "bf16", "int8", "int4"])
    assert len(set(colors.values())) == 4
    assert {name: colors[name] for name in usual} == usual


def test_a_panel_without_rows_is_not_drawn_and_no_row_or_column_is_made_of_such_panels():
    rows = pd.DataFrame(
        {"machine": ["a", "a", "b", "c"], "mode": ["training", "inference", "training", "other"]}
    )
    figure = style.blank("", "")
    modes = {mode: mode for mode in ("training", "inference", "decoding")}
    panels = style.facets(figure, rows.assign(recorded=False), "mode", modes)
    assert [(axes.get_title(), len(here)) for axes, here in panels] == [
        ("a · training", 1),
        ("a · inference", 1),
        ("b · training", 1),
        ("b · inference", 0),
    ]
    assert [axes.get_visible() for axes, _ in panels] == [True, True, True, False]


@pytest.mark.parametrize("shared", [{"sharey": "row", "sharex": True}, {"sharey": True}])
def test_a_panel_beside_one_that_is_not_drawn_has_its_names_and_numbers(shared):
    rows = pd.DataFrame(
        {"machine": ["a", "a", "b"], "mode": ["training", "inference", "inference"]}
    ).assign(recorded=False)
    titles = {"training": "", "inference": ""}
    figure = style.blank("", "")
    panels = style.facets(figure, rows, "mode", titles, x="time", y="speed", **shared)
    upper_left, upper_right, hidden, lower_right = (axes for axes, _ in panels)
    assert not hidden.get_visible()
    figure.draw_without_rendering()
    spans = (upper_left.get_position().x0, upper_right.get_position().x1)
    wide = lower_right.get_position()
    assert (wide.x0, wide.x1) == pytest.approx(spans), "alone in its row, it has the whole row"
    assert upper_right.xaxis.get_tick_params()["labelbottom"], "whose numbers stand elsewhere below"
    assert lower_right.get_ylabel() == "speed"
    assert lower_right.yaxis.get_tick_params()["labelleft"]
    assert upper_left.get_xlabel() == "time"
    assert upper_left.xaxis.get_tick_params()["labelbottom"]
    assert upper_right.get_ylabel() == upper_right.get_xlabel() == ""
