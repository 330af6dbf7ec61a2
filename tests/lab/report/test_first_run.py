"""Figures beside the first screen tell of its run, and of doubtful runs only where no others are."""

import pandas as pd
import pytest

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import figures, frames, selection, trust
from mfulab.lab.report.page import why

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
    section = why.section(quickstart, first, set(), language)
    text = Texts(language, "why")
    mode = text.name("mode", first["mode"])
    assert section["cases"][0]["title"] == f"{first['model']} · {mode}"
    titles = [case["title"] for case in section["cases"]]
    assert len(titles) == len(set(titles)), "a case a model and mode"
