"""Figures beside the first screen tell of its run, and of doubtful runs only where no others are."""

import pandas as pd
import pytest

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import figures, frames, selection, summary, trust
from mfulab.lab.report.page import document, why
from mfulab.mfu.causes import BY_KEY

BESIDE = ("headroom", "utilization_ladder")  # figures that must have the first screen's run


def first_of(tables: frames.Tables) -> pd.Series:
    """The run that the page's first sentences are about."""
    headline = figures.modules()["mfu_versus_utilization"]
    return selection.first_run(selection.drawable(headline, tables))


def with_doubt(tables: frames.Tables, model: str, most: float) -> frames.Tables:
    """The tables with a model's runs up to a batch size disturbed, and busier than its others."""
    profile = tables["profile"].drop(columns=list(frames.JUDGED))
    is_busy = (profile["model"] == model) & (profile["batch_size"] <= most)
    flags = profile["verdict_flags"].mask(is_busy, '{"beside": {"share": 30.0}}')
    busy = profile["utilization_percent"].mask(is_busy, 100.0)
    profile = profile.assign(verdict_flags=flags, utilization_percent=busy)
    return trust.judged({**tables, "profile": profile})


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("tables", ["quickstart", "recorded"])
def test_the_first_screen_s_run_is_in_the_figures_beside_it(request, tables, name):
    judged = trust.judged(request.getfixturevalue(tables))
    first = first_of(judged)
    rows = selection.drawable(figures.modules()[name], judged)
    drawn = rows[(rows["machine"] == first["machine"]) & (rows["run"] == first["run"])]
    assert len(drawn) == 1


@pytest.mark.parametrize("name", BESIDE)
def test_a_doubtful_run_is_no_model_s_busiest_beside_a_trusted_one(quickstart, name):
    module = figures.modules()[name]
    tables = with_doubt(quickstart, "resnet18", 1)
    busiest = tables["profile"].query("model == 'resnet18'")
    assert trust.unsure(busiest).any()
    assert not trust.unsure(busiest).all()
    rows = module.rows(tables)
    assert "resnet18" in set(rows["model"])
    assert not trust.unsure(rows).any()


def test_a_machine_of_doubtful_runs_alone_keeps_them(quickstart):
    profile = quickstart["profile"].drop(columns=list(frames.JUDGED))
    profile = profile.assign(verdict_flags='{"beside": {"share": 30.0}}')
    rows = figures.modules()["headroom"].rows(trust.judged({**quickstart, "profile": profile}))
    assert len(rows) >= profile["model"].nunique() > 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_causes_of_the_page_begin_with_the_first_run(quickstart, language):
    first = first_of(quickstart)
    section = why.section(quickstart, [first.name], set(), language)
    text = Texts(language, "why")
    mode = text.name("mode", first["mode"])
    assert section["cases"][0]["title"] == f"{first['model']} · {mode}"
    titles = [case["title"] for case in section["cases"]]
    assert len(titles) == len(set(titles)), "a case a model and mode"


def test_a_figure_is_linked_only_where_it_holds_the_run_s_machine_and_mode(quickstart):
    first = first_of(quickstart)
    figure = BY_KEY[first["verdict"]].figure
    here = why.Held(figure, first["machine"], first["mode"])

    def linked(*held: why.Held) -> str:
        found = why.first(quickstart, first, set(held), "en")["figure"]
        section = why.section(quickstart, [first.name], set(held), "en")
        assert section["cases"][0]["figure"] == found
        return found

    assert linked(here) == linked(here._replace(mode="")) == figure
    assert linked() == ""
    assert linked(here._replace(machine="another")) == ""
    assert linked(here._replace(mode="decoding")) == ""
    assert linked(here._replace(figure="ceilings")) == ""


def test_a_figure_holds_the_machines_and_modes_of_its_rows():
    rows = pd.DataFrame({"machine": ["a", "a", "b"], "mode": ["training", "training", "inference"]})
    expected = {why.Held("roofline", "a", "training"), why.Held("roofline", "b", "inference")}
    assert document._held("roofline", rows) == expected
    assert document._held("ceilings", rows[["machine"]].head(1)) == {why.Held("ceilings", "a", "")}
    assert document._held("published_mfu", rows[["mode"]]) == set()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_idle_time_of_a_cpu_lies_between_operators(quickstart, language, device):
    words = Texts(language, "trace")
    names = {"cpu": words("idle_of_cpu"), "cuda": words("idle")}
    environment = quickstart["environment"].assign(device=device)
    tables = {**quickstart, "environment": environment}
    cases = why.section(tables, (), set(), language)["cases"]
    drawn = [part["says"] for case in cases for part in case["parts"]]
    counts = {}
    for key, name in names.items():
        counts[key] = sum(says.startswith(f"{name}:") for says in drawn)
        assert any(name in case["named"] for case in cases) == (key == device)
    assert counts[device] > 0
    assert sum(counts.values()) == counts[device]


def test_one_colour_of_the_list_has_one_name(quickstart):
    rows = frames.ok(frames.with_machine(quickstart, quickstart["profile"]), "mfu_percent")
    rows = trust.with_doubts(frames.with_traces({**quickstart, "profile": rows}))
    rows = rows.dropna(subset=["utilization_percent"])
    parts = [name for name in rows if name.endswith("_ms")]
    rows = rows.assign(**dict.fromkeys(parts, 0.0)).assign(idle_ms=1e3 * rows["time_s"])
    words = Texts("en", "trace")
    drawn = selection.first_run(rows).name  # the names are those of the runs that are drawn
    mixed = rows.assign(device=rows["device"].mask(rows.index == drawn, "cuda"))
    for here, key in ((rows, "idle_of_cpu"), (mixed, "idle")):
        lanes = why.lanes(here, "en")
        causes = {line["cause"] for lines in lanes.values() for line in lines}
        assert causes == {words(key)}


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_remedy_for_another_machine_s_run_says_so(quickstart, is_recorded):
    profile = quickstart["profile"].assign(recorded=is_recorded)
    matmul = quickstart["matmul"].assign(recorded=is_recorded)
    environment = quickstart["environment"].assign(recorded=is_recorded)
    tables = {**quickstart, "profile": profile, "matmul": matmul, "environment": environment}
    assert why.first(tables, first_of(tables), set(), "en")["is_elsewhere"] is is_recorded
    for language in LANGUAGES:
        text = Texts(language, "lines")
        lines = summary._first_screen(tables, language)
        labels = [text(key, advice="") for key in ("try", "try_there")]
        is_there = [any(line.startswith(label) for line in lines) for label in labels]
        assert is_there == [not is_recorded, is_recorded]


def steps_of(tables: frames.Tables) -> pd.DataFrame:
    rows = frames.with_machine(tables, frames.with_traces(tables))
    return frames.ok(frames.own_or_recorded(rows), "time_s")


@pytest.mark.parametrize("tables", ["quickstart", "recorded"])
def test_one_run_stands_for_its_machine_model_and_mode(request, tables):
    judged = trust.judged(request.getfixturevalue(tables))
    steps = steps_of(judged)
    named = selection.named_of_page(figures.modules()["mfu_versus_utilization"], judged)
    assert named[0] == first_of(judged).name
    told = selection.one_of_each(steps, named)
    assert not told.duplicated(selection.CASE).any()
    assert len(told) == len(steps[selection.CASE].drop_duplicates())
    assert set(named[:1]) <= set(told.index)
    assert set(why.chosen(steps, named).index) <= set(told.index)


@pytest.mark.parametrize("tables", ["quickstart", "recorded"])
def test_figures_and_cards_tell_one_run_of_a_model_and_mode(request, tables):
    judged = trust.judged(request.getfixturevalue(tables))
    headline = figures.modules()["mfu_versus_utilization"]
    named = selection.named_of_page(headline, judged)
    told = {*named, *selection.one_of_each(steps_of(judged), named).index}
    for name in BESIDE:
        assert set(figures.modules()[name].rows(judged).index) <= told, name
    charted = selection.drawable(headline, judged)
    drawn = headline.shown(charted, Texts("en", "mfu_versus_utilization"))
    if len(drawn) < len(charted):
        assert set(drawn.index) <= told
