"""Training techniques: the sentence from its rows, and a figure in which no text covers another."""

import pytest
from support.drawn import overlaps, step, tables
from support.said import heard
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.lab.planning.keys import choices
from mfulab.lab.report import figures
from mfulab.lab.report.figures import training_phases

TECHNIQUES = [name for name in choices(ROOT / "config", "workload") if name.startswith("training")]


def row(**changes) -> dict:
    """A plain step of 10 ms, four of them the optimiser's."""
    plain = {"model": "simple_cnn", "batch_size": 1, "time_s": 0.010, "checkpointing": "False"}
    shares = {"mfu_percent": 10.0, "hfu_percent": 10.0}
    phases = {"forward_ms": 2.0, "backward_ms": 3.5, "optimiser_ms": 4.0, "other_ms": 0.5}
    made = {**plain, **phases, **shares, **changes}
    samples = made.pop("samples", made["batch_size"])
    made = {"gradient_accumulation": samples / made["batch_size"], "phases_percent": 100.0, **made}
    return {**step(), "samples_per_s": samples / made["time_s"], **made}


def said(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(training_phases, tables(tmp_path, *rows))


def test_one_plain_step_says_what_its_optimiser_takes(tmp_path):
    told = said(tmp_path, row())
    assert told.keys() == {"finding"}
    plain = told["finding"][0]["row"]
    assert (plain["model"], plain["batch_size"]) == ("simple_cnn", 1)
    assert (plain["share"], plain["mfu_percent"]) == (pytest.approx(40), 10)


def test_a_technique_of_two_runs_is_said_to_be_their_median(tmp_path):
    told = said(tmp_path, row(run="one"), row(run="two", time_s=0.012))
    assert told["medians"] == [{"count": 2}]


def test_the_fastest_technique_is_named_and_held_against_plain(tmp_path):
    fused = row(workload="training_adam_fused", time_s=0.007, optimiser_ms=1.0, mfu_percent=14.3)
    several = row(workload="training_accumulated", time_s=0.020, samples=4, mfu_percent=20.0)
    [fastest] = said(tmp_path, row(), fused, several)["faster"]
    assert fastest["row"]["gradient_accumulation"] == 4
    assert (fastest["factor"], fastest["row"]["mfu_percent"]) == (pytest.approx(2), 20)


@pytest.mark.parametrize("time_s", [0.010, 0.012])
def test_equal_or_slower_techniques_are_not_called_faster(tmp_path, time_s):
    told = said(tmp_path, row(), row(workload="training_clipped", time_s=time_s, mfu_percent=9.0))
    assert "no_faster" in told
    assert "faster" not in told


@pytest.mark.parametrize(("share", "is_told"), [(108.0, True), (103.0, False)])
def test_phases_that_do_not_sum_to_the_step_say_so(tmp_path, share, is_told):
    read = tables(tmp_path, row(phases_percent=share), row(workload="training_adam_fused"))
    told = heard(training_phases, read)
    assert ("differ" in told) == is_told
    drawn = figures.render("training_phases", read)
    words = [each.get_text() for axes in drawn.figure.axes for each in axes.texts]
    assert sum(training_phases.SUM in each for each in words) == is_told
    entries = [each.get_text() for each in drawn.figure.legends[0].get_texts()]
    assert any(each.startswith(training_phases.SUM) for each in entries) == is_told


def test_another_batch_is_no_technique_and_checkpointing_parts_hfu_from_mfu(tmp_path):
    again = row(
        batch_size=8,
        workload="training_checkpointed",
        checkpointing="True",
        hfu_percent=40.0,
        mfu_percent=30.0,
    )
    told = said(tmp_path, row(), row(batch_size=8, optimiser_ms=0.1), again)
    assert "faster" not in told
    raised = told["checkpointed"][0]["row"]
    assert (raised["hfu_percent"], raised["mfu_percent"]) == (40.0, 30.0)


def test_a_busy_device_is_said(tmp_path):
    [busy] = said(tmp_path, row(utilization_percent=99.0))["busy"]
    assert busy["row"]["utilization_percent"] == 99


def test_techniques_within_the_intervals_are_no_gain(tmp_path):
    wide = {"time_ci_low_s": 0.002, "time_ci_high_s": 0.03}
    plain = row(time_ci_low_s=0.009, time_ci_high_s=0.011)
    near = row(workload="training_adam_fused", time_s=0.007, **wide)
    told = said(tmp_path, plain, near, row(workload="training_sgd", time_s=0.008))
    [fastest] = told["faster"]
    assert (fastest["row"]["workload"], fastest["factor"]) == ("training_sgd", pytest.approx(1.25))
    assert told["overlaps"] == [{"count": 1, "total": 2}]
    assert "no_faster" in said(tmp_path, plain, near)
    several = row(workload="training_accumulated", time_s=0.020, samples=4, mfu_percent=20.0)
    close = {"time_ci_low_s": 0.004, "time_ci_high_s": 0.006}
    first, second = (
        row(workload=each, time_s=0.005, **close)
        for each in ("training_sgd", "training_adam_fused")
    )
    [faster] = said(tmp_path, plain, first, second)["faster"]
    assert (faster["tied"], faster["factor"]) == (2, pytest.approx(2))
    # 20 ms for four samples: its interval is held against one sample's.
    for high, key in ((0.037, "no_faster"), (0.035, "faster")):
        assert key in said(
            tmp_path, plain, {**several, "time_ci_low_s": 0.015, "time_ci_high_s": high}
        )


def test_checkpointing_trades_memory_for_time(tmp_path):
    again = row(
        workload="training_checkpointed", checkpointing="True", time_s=0.013, memory_bytes=60e6
    )
    plain = row(memory_bytes=100e6)
    [traded] = said(tmp_path, plain, again)["traded"]
    assert (traded["row"]["memory_bytes_plain"], traded["row"]["memory_bytes"]) == (100e6, 60e6)
    assert (traded["fast"], traded["slow"]) == (pytest.approx(0.01), pytest.approx(0.013))
    assert "traded" not in said(tmp_path, plain, again | {"memory_bytes": ""})
    wide = {"time_ci_low_s": 0.005, "time_ci_high_s": 0.02}
    vague = said(tmp_path, plain | wide, again | wide)
    assert "traded_alike" in vague
    assert "traded" not in vague


def test_without_a_plain_step_there_is_nothing_to_hold_against(tmp_path):
    assert training_phases.rows(tables(tmp_path, row(workload="training_clipped"))).empty
    assert training_phases.rows(tables(tmp_path, row(mode="inference", workload="inference"))).empty


@pytest.mark.slow
@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_every_technique_fits(tmp_path, language):
    rows = [
        row(
            model=model,
            workload=name,
            batch_size=batch,
            time_s=0.01 * (1 + place % 5),
            precision=precision,
        )
        for model in ("simple_cnn", "resnet18")
        for batch in (1, 8)
        for place, name in enumerate(sorted(TECHNIQUES))
        for precision in ("fp32", "amp_fp16")
    ]
    drawn = figures.render("training_phases", tables(tmp_path, *rows), language)
    assert overlaps(drawn.figure) == []
    width = drawn.figure.bbox.width
    assert all(
        text.get_window_extent().x1 <= width + 1
        for axes in drawn.figure.axes
        for text in axes.texts
    )
