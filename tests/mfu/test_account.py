"""One account of a step, whoever gives its facts: a sweep's row, a loop, a trace."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.device.samplers.reading import Reading
from mfulab.loop.interactive.costs import PhaseCost
from mfulab.loop.interactive.peaks import WeightedPeaks
from mfulab.loop.interactive.row import Site, WindowWork, accounted
from mfulab.mfu.account import account, read
from mfulab.mfu.causes import BY_KEY, CAUSES
from mfulab.mfu.join import profile_columns
from mfulab.mfu.step import (
    Counters,
    StepFacts,
    StepPeaks,
    StepTime,
    StepWork,
    TracedTime,
    facts_of,
    without_hidden_matmuls,
)
from mfulab.mfu.traced import trace_columns

maybe = st.none() | st.floats(1e-3, 1e3)
SPENT = {"products": 600, "uncounted": 0, "others": 200, "idle": 200}
PEAK_TFLOP_S = 989.4  # of an H100 SXM in bf16
FLOPS = 494.7e12


def swept():
    step = {"status": "ok", "time_s": 1.0, "mode": "inference", "spent": json.dumps(SPENT)}
    return profile_columns(
        step, {"inference_flops": FLOPS}, {"computed_tflop_s": PEAK_TFLOP_S}, {}, "cuda"
    )


def traced():
    row = {"status": "ok", "device": "NVIDIA H100 80GB HBM3", "time_s": 1.0, "flops": FLOPS}
    row |= {"given_peaks": json.dumps({"bf16": PEAK_TFLOP_S}), "spent": json.dumps(SPENT)}
    by_format = json.dumps({"bf16": FLOPS})
    return trace_columns({**row, "flops_by_format": by_format, "executed_by_format": by_format})


def looped():
    peaks = StepPeaks("spec", peak_tflop_s=PEAK_TFLOP_S, executed_tflop_s=PEAK_TFLOP_S)
    site = Site(torch.bfloat16, torch.device("cpu"), (), lambda *_: WeightedPeaks(peaks))
    formats = {(torch.bfloat16, False): int(FLOPS)}
    work = WindowWork(PhaseCost(formats, formats), 1, 1.0, Reading(FLOPS, "", "given"))
    window = accounted(work, site, {"spent": json.dumps(SPENT)})
    return window.columns | window.account.budget_columns()


@pytest.mark.parametrize("door", [swept, traced, looped])
def test_every_door_gives_the_same_account(door):
    columns = door()
    assert columns["mfu_percent"] == pytest.approx(50.0)
    assert columns["hfu_percent"] in (None, pytest.approx(50.0))
    assert columns["useful_ms"] == pytest.approx(500.0)
    assert columns["matmuls_below_best_ms"] == pytest.approx(100.0)
    assert sum(columns[name] or 0 for name in columns if name.endswith("_ms")) == pytest.approx(1e3)


@given(
    st.builds(
        StepFacts,
        time=st.builds(StepTime, time_s=maybe),
        work=st.builds(StepWork, flops=maybe, executed_flops=maybe, of_model=st.booleans()),
        peaks=st.builds(
            StepPeaks,
            basis=st.sampled_from(["spec", "measured"]),
            peak_tflop_s=maybe,
            ceiling_tflop_s=maybe,
        ),
        counters=st.builds(Counters, utilization_percent=maybe, page_faults_per_s=maybe),
        traced=st.builds(TracedTime, spent_ns=st.none() | st.just(SPENT)),
    )
)
def test_an_account_sums_to_its_step_and_answers_or_says_why_not(facts):
    step = account(facts)
    if step.budget_ms:
        assert sum(step.budget_ms.values()) == pytest.approx(1e3 * facts.time.time_s)
    answer = step.mfu()
    assert (answer.value is None) == (answer.reason is not None)
    assert step.verdict.cause in BY_KEY


def test_a_trace_that_was_not_read_has_no_note():
    row = {"status": "ok", "device": "NVIDIA H100 80GB HBM3", "time_s": 1.0}
    assert trace_columns(row)["mfu_note"] == "uncounted"
    assert trace_columns({**row, "status": "failed"})["mfu_note"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": None}, {"unnamed_device": {"precision": "bf16"}}),
        ({"device": "a thing"}, {"unknown_device": {"device": "a thing", "precision": "bf16"}}),
        ({"device": "T4"}, {"no_peak_in": {"device": "T4", "precision": "bf16"}}),
        ({"flops": None}, {"uncounted": {}}),
        ({"flops": None, "reasons": '{"flops": {"no_shapes": {}}}'}, {"no_shapes": {}}),
        ({"uncounted_percent": 50.1}, {"mostly_uncounted": {"share": 50.1, "least": 49.9985}}),
        ({"uncounted_percent": 50.0}, None),
        ({"status": "failed", "flops": None}, None),
    ],
)
def test_a_trace_says_why_it_has_no_mfu(change, reason):
    by_format = json.dumps({"bf16": FLOPS} if change.get("flops", FLOPS) else {})
    row = {"status": "ok", "device": "NVIDIA H100 80GB HBM3", "time_s": 1.0, "flops": FLOPS}
    columns = trace_columns({**row, "flops_by_format": by_format, **change})
    told = columns["mfu_reason"]
    assert (json.loads(told) if told else None) == reason


@pytest.mark.parametrize(
    ("spent_ns", "is_seen"),
    [
        ({"products": 6, "uncounted": 5, "idle": 1}, True),
        ({"products": 6, "idle": 1}, True),
        ({"uncounted": 5, "idle": 1}, True),
        ({"products": 0, "uncounted": 0, "idle": 1}, False),
    ],
)
def test_times_without_any_matmul_are_not_believed(spent_ns, is_seen):
    seen = without_hidden_matmuls(TracedTime(spent_ns=spent_ns, copy_percent=1.0))
    assert seen == TracedTime(spent_ns=spent_ns if is_seen else None, copy_percent=1.0)


def test_an_account_comes_back_from_its_row():
    columns = swept()
    step = read({**columns, "status": "ok", "time_s": 1.0})
    assert step.shares.mfu_percent == columns["mfu_percent"]
    assert step.budget_columns() == {name: columns[name] for name in step.budget_columns()}
    assert step.verdict.cause == columns["verdict"]
    assert facts_of({"time_s": True, "mfu_basis": 3}) == StepFacts()


@pytest.mark.parametrize(
    ("work", "peaks", "reason"),
    [
        (StepWork(), StepPeaks("spec", peak_tflop_s=1.0), {"uncounted": {}}),
        (StepWork(flops=1e12), StepPeaks("measured", peak_tflop_s=1.0), {"no_ceiling": {}}),
        (StepWork(flops=1e12), StepPeaks("spec", "fp8"), {"no_peak": {"precision": "fp8"}}),
    ],
)
def test_an_answer_says_why_there_is_none(work, peaks, reason):
    answer = account(StepFacts(StepTime(1.0), work, peaks)).mfu()
    assert (answer.value, answer.reason) == (None, reason)


@pytest.mark.parametrize(("mfu", "doubt"), [(99.0, {}), (101.0, {"over_peak": {}})])
def test_an_mfu_above_its_peak_is_answered_with_a_doubt(mfu, doubt):
    peaks = StepPeaks("spec", peak_tflop_s=1.0)
    answer = account(StepFacts(StepTime(1.0), StepWork(flops=mfu * 1e10), peaks)).mfu()
    assert answer.value == pytest.approx(mfu)
    assert {key: answer.doubt[key] for key in doubt} == doubt
    assert ("over_peak" in answer.doubt) == bool(doubt)


@pytest.mark.parametrize(
    ("clock_mhz", "peak_clock_mhz", "lost_ms"),
    [(1000.0, 1500.0, 250.0), (1500.0, 1000.0, 0.0), (None, 1500.0, None), (1000.0, None, None)],
)
def test_a_clock_below_the_peak_s_costs_time_and_is_unknown_without_either(
    clock_mhz, peak_clock_mhz, lost_ms
):
    peaks = StepPeaks("spec", peak_tflop_s=PEAK_TFLOP_S, peak_clock_mhz=peak_clock_mhz)
    facts = StepFacts(
        StepTime(1.0),
        StepWork(flops=FLOPS),
        peaks,
        Counters(clock_mhz=clock_mhz),
        TracedTime(spent_ns={"products": 900_000_000, "idle": 100_000_000}),
    )
    told = account(facts).budget_columns()["clock_ms"]
    assert told == (None if lost_ms is None else pytest.approx(lost_ms))


def test_a_loss_is_its_time_and_its_share_of_the_step():
    step = read({**swept(), "status": "ok", "time_s": 1.0})
    loss = step.losses["matmuls_below_best"]
    assert (loss.ms, loss.points) == (pytest.approx(100.0), pytest.approx(10.0))


def test_causes_have_distinct_keys_and_known_parts():
    assert len(BY_KEY) == len(CAUSES)
    assert CAUSES[-1].key == "not_explained"
