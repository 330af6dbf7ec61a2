"""Steps read from traces on the report's figures, beside measured runs."""

import pytest
from support import report_rows
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures, frames, selection
from mfulab.lab.report.drawing import style
from mfulab.lab.report.page import why
from mfulab.lab.tables import build
from mfulab.lab.tables.records import Collected


@pytest.fixture(scope="module", params=[1, 3])
def tables(request, tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("tables"), Collected()
    for row in report_rows.traces()[: request.param]:
        found.records["traces"].append({**row.model_dump(), "experiment": "", "recorded": False})
    build.joined(found.records)
    build.write(found, folder)
    return frames.read(folder)[0]


@pytest.mark.parametrize("language", few(["ko", "en"]))
@pytest.mark.parametrize(
    "name", ["headroom", "mfu_versus_utilization", "roofline", "utilization_ladder"]
)
def test_traces_are_drawn_as_read(tables, name, language):
    drawn = figures.render(name, tables, language)
    assert drawn is not None
    assert "prefill" in drawn.finding or "tiny_bert" in drawn.finding
    label = frames.Machine("NVIDIA H100 80GB HBM3", False, True).label(Texts(language))
    assert label in drawn.figure.texts[1].get_text()


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    "cause", ["stalled", "launch_bound", "not_explained", "busy_not_useful", "no_mfu"]
)
def test_a_trace_is_advised_by_its_verdict_alone(tables, cause, language):
    """It is recorded already, and its program is no model of the config: neither trace nor
    experiment is asked for."""
    traces = tables["traces"].assign(verdict=cause)
    section = why.section({**tables, "traces": traces}, (), set(), language)
    assert len(section["cases"]) == len(traces)
    for case in section["cases"]:
        assert case["advice"]
        assert "profile.trace" not in case["advice"]
        assert "flops_per_step" not in case["advice"]
        assert case["experiment"] == ""
    assert section["answers"] == []


@pytest.mark.parametrize(
    ("language", "step", "run"), [("en", " step", " run"), ("ko", "스텝", "실행")]
)
def test_sentences_on_traces_speak_of_steps(tables, language, step, run):
    text = Texts(language, "mfu_versus_utilization")
    rows = figures.modules()["mfu_versus_utilization"].rows(tables)
    row = rows.loc[rows["mfu_percent"].idxmin()]
    cases = (rows, rows.assign(utilization_percent=50.0), rows.assign(mfu_percent=150.0))
    for each in cases:
        above = bool((each["mfu_percent"] > 100).any())
        said = figures.modules()["mfu_versus_utilization"].finding(each, text)
        assert step.strip() in said or not above
        assert run not in said
    because = figures.modules()["mfu_versus_utilization"].because(row, text)
    assert because == "" or row["model"] in because


@pytest.mark.parametrize("is_recorded", [False, True])
def test_only_rows_of_traces_are_read(tables, recorded, is_recorded):
    """A measured machine is not one of a trace, whatever its name."""
    measured = recorded["profile"].head(2)
    name = frames.with_traces(tables)["hardware"].iloc[0]
    measured = measured.assign(hardware=[name, "here"], recorded=[True, is_recorded])
    both = {**recorded, "profile": measured, "traces": tables["traces"]}
    rows = frames.with_traces(both)
    count = len(tables["traces"])
    assert list(rows["is_read"]) == [False, False, *[True] * count]
    assert not frames.with_traces({**both, "traces": tables["traces"].head(0)})["is_read"].any()
    labelled = frames.with_machine(both, rows)
    assert list(labelled["is_read"]) == list(rows["is_read"])
    assert list(labelled["machine_name"]) == [name, "here", *["NVIDIA H100 80GB HBM3"] * count]
    assert labelled["machine"].nunique() == 3
    left = selection.pick(labelled.assign(recorded=True), "recorded_trace")
    assert list(left["hardware"]) == [name, "here"]


@pytest.mark.parametrize(
    "name", ["headroom", "mfu_versus_utilization", "roofline", "utilization_ladder"]
)
def test_beside_measured_runs_each_row_knows_whether_it_is_read(tables, invented, name):
    rows = figures.modules()[name].rows({**invented, "traces": tables["traces"]})
    devices = set(frames.with_machine(invented, invented["profile"])["machine_name"])
    assert rows["is_read"].dtype == bool
    assert set(rows.loc[~rows["is_read"], "machine_name"]) <= devices
    assert set(rows.loc[rows["is_read"], "machine_name"]) <= {"NVIDIA H100 80GB HBM3"}
    assert list(rows["is_read"]) == list(rows["run"].str.startswith("trace="))


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_device_that_no_trace_names_has_words(tables, language):
    traces = tables["traces"].assign(device="")
    both = {**tables, "traces": traces}
    text = Texts(language)
    rows = frames.in_words(frames.with_machine(both, frames.with_traces(both)), text)
    unnamed = text("machine_of_trace", machine=text("machine_without_name"))
    assert set(rows["machine"]) == {unnamed}


def test_the_parts_of_a_bar_sum_to_its_step(tables):
    rows = figures.modules()["headroom"].rows(tables)
    parts = rows[list(figures.modules()["headroom"].PARTS)].astype(float).sum(axis=1)
    assert parts.tolist() == pytest.approx([100.0] * len(rows))
    assert rows["useful"].tolist() == pytest.approx(rows["mfu_percent"].tolist())


def test_of_recordings_lost_milliseconds_are_of_every_machine_that_was_measured(recorded):
    rows = figures.modules()["headroom"].rows(recorded)
    measured = frames.with_machine(
        recorded, frames.ok(recorded["profile"], "time_s", "mfu_percent", "useful_ms")
    )
    assert {*rows["machine"]} == {*style.machines(measured)}
    assert not rows["is_read"].any()
    told = selection.first_run(figures.modules()["mfu_versus_utilization"].rows(recorded))
    assert told["model"] in {*rows.loc[rows["machine"] == told["machine"], "model"]}
