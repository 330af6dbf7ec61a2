"""One selection of rows: sentences name what their figures draw, and counts agree."""

import random
from collections import Counter
from collections.abc import Sequence

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from support.slow import examples

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import figures, frames, selection, summary, trust
from mfulab.lab.report.drawing import runs, style

EXAMPLES = examples(3, 8)
LENIENT = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def planted(tables: frames.Tables, seed: int) -> frames.Tables:
    """The tables with rows that are doubtful, recorded or synthetic by chance."""
    chance = random.Random(seed)
    share = chance.choice([0.0, 0.2, 0.7])
    recorded = {name: chance.random() < 0.4 for name in sorted(machines(tables))}
    changed = {}
    for name, rows in tables.items():
        rows = rows.copy()
        if "steady" in rows:
            rows["steady"] = [chance.random() >= share for _ in range(len(rows))]
        if {"recorded", "hardware"} <= set(rows):
            rows["recorded"] = rows["hardware"].map(recorded).fillna(rows["recorded"]).astype(bool)
        changed[name] = rows
    return trust.judged(changed)


def machines(tables: frames.Tables) -> set[str]:
    return set(tables["environment"]["hardware"])


def marks_by_run(figure: Figure) -> Counter[str]:
    """Number of marks of each run of a figure, as their titles begin."""
    marks: Counter[str] = Counter()
    for artist in figure.findobj():
        urls = list(getattr(artist, "get_urls", list)() or [])
        for url in [*urls, artist.get_url()]:
            if url and url.startswith(runs.MARK):
                marks[url.split(":")[1]] += 1
    return marks


def is_drawn(rows: pd.DataFrame, figure: Figure) -> pd.Series:
    """True for each row that has a mark; of several rows of a run, for as many as it has marks."""
    marks = marks_by_run(figure)
    own = pd.Series([title.split(":")[1] for title in runs._titles(rows, ())], rows.index, str)
    return own.groupby(own).cumcount() < own.map(marks).fillna(0)


@settings(max_examples=EXAMPLES, phases=[Phase.generate], **LENIENT)
@given(seed=st.integers(0, 2**16), place=st.integers(0, 99))
def test_a_sentence_needs_no_row_that_its_figure_does_not_draw(invented, seed, place):
    tables = planted(invented, seed)
    names = list(figures.modules())
    name = names[place % len(names)]
    module, text = figures.modules()[name], Texts("en", name)
    rows = trust.with_doubts(frames.in_words(selection.drawable(module, tables), text))
    drawn = figures.render(name, tables, rows=rows)
    if drawn is None:
        return
    seen = is_drawn(rows, drawn.figure)
    if module.TOPIC != selection.HEADLINE:
        assert figures.finding(module, rows[seen], text) == drawn.finding, name
        return
    for row in rows[~seen].to_dict("records"):
        assert row["model"] in set(rows.loc[seen, "model"]) or row["model"] not in drawn.finding


@settings(max_examples=EXAMPLES, phases=[Phase.generate], **LENIENT)
@given(seed=st.integers(0, 2**16))
def test_told_and_left_out_rows_are_all(invented, seed):
    tables = planted(invented, seed)
    rows = frames.steps(tables, "time_s")
    chosen = selection.select(rows)
    assert len(chosen.told) + sum(chosen.left_out.values()) == len(rows)
    if not trust.doubtful(rows).all():
        assert not trust.doubtful(chosen.told).any()
    sound = rows[~trust.doubtful(rows)]
    if (~sound["recorded"]).any():
        assert not chosen.told["recorded"].any()
    assert chosen.told["machine"].nunique() == 1


def test_a_first_sweep_has_at_most_ten_figures_of_its_own(invented):
    own = {
        name: rows.assign(experiment=selection.FIRST_SWEEPS[0]) if name in trust.STEPS else rows
        for name, rows in trust.judged(invented).items()
    }
    names = list(figures.page_rows(own))
    assert 1 < len(names) <= selection.MOST_FIGURES
    assert names[0] == selection.FIRST_FIGURES[0]


def test_a_first_sweep_s_figures_draw_own_rows_alone_where_these_make_one(invented):
    class Ladder:
        TOPIC = "ladder"
        rows = staticmethod(lambda tables: tables["drawn"])

    steps = trust.judged(invented)["profile"].head(1)
    steps = steps.assign(recorded=False, experiment=selection.FIRST_SWEEPS[0])
    here = of_two_machines([False] * 4).assign(recorded=[False, False, True, True])
    first = {"profile": steps, "drawn": here}
    later = {"profile": steps.assign(experiment="kernels"), "drawn": here}
    assert set(selection.drawable(Ladder, first)["machine"]) == {"x"}
    assert set(selection.drawable(Ladder, later)["machine"]) == {"x", "y"}
    few = {**first, "drawn": here.iloc[1:]}
    assert set(selection.drawable(Ladder, few)["machine"]) == {"x", "y"}


@pytest.mark.parametrize("count", [0, 1])
def test_one_row_is_no_figure(invented, count):
    module = figures.modules()["precision_speed"]
    tables = trust.judged(invented)
    assert len(selection.drawable(module, tables)) > 1

    class Few:
        TOPIC = module.TOPIC

        @staticmethod
        def rows(tables: frames.Tables) -> pd.DataFrame:
            return module.rows(tables).head(count)

    assert selection.drawable(Few, tables).empty


def test_figures_of_doubtful_rows_alone_are_not_drawn(invented):
    tables = {
        name: rows.assign(steady=False) if "steady" in rows else rows
        for name, rows in invented.items()
    }
    judged = trust.judged(tables)
    assert len(selection.drawable(figures.modules()["energy_efficiency"], trust.judged(invented)))
    assert selection.drawable(figures.modules()["energy_efficiency"], judged).empty
    assert len(selection.drawable(figures.modules()["mfu_versus_utilization"], judged))


def of_two_machines(doubtful: Sequence[bool]) -> pd.DataFrame:
    judged = {"doubtful": doubtful, "impossible": False, "doubts": 0, "reach": 1.0}
    machines = ["x", "x", "y", "y"]
    return pd.DataFrame({"machine": machines, "recorded": True, "status": "ok"} | judged)


@pytest.mark.parametrize(
    ("doubtful", "drawn"),
    [
        ([False] * 4, {"x", "y"}),
        ([True, False, True, False], {"x", "y"}),
        ([False, False, True, True], {"x"}),
        ([True] * 4, set()),
    ],
)
def test_a_machine_of_doubtful_rows_alone_has_no_panel_beside_a_sound_one(doubtful, drawn):
    class Figure:
        TOPIC = "ladder"
        rows = staticmethod(lambda tables: tables["rows"])

    rows = selection.drawable(Figure, {"rows": of_two_machines(doubtful)})
    assert set(rows["machine"]) == drawn


@pytest.mark.parametrize("name", ["utilization_ladder", "roofline", "counter_deviation"])
def test_loads_are_drawn_only_alone(invented, name):
    module = figures.modules()[name]
    table = "counters" if name == "counter_deviation" else "profile"
    tables = trust.judged(invented)
    rows = tables[table]
    load = rows.assign(model="spinning", run=rows["run"] + " of a load")
    if "mfu_percent" in load:  # no other run loses as much
        load = load.assign(mfu_percent=load["mfu_percent"] / 1000)
    both = pd.concat([rows, load], ignore_index=True)
    assert set(module.rows({**tables, table: both})["model"]) == set(module.rows(tables)["model"])
    assert set(module.rows({**tables, table: load})["model"]) == {"spinning"}


@pytest.mark.parametrize(
    ("names", "recorded", "is_read", "begins"),
    [
        (["NVIDIA H100", "AMD EPYC"], [False, True], False, "NVIDIA H100, AMD EPYC{recorded} · "),
        (["A" * 30, "B" * 30], True, False, f"{'A' * 30}{{recorded}}, {'B' * 30}{{recorded}} · "),
        (["A" * 48, "B" * 39], True, False, f"{'A' * 48}, {'B' * 39}{{recorded}} · "),
        (["A" * 40, "B" * 33], False, True, f"{'A' * 40}, {'B' * 33}{{read}} · "),
        (["A" * 40, "B" * 40], True, [False, True], f"{'A' * 40}{{recorded}} +1 · "),
        (["A" * 36 + " (x)", "B" * 36 + " (x)", "C" * 40], False, False,
         f"{'A' * 36} (x), {'B' * 36} (x) +1 · "),
        (["A" * 36, "B" * 36, "C" * 40], True, False, f"{'A' * 36}, {'B' * 36} +1{{recorded}} · "),
        (["A" * 300], True, False, "A" * 80),
    ],
)  # fmt: skip
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_was_measured_where_names_whole_machines(names, recorded, is_read, begins, language):
    text = Texts(language)
    marks = {
        "recorded": text("machine_recorded", machine=""),
        "read": text("machine_of_trace", machine=""),
    }
    rows = pd.DataFrame({"machine_name": names, "machine": names})
    rows = rows.assign(recorded=recorded, is_read=is_read, started_at="2026-01-02")
    says = style.provenance(frames.in_words(rows, text).assign(commit="0123abcdef"), text)
    assert says.startswith(begins.format(**marks))
    assert says.endswith("2026-01-02 · mfulab 0123abc")
    assert style.letters(says) <= style.LETTERS + 3


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_terminal_ends_with_recorded_runs_where_none_was_measured_here(invented, language):
    recorded = {
        name: rows.assign(recorded=True) if "recorded" in rows else rows
        for name, rows in invented.items()
    }
    finding, *others = summary._first_screen(recorded, language)
    run = selection.first_run(
        selection.drawable(figures.modules()["mfu_versus_utilization"], trust.judged(recorded))
    )
    assert run["model"] in finding
    assert len(others) >= 2
    own = invented["matmul"].assign(recorded=False)
    assert summary._first_screen({**recorded, "matmul": own}, language) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_rows_left_out_for_doubt_are_one_number(language):
    text = Texts(language, "headroom")
    left_out = {"contradict": 1, "doubtful": 2, "unsure": 4, "recorded": 8, "synthetic": 16}
    told = selection.left_out_words(selection.Selection(pd.DataFrame(), left_out), text)
    assert told == f"{text('left_doubtful', count=7)} {text('left_recorded', count=8)}"
