"""Declared figures: a mark a row, a panel a machine or value, entries of what is drawn; sentences of
extremes; counts where shares would be of few."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.said import Heard, heard_of

from mfulab.core.language import Texts
from mfulab.lab.report import selection
from mfulab.lab.report.drawing import relative, specs, style
from mfulab.lab.report.figures import recompilations, repeatability
from mfulab.lab.tables.compare import Trust

TEXT = Texts("en", "subnormals")  # of which any key does
ROWS = pd.DataFrame(
    {
        "run": ["a", "b", "c", "d"],
        "hardware": "here",
        "machine": "here",
        "recorded": False,
        "doubtful": False,
        "model": ["small", "small", "large", "large"],
        "case": ["first", "second", "first", "second"],
        "numbers": ["normal", "subnormal", "normal", "subnormal"],
        "time_s": [1.0, 2.0, 3.0, 4.0],
    }
)
COLORS = {"normal": style.PALETTE[0], "flushed": style.PALETTE[1], "subnormal": style.PALETTE[2]}
BARS = specs.Bars(
    x="time_s",
    y="model",
    told=("time_s",),
    x_label="time",
    hue="numbers",
    colors=specs.present(COLORS),
)


def drawn(spec: specs.Spec, rows: pd.DataFrame = ROWS) -> tuple[Figure, list[str]]:
    with style.theme():
        figure = style.blank("", "")
        entries = spec(rows, figure, TEXT)
    return figure, [entry.get_label() for entry in entries]


def test_a_bar_a_row_and_an_entry_a_hue_that_is_drawn():
    figure, entries = drawn(BARS)
    [axes] = figure.axes
    assert sorted(bar.get_width() for bar in axes.patches) == list(ROWS["time_s"])
    assert entries == [TEXT("normal"), TEXT("subnormal")]
    assert axes.get_xlim() == (0, specs.ROOM * 4)
    assert axes.get_xlabel() == TEXT("time")


@pytest.mark.parametrize("most", [1, 3])
def test_a_panel_a_value_of_the_facet(most):
    spec = specs.Bars(x="time_s", y="model", facet="case", most=most, x_label="time")
    figure, _ = drawn(spec)
    assert len(figure.axes) == min(most, 2)
    assert [len(axes.patches) for axes in figure.axes] == [2] * len(figure.axes)


def test_rows_of_no_machine_have_one_panel():
    figure, _ = drawn(BARS, ROWS.drop(columns="machine"))
    assert len(figure.axes) == 1


def test_dots_lie_on_the_lines_of_their_names_and_hues_apart():
    spec = specs.Dots(
        x="time_s",
        y="model",
        hue="numbers",
        colors=specs.present(COLORS),
        order=lambda rows: ["large", "small"],
        apart=0.2,
    )
    figure, _ = drawn(spec)
    [axes] = figure.axes
    heights = {tuple(place) for marks in axes.collections for place in marks.get_offsets()}
    assert {time_s: round(height) for time_s, height in heights} == {1.0: 1, 2.0: 1, 3.0: 0, 4.0: 0}
    assert len({round(height, 3) for _, height in heights}) == 4


@pytest.mark.parametrize(("verdicts", "key"), [(4, "repeated_few"), (400, "repeated")])
def test_few_comparisons_are_counted(verdicts, key):
    text = Heard("repeatability")
    trust = Trust(8, 1.0, 40, 2, 75.0, verdicts, 25.0)
    repeatability._again(trust, text)
    assert text.heard.keys() == {key}
    if key == "repeated_few":
        assert (text.heard[key][0]["wrong"], text.heard[key][0]["covered"]) == (1, 30)


def test_a_run_stands_as_high_as_the_share_that_repeats_as_well():
    spreads = [4.0, 1.0, 16.0, 2.0, 8.0]
    rows = pd.DataFrame({"machine": "here", "spread_percent": spreads})
    dressed = repeatability._dressed(rows, Texts("en", "repeatability"))
    assert dressed["share"].tolist() == [60, 20, 100, 40, 80]
    assert dressed["shown"].tolist() == spreads


@pytest.mark.parametrize(("again", "key"), [(0.0, "best_never"), (1.0, "best")])
def test_a_model_that_never_compiles_again_is_told_so(again, key):
    rows = ROWS.assign(
        execution=["compile", "compile_dynamic", "eager", "eager"],
        model="small",
        recompilations=[9.0, again, float("nan"), float("nan")],
        varied_s=ROWS["time_s"],
        **dict.fromkeys(("graphs", "graph_breaks", "varied_calls"), 0.0),
    )
    assert [*heard_of(recompilations, rows)] == ["finding", "eager", key]


@pytest.mark.parametrize(
    ("sound", "keys"),
    [([True, True], []), ([True, False], ["left_out"]), ([False, False], ["faulty"])],
)
def test_rows_that_are_not_ranked_are_counted(sound, keys):
    text = Heard("precision_speed")
    selection.unranked_words(pd.Series(sound), text)
    assert [*text.heard] == keys


def test_a_machine_of_one_pair_has_no_panel_beside_others():
    pairs = pd.DataFrame({"machine": ["a", "b", "b"], "run": ["1", "2", "3"]})
    pairs = pairs.assign(time_s=1.0, time_s_base=1.0)
    assert relative.ranked(pairs)["run"].tolist() == ["2", "3"]
    assert relative.ranked(pairs.head(1))["run"].tolist() == ["1"]


@pytest.mark.parametrize("count", [0, 1, relative.MOST, 3 * relative.MOST])
def test_few_pairs_of_a_machine_are_drawn_from_the_slowest_to_the_fastest(count):
    speedups = [1.0 + at for at in range(count)]
    pairs = pd.DataFrame({"machine": "a", "speedup": speedups})
    drawn = relative.few(pairs)
    assert len(drawn) == min(count, relative.MOST)
    assert (len(drawn) + drawn["undrawn"] == count).all()
    if count:
        assert drawn["speedup"].agg(["min", "max"]).tolist() == [speedups[0], speedups[-1]]
    text = Heard("precision_speed")
    relative.reading(drawn, text)
    assert ("undrawn" in text.heard) == (count > relative.MOST)
