"""Verdicts on rows made for one cause each, the cross-check, and rows with holes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.language import verdicts
from mfulab.mfu import ladder
from mfulab.mfu.account import VERDICT, read, shares_of
from mfulab.mfu.causes import CAUSES, NEAR_CEILING, SLOWING_ZEROS
from mfulab.mfu.flags import matmul_flags
from mfulab.mfu.headroom import PARTS
from mfulab.mfu.ladder import RUNGS
from mfulab.mfu.step import Counters, StepFacts, StepPeaks, StepTime, StepWork
from mfulab.mfu.utilization import default_basis

HEALTHY = {
    "utilization_percent": 99.0,
    "kernel_busy_percent": 97.0,
    "sm_active_percent": 94.0,
    "occupancy_percent": 30.0,
    "tensor_active_percent": 45.0,
    "fp32_active_percent": 5.0,
    "dram_active_percent": 35.0,
    "hfu_percent": 43.0,
    "mfu_percent": 43.0,
    "mfu_measured_percent": 55.0,
    "effective_precision": "bf16",
    "clock_mhz": 1755.0,
    "peak_clock_mhz": 1830.0,
    "time_s": 0.1,
}


EMULATED = {
    "effective_precision": "bf16",
    "peak_precision": "fp32",
    "mfu_basis": "measured",
    "mfu_measured_percent": 88.0,
}


BY_KEY = {cause.key: cause for cause in CAUSES}


def judge(row):
    return read(row).verdict


def columns(row):
    return read(row).verdict_columns()


def said(what):
    return verdicts.sentence(what.key, what.numbers)


def neighbours(row):
    drop = ladder.largest_drop(row)
    return drop and (
        drop.above.column.removesuffix("_percent"),
        drop.below.column.removesuffix("_percent"),
    )


FED_LATE = {"input_wait_percent": 35.0}
GAPS = {"launch_gaps_per_step": 400.0, "launch_gap_s": 8e-6, "time_s": 6e-3}
IN_FP32 = {"tensor_active_percent": 0.0, "effective_precision": "fp32"}


@pytest.mark.parametrize(
    ("changes", "cause", "numbers"),
    [
        ({"mfu_measured_percent": 82.0}, "compute_bound", ["82 %"]),
        (FED_LATE | {"kernel_busy_percent": 62.0}, "input_bound", ["35 %", "DataLoader"]),
        # what was queued before hides the wait
        (FED_LATE, "not_explained", ["55 %"]),
        ({"copy_percent": 40.0, "kernel_busy_percent": 57.0}, "input_bound", ["40 %"]),
        ({"communication_percent": 25.0}, "communication_bound", ["25 %"]),
        (GAPS | {"kernel_busy_percent": 30.0}, "launch_bound", ["70 %", "400 gaps", "8 µs"]),
        ({"dram_active_percent": 71.0}, "memory_bound", ["71 %"]),
        (IN_FP32 | {"fp32_active_percent": 80.0}, "wrong_precision", ["0 %", "TF32"]),
        ({"throttled_percent": 60.0}, "throttled", ["60 %", "1755 MHz"]),
        ({"sm_active_percent": 50.0}, "shape", ["97 %", "50 %"]),
        ({"mfu_percent": 30.0, "hfu_percent": 43.0}, "shape", ["43 %", "30 %", "recomputation"]),
        ({"occupancy_percent": 8.0}, "low_occupancy", ["8 %"]),
        ({}, "not_explained", ["55 %"]),
    ],
)
def test_causes_on_a_gpu(changes, cause, numbers):
    verdict = judge({**HEALTHY, **changes})
    assert verdict.cause == cause
    assert all(number in said(verdict.reason) for number in numbers), verdict.reason


def reaching(percent, **more):
    """A row of this MFU, by its measured ceiling too."""
    return {"mfu_percent": percent, "mfu_measured_percent": percent, **more}


def busy(percent, **more):
    """A row of this utilization, with an MFU of 10 % unless another is given."""
    return {"utilization_percent": percent, "mfu_percent": 10.0, **more}


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (busy(25.0), "under_used"),
        (busy(50.0, throttled_percent=48.0), "throttled"),
        (busy(25.0, throttled_percent=5.0), "under_used"),
        (busy(99.0, mfu_percent=0.4), "busy_not_useful"),
        (
            busy(99.0, mfu_percent=9.0, bytes_moved=2e9, time_s=0.1, ceiling_gb_s=30.0),
            "memory_bound",
        ),
        (reaching(88.0, utilization_percent=99.0), "compute_bound"),
        (reaching(283.0), "doubtful_ceiling"),
        (reaching(100.0, ceiling_raised_percent=103.0), "doubtful_ceiling"),
        (reaching(88.0, ceiling_slowdown=1.5), "doubtful_ceiling"),
        (reaching(88.0, ceiling_other_processes_percent=30.0), "doubtful_ceiling"),
        (reaching(60.0, ceiling_slowdown=1.5), "not_explained"),
        (EMULATED | {"mfu_percent": 88.0, "slower_than_fp32": 40.0}, "emulated_format"),
        (EMULATED | {"mfu_percent": 88.0}, "emulated_format"),
        # as if bytes were what counts
        (EMULATED | {"mfu_percent": 88.0, "slower_than_fp32": 0.8}, "compute_bound"),
        (busy(99.0, mfu_percent=math.nan), "no_mfu"),
        ({"utilization_percent": 99.0}, "no_mfu"),
    ],
)
def test_causes_on_a_cpu(row, cause):
    assert judge(row).cause == cause


@pytest.mark.parametrize(("spec", "reason"), [(0.21, "no_ceiling"), (None, "no_mfu")])
def test_without_a_measured_ceiling_the_reason_is_not_that_nothing_is_known(spec, reason):
    assert judge({"utilization_percent": 99.0, "mfu_spec_percent": spec}).reason.key == reason


HALF = "run at 50 % of the best"


@pytest.mark.parametrize(
    ("products", "others", "cause", "words"),
    [
        (40.0, 50.0, "other_operators", ["50 % of the step", "aten::sqrt alone 12 %", HALF]),
        (40.0, 20.0, "overhead", ["40 % of the step is spent outside", HALF]),
        (80.0, 15.0, "slow_matmuls", ["take 80 % of the step", "run at 25.0 % of the best"]),
    ],
)
def test_mfu_is_a_share_of_time_times_a_speed(products, others, cause, words):
    row = reaching(20.0, utilization_percent=99.0, matmul_percent=products)
    row |= {"other_operators_percent": others}
    row |= {"top_other_operators": '{"aten::sqrt": 12.0, "aten::div": 11.6}'}
    verdict = judge(row)
    assert verdict.cause == cause
    assert all(part in said(verdict.reason) for part in words)
    assert judge({**row, "utilization_percent": 30.0}).cause == "under_used"


SQUARE_ROOT = {
    **reaching(3.0, utilization_percent=99.0, matmul_percent=15.0),
    "other_operators_percent": 70.0,
    "top_other_operators": '{"aten::sqrt": 38.0, "aten::div": 11.6}',
    "effective_precision": "fp32",
    "time_s": 0.02,
    "optimiser_ms": 15.0,
    "second_moment_zeros_percent": 49.0,
}


def test_zeros_are_named_where_a_cpu_s_root_of_second_moments_takes_most():
    verdict = judge(SQUARE_ROOT)
    assert (verdict.cause, verdict.reason.key) == ("other_operators", "other_operators_zeros")
    assert verdict.reason.numbers["zeros"] == 49
    usual = judge({**SQUARE_ROOT, "second_moment_zeros_percent": None}).reason
    assert usual.key == "other_operators_most", "as for a row of an older table"
    assert verdict.reason.numbers == {**usual.numbers, "zeros": 49}


@pytest.mark.parametrize(
    "other",
    [
        {"second_moment_zeros_percent": SLOWING_ZEROS - 0.1},
        {"top_other_operators": '{"aten::div": 38.0}'},
        {"effective_precision": "bf16"},  # no slower on zeros
        {"optimiser_ms": 5.0},  # the model's own roots, at least in part
        {"optimiser_ms": None},
        {"sm_active_percent": 50.0},  # of a GPU
    ],
)
def test_zeros_are_not_named_of_other_operators_formats_and_devices(other):
    assert judge({**SQUARE_ROOT, **other}).reason.key != "other_operators_zeros"


@given(st.floats(0, 100), st.floats(0.1, 70.0))
def test_zeros_are_named_from_the_threshold_on_alone(zeros, share):
    row = {**SQUARE_ROOT, "top_other_operators": json.dumps({"aten::sqrt": share})}
    reason = judge({**row, "second_moment_zeros_percent": zeros}).reason
    assert (reason.numbers.get("zeros") == zeros) == (zeros >= SLOWING_ZEROS)


EMULATED_2 = EMULATED | {"mfu_percent": 2.0}


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (EMULATED_2 | {"slower_than_fp32": 40.4}, ["CPU", "bf16", "40.4", "fp32"]),
        (EMULATED_2 | {"slower_than_fp32": 1200.0}, ["CPU", "1.2e+03"]),
        (EMULATED_2 | {"mfu_basis": "spec", "slower_than_fp32": 3.0}, ["GPU", "3 "]),
        (EMULATED_2, ["CPU", "bf16", "fp32"]),
        (reaching(283.0), ["283"]),
        (reaching(100.0, ceiling_raised_percent=117.0), ["117"]),
        (reaching(88.0, ceiling_slowdown=1.5), ["88"]),
    ],
)
def test_what_is_said_of_formats_and_ceilings(row, words, language):
    reason = judge(row).reason
    told = verdicts.sentence(reason.key, reason.numbers, language)
    assert told != reason.key
    assert all(word.strip() in told for word in words), told


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("mfu_percent", "mfu_measured_percent"), st.floats(0, 1e4)),
        optional={
            "ceiling_raised_percent": st.floats(100, 1e4),
            "ceiling_slowdown": st.floats(1, 10),
            "slower_than_fp32": st.floats(0.1, 1e4),
            "peak_precision": st.sampled_from(["fp32", "bf16"]),
            "effective_precision": st.just("bf16"),
        },
    )
)
def test_compute_bound_needs_a_ceiling_to_rely_on(row):
    found = judge(row)
    if found.cause == "compute_bound":
        assert max(row["mfu_percent"], row["mfu_measured_percent"]) <= 100.0001
        assert not {"ceiling_raised_percent", "ceiling_slowdown"} & row.keys()
    if row["mfu_percent"] > 100.0001:
        assert "above_peak" in [flag.key for flag in found.flags]


# An RTX 4090's peak is printed at 2520 MHz, and it runs at 2730 and more.
@pytest.mark.parametrize(
    ("share", "others", "key"),
    [
        (74.0, 21.0, "compute_bound_others"),
        (90.0, 10.0, "compute_bound_others"),
        (89.0, 9.0, "compute_bound_in_part"),
        (90.0, 9.0, "compute_bound"),
    ],
)
def test_little_is_left_only_near_the_ceiling(share, others, key):
    row = reaching(share, utilization_percent=99.0, time_s=0.1)
    row |= {"useful_ms": share, "other_operators_ms": others}
    verdict = judge(row)
    assert verdict.cause == "compute_bound"
    assert verdict.reason.key == key
    assert verdict.reason.numbers.get("others", others) == pytest.approx(others)


@pytest.mark.parametrize(
    ("mfu", "at_highest", "note"),
    [
        (104.0, 96.0, "boosted"),
        (104.0, 101.0, "over_peak"),
        (104.0, None, "over_peak"),
        (99.0, 101.0, None),
    ],
)
def test_a_card_that_boosts_above_its_printed_clock_is_no_doubt(mfu, at_highest, note):
    row = {"status": "ok", "mfu_percent": mfu, "mfu_max_clock_percent": at_highest}
    row |= {"mfu_basis": "spec", "mfu_measured_percent": 98.0}
    assert read(row).note == note
    assert ("above_peak" in [flag.key for flag in judge(row).flags]) == (note == "over_peak")
    assert (judge(row).reason.key == "above_ceiling") == (note == "over_peak")
    assert note is None or verdicts.note(row | {"mfu_note": note}) != note


def test_recomputation_above_the_peak_is_one_still():
    row = {"status": "ok", "mfu_percent": 80.0, "mfu_max_clock_percent": 74.0, "hfu_percent": 120.0}
    assert "above_peak" in [flag.key for flag in judge(row).flags]
    assert "above_peak" not in [flag.key for flag in judge(row | {"hfu_percent": 105.0}).flags]


@pytest.mark.parametrize(
    ("faults_ms", "cause"),
    [(40.0, "page_faults"), (29.0, "page_faults"), (25.0, "slow_matmuls"), (None, "slow_matmuls")],
)
@pytest.mark.parametrize("mfu", [20.0, None])
def test_page_faults_are_the_cause_where_they_take_most(faults_ms, cause, mfu):
    """Matmuls lose 30 of 100 ms; of parts within a tenth page faults are named first, without FLOPs
    too."""
    row = busy(99.0, mfu_percent=mfu, matmul_percent=55.0, other_operators_percent=35.0)
    row |= {"time_s": 0.1, "matmuls_below_best_ms": 30.0, "other_operators_ms": 20.0}
    row |= {"page_faults_ms": faults_ms, "page_faults_per_s": 2e5}
    verdict, kept = judge(row), judge({**row, "kept_memory_time_s": 0.04})
    assert verdict.cause == kept.cause == (cause if mfu or cause == "page_faults" else "no_mfu")
    assert judge({**row, "page_faults_per_s": None}).cause != "page_faults"
    if cause == "page_faults":
        assert f"20,000 page faults take {faults_ms:.0f} %" in said(verdict.reason)
        assert "took 40 % of its time" in said(kept.reason)


@pytest.mark.parametrize(
    ("fault_s", "kept_s", "cause"),
    [
        (1.2e-6, 0.04, "page_faults"),  # 60 of 100 ms
        (0.4e-6, 0.04, "busy_not_useful"),  # 20 of 100 ms
        (1.2e-6, 0.11, "busy_not_useful"),  # the step takes as long without them
        (None, 0.04, "busy_not_useful"),
    ],
)
def test_page_faults_are_the_cause_without_a_trace_too(fault_s, kept_s, cause):
    row = busy(99.0, mfu_percent=7.0, time_s=0.1, page_faults_per_s=5e5)
    verdict = judge({**row, "page_fault_s": fault_s, "kept_memory_time_s": kept_s})
    assert verdict.cause == cause
    if cause == "page_faults":
        assert verdict.reason.numbers == pytest.approx({"share": 60, "faults": 50_000, "kept": 40})


def test_shares_of_a_trace_are_told_as_measured():
    """A bf16 product of 146 µs whose traced steps took 8 times as long: 24 % in matmuls at an MFU
    of 52 %."""
    row = reaching(52.0, utilization_percent=99.0, time_s=146e-6)
    row |= {"matmul_percent": 24.0, "other_operators_percent": 19.0}
    told = judge(row).reason.numbers
    assert (told["matmuls"], told["others"], told["outside"]) == (24, 19, 57)
    assert told["speed"] == pytest.approx(100 * 52 / 24)
    assert told["beaten"]
    row |= {"matmul_percent": 60.0, "other_operators_percent": 5.0, "uncounted_percent": 10.0}
    told = judge(row).reason.numbers
    assert (told["matmuls"], told["outside"]) == (60, 35)
    assert told["speed"] == pytest.approx(100 * 52 / 54), "a tenth of their time has no FLOPs"
    assert not told["beaten"]


def test_a_speed_beats_its_ceiling_only_beyond_the_interval_of_the_time():
    row = reaching(50.2, time_s=0.1, matmul_percent=50.0, other_operators_percent=40.0)
    assert not judge(row).reason.numbers["beaten"], "100.4 % reads as 100"
    fast = row | {"matmul_percent": 45.0}
    assert judge(fast).reason.numbers["beaten"]
    assert not judge(fast | {"time_ci_low_s": 0.09, "time_ci_high_s": 0.13}).reason.numbers[
        "beaten"
    ]


def test_padding_is_no_cause_where_more_is_lost_elsewhere():
    row = HEALTHY | {"mfu_percent": 18.0, "tensor_active_percent": 24.0, "time_s": 0.1}
    assert judge(row).reason.key == "padding"
    row |= {"matmul_percent": 60.0, "other_operators_percent": 30.0}
    assert judge(row).cause == "other_operators"


def test_matmuls_are_a_rung_if_no_sm_is_seen():
    row = {"utilization_percent": 99.0, "matmul_percent": 40.0, "mfu_percent": 35.0}
    assert neighbours(row) == ("utilization", "matmul")
    assert neighbours({**row, "sm_active_percent": 90.0}) == ("sm_active", "mfu")


def test_the_rung_that_loses_most():
    assert neighbours(HEALTHY) == ("sm_active", "tensor_active")
    starved = {**HEALTHY, "kernel_busy_percent": 20.0, "sm_active_percent": 18.0}
    assert neighbours(starved) == ("utilization", "kernel_busy")
    assert neighbours({"utilization_percent": 99.0, "mfu_percent": 9.0}) == ("utilization", "mfu")
    assert neighbours({"mfu_percent": 9.0}) is None


def test_cross_check_by_hand():
    verdict = judge(HEALTHY)
    assert read(HEALTHY).shares.expected_mfu_percent == pytest.approx(45 * 1755 / 1830)
    assert verdict.flags == ()


@pytest.mark.parametrize(
    ("ratio", "flagged"), [(1.14, False), (1.16, True), (1 / 1.14, False), (1 / 1.16, True)]
)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_cross_check_is_a_ratio_at_any_height(ratio, flagged, scale):
    """Four points of MFU are a tenth of 40 and all of four."""
    expected = 43.15 * scale
    row = {**HEALTHY, "tensor_active_percent": 45.0 * scale, "mfu_percent": 1.0}
    row |= {"hfu_percent": expected / ratio}
    assert any("wrong peak" in said(flag) for flag in judge(row).flags) is flagged


VIT = {"tensor_active_percent": 45.0, "hfu_percent": 34.0, "issued_percent": 43.0}


def test_the_cross_check_takes_what_the_kernels_issue_where_that_is_known():
    """ViT: its patches' convolution and attention execute more than is counted, on slower
    instructions."""
    row = HEALTHY | VIT
    assert not any("wrong peak" in said(flag) for flag in judge(row).flags)
    del row["issued_percent"]
    assert any("wrong peak" in said(flag) for flag in judge(row).flags)


def test_ofu_without_padding_and_slow_instructions_by_hand():
    """ViT on an H200: 43 of 34 points are issued, so of an OFU of 43.2 the counted operations are
    34.1."""
    row = HEALTHY | VIT | {"time_s": 1.0}
    assert columns(row)["ofu_percent"] == pytest.approx(45 * 1755 / 1830 * 34 / 43)
    assert columns({**row, "issued_percent": None})["ofu_percent"] is None
    assert columns({**row, "clock_mhz": None})["ofu_percent"] is None


def test_a_device_that_multiplies_next_to_nothing_is_not_cross_checked():
    row = {**HEALTHY, "tensor_active_percent": 0.7, "mfu_percent": 0.0002, "hfu_percent": 0.0002}
    assert not any("wrong peak" in said(flag) for flag in judge(row).flags)


def test_products_off_the_tensor_cores_are_not_cross_checked():
    for unlike in ({"effective_precision": "fp32"}, {"peak_clock_mhz": None}):
        assert read({**HEALTHY, **unlike}).shares.expected_mfu_percent is None


def test_flags():
    others = {"other_processes": 2, "throttled_percent": 12.0, "steal_percent": 9.0}
    row = {**HEALTHY, "mfu_percent": 152.0, **others}
    flags = " ".join(map(said, judge(row).flags))
    for part in ("152 %", "2 other process", "12 % of the time", "took 9 %"):
        assert part in flags


@pytest.mark.parametrize(
    ("held", "flagged"), [({"power_capped": 99.0}, False), ({"software_thermal": 20.0}, True)]
)
def test_a_gpu_at_its_own_power_limit_is_no_doubt_and_a_hot_one_is(held, flagged):
    parts = {"software_thermal": 0.0, "hardware_thermal": 0.0, "power_brake": 0.0} | held
    row = {**HEALTHY, "throttled_percent": max(held.values())}
    flags = judge(row | {f"{name}_percent": share for name, share in parts.items()}).flags
    assert bool(flags) is flagged


def test_a_cpu_that_others_use_is_flagged():
    row = {"mfu_percent": 5.0, "utilization_percent": 50.0, "other_processes_percent": 48.0}
    assert "other processes took 48 %" in said(judge(row).flags[0])
    assert judge(row).cause == "shared"
    assert judge({**row, "other_processes_percent": 10.0}).flags == ()
    assert judge({**row, "other_processes_percent": 10.0}).cause == "under_used"


NUMBERS = st.one_of(st.none(), st.floats(0, 150), st.just(math.nan), st.just(""))
NUMERIC = [rung.column for rung in RUNGS] + ["launch_gap_s", "mfu_measured_percent"]


@given(st.fixed_dictionaries(dict.fromkeys(NUMERIC, NUMBERS)))
def test_any_row_gets_a_verdict(row):
    verdict = judge(row)
    assert verdict.cause in {*BY_KEY}
    assert said(verdict.reason).endswith(".")
    without = judge({**row, "mfu_percent": None, "mfu_measured_percent": None})
    assert without.cause in TOLD_WITHOUT_MFU


TOLD_WITHOUT_MFU = {
    "input_bound", "communication_bound", "launch_bound", "recompiled", "stalled", "page_faults", "no_mfu",
}  # fmt: skip


def test_without_an_mfu_no_cause_is_named_that_needs_one():
    busy = {**HEALTHY, "mfu_percent": None, "mfu_measured_percent": None}
    assert judge({**busy, "dram_active_percent": 90.0}).cause == "no_mfu"
    assert {cause.key for cause in CAUSES if cause.without_mfu} == TOLD_WITHOUT_MFU


CEILING = {"peak_tflop_s": 989.4, "peak_clock_mhz": 1830.0}
CEILING |= {"max_clock_tflop_s": 1070.5, "ceiling_tflop_s": 790.0}


def mfu(tflop_s, peaks, clock_mhz, device):
    flops = None if tflop_s is None else 1e12 * tflop_s
    facts = StepFacts(
        StepTime(1.0),
        StepWork(flops=flops),
        StepPeaks(basis=default_basis(device), **peaks),
        Counters(clock_mhz=clock_mhz),
    )
    return vars(shares_of(facts))


def test_denominators_by_hand():
    columns = mfu(395.0, CEILING, 1464.0, "cuda")
    assert columns["tflop_s"] == 395
    assert columns["mfu_spec_percent"] == pytest.approx(39.92, abs=0.01)
    assert columns["mfu_max_clock_percent"] == pytest.approx(36.90, abs=0.01)
    assert columns["mfu_actual_clock_percent"] == pytest.approx(39.92 * 1830 / 1464, abs=0.01)
    assert columns["mfu_measured_percent"] == pytest.approx(50)
    assert (columns["mfu_percent"], columns["mfu_basis"]) == (columns["mfu_spec_percent"], "spec")


def test_a_cpu_stands_on_its_measured_ceiling():
    columns = mfu(0.2, {"peak_tflop_s": 0.166, "ceiling_tflop_s": 0.21}, None, "cpu")
    found = (columns["mfu_percent"], columns["mfu_basis"])
    assert found == (pytest.approx(100 * 0.2 / 0.21), "measured")
    assert columns["mfu_spec_percent"] > 100, "shown, not clipped"
    assert columns["mfu_actual_clock_percent"] is None


def test_an_unknown_peak_is_no_mfu():
    columns = mfu(100.0, {"ceiling_tflop_s": 790.0}, 1500.0, "cuda")
    assert (columns["mfu_percent"], columns["mfu_basis"]) == (None, None)
    assert columns["mfu_measured_percent"] == pytest.approx(12.66, abs=0.01)
    assert mfu(None, CEILING, None, "cuda")["mfu_percent"] is None


def test_bandwidth_has_the_same_basis_as_mfu():
    memory = {"peak_gb_s": 3350.0, "ceiling_gb_s": 3000.0}
    for device, percent in (("cuda", 100 * 1500 / 3350), ("cpu", 50)):
        facts = StepFacts(
            StepTime(2.0),
            StepWork(flops=1e12, read_bytes=3e12),
            StepPeaks(basis=default_basis(device), **memory),
        )
        assert shares_of(facts).mbu_percent == pytest.approx(percent)


def test_the_verdict_as_columns():
    found = columns({**HEALTHY, "other_processes": 1})
    assert tuple(found) == VERDICT
    assert (found["verdict"], found["verdict_reason"]) == ("not_explained", "not_explained")
    assert json.loads(found["verdict_numbers"]) == {"share": 55.0}
    assert json.loads(found["verdict_flags"]) == {"other_processes": {"count": 1.0}}
    assert verdicts.flags(found["verdict_flags"]) == "1 other process used this device"
    assert set(columns({"mfu_percent": 3.0}).values()) == {None}


def test_keys_have_no_commas():
    assert all(key.isidentifier() for key in BY_KEY)


LOST = [part for part in PARTS if part not in ("useful", "graph", "uncounted")]


@given(
    st.dictionaries(st.sampled_from(LOST), st.integers(1, 1000), min_size=1),
    st.integers(0, 2000),
    st.booleans(),
    st.floats(0, 1),
)
def test_a_verdict_names_a_part_as_large_as_any(parts, useful, on_gpu, hidden):
    """Parts of a generated budget, on a CPU and a GPU; no counter says more."""
    time = sum(parts.values()) + useful
    share = {part: 100 * ms / time for part, ms in parts.items()}
    idle = share.get("idle", 0.0) + share.get("input_wait", 0.0)
    row = {
        **{f"{part}_ms": float(ms) for part, ms in parts.items()},
        "useful_ms": float(useful),
        "time_s": time / 1e3,
        "mfu_percent": 100 * useful / time,
        "mfu_measured_percent": 100 * useful / time,
        "matmul_percent": 100 * (time - sum(parts.get(name, 0) for name in LOST[:6])) / time,
        "other_operators_percent": share.get("other_operators", 0.0),
        "utilization_percent": 100.0,
    }
    if on_gpu:
        row |= {
            "kernel_busy_percent": 100 - idle - share.get("copies", 0.0),
            "launch_bound_percent": hidden * idle,
        }
        row |= {"launch_gaps_per_step": 5000.0, "launch_gap_s": 1e-6}
    verdict = judge(row)
    largest = max(parts.values())
    if verdict.cause == "compute_bound":
        assert row["mfu_percent"] >= NEAR_CEILING
    elif verdict.cause != "not_explained":
        assert sum(parts.get(part, 0) for part in BY_KEY[verdict.cause].parts) >= 0.9 * largest
    if largest == parts.get("other_operators") and verdict.cause != "compute_bound":
        assert verdict.cause != "not_explained"


def test_a_trace_that_waits_for_its_input_is_not_launch_bound():
    gaps = {"launch_gaps_per_step": 5166.0, "launch_gap_s": 1e-6}
    waits = {"kernel_busy_percent": 40.0, "idle_percent": 60.0, "input_wait_ms": 51.0}
    budget = {"idle_ms": 9.0, "matmuls_below_best_ms": 20.0, "useful_ms": 20.0}
    assert judge({**HEALTHY, **gaps, **waits, **budget}).cause == "input_bound"


@pytest.mark.parametrize(
    "gaps",
    [
        # launched before the gap
        {"launch_gaps_per_step": 1.0, "launch_gap_s": 2e-6, "launch_bound_percent": 1.39},
        {"launch_gaps_per_step": 5166.0, "launch_gap_s": 1e-6},  # one of them of 55 ms
    ],
)
def test_few_long_gaps_are_no_launch_overhead(gaps):
    verdict = judge({**HEALTHY, "mfu_measured_percent": 20.0, "kernel_busy_percent": 40.0, **gaps})
    assert verdict.cause == "stalled"
    assert "60 %" in said(verdict.reason)


def test_copies_are_no_idle_time():
    row = HEALTHY | {"kernel_busy_percent": 79.4, "copy_percent": 4.1}
    row |= {"mfu_measured_percent": 70 - 1e-6, "launch_gaps_per_step": 1e5, "launch_gap_s": 1e-6}
    verdict = judge(row)
    assert verdict.reason.numbers["idle"] == pytest.approx(16.5)


def under(value):
    return math.nextafter(value, -math.inf)


def over(value):
    return math.nextafter(value, math.inf)


STARVED = {"kernel_busy_percent": 40.0, "mfu_measured_percent": 20.0, "time_s": 1.0}
PADDED_MATMUL = {"side": 606.0, "padded": 640.0, "best_ms": 10.0, "rate": 100.0}
TENSOR = {"effective_precision": "bf16", "clock_mhz": 1.0, "peak_clock_mhz": 1.0}
ONE_GAP = {"launch_gaps_per_step": 1.0, "launch_gap_s": 1e-6}
ON_CPU = {"utilization_percent": 99.0, "mfu_percent": 9.0, "time_s": 1.0}
BESIDE = ON_CPU | {"other_processes_percent": 30.0}


# The last value on each side of an edge: with the first the cause is named, with the second not.
@pytest.mark.parametrize(
    ("row", "column", "inside", "outside", "cause"),
    [
        (HEALTHY, "mfu_measured_percent", 70.0, under(70.0), "compute_bound"),
        (HEALTHY | {"ceiling_slowdown": 1.5}, "mfu_measured_percent", 70.0, under(70.0), "doubtful_ceiling"),
        (HEALTHY, "mfu_measured_percent", over(100.0001), 100.0001, "doubtful_ceiling"),
        (EMULATED | {"mfu_percent": 50.0}, "slower_than_fp32", 1.05, under(1.05), "emulated_format"),
        (ON_CPU | {"mfu_percent": 98.0}, "useful_mfu_percent", 78.3, 78.5, "padded"),
        (STARVED, "input_wait_percent", 30.0, 26.9, "input_bound"),
        (STARVED, "copy_percent", 30.0, 25.0, "input_bound"),
        (HEALTHY, "dram_active_percent", 55.0, under(55.0), "memory_bound"),
        (ON_CPU | {"ceiling_gb_s": 100.0}, "bytes_moved", 55e9, 55e9 - 1, "memory_bound"),
        (HEALTHY | {"fp32_active_percent": 30.0}, "tensor_active_percent", under(10.0), 10.0, "wrong_precision"),
        (HEALTHY | {"tensor_active_percent": 9.0}, "fp32_active_percent", 27.0, under(27.0), "wrong_precision"),
        (HEALTHY | {"tensor_active_percent": 0.3}, "fp32_active_percent", 10.0, under(10.0), "wrong_precision"),
        (HEALTHY, "throttled_percent", 20.0, under(20.0), "throttled"),
        (HEALTHY | {"throttled_percent": 30.0}, "sm_active_percent", 80.0, under(80.0), "throttled"),
        (HEALTHY, "sm_active_percent", 77.0, over(77.0), "shape"),
        (HEALTHY | {"mfu_percent": 40.0}, "tensor_active_percent", 48.0, 47.9, "shape"),
        (HEALTHY | {"occupancy_percent": 8.0}, "sm_active_percent", 80.0, under(80.0), "low_occupancy"),
        (HEALTHY, "occupancy_percent", under(20.0), 20.0, "low_occupancy"),
        (ON_CPU | {"utilization_percent": 50.0}, "other_processes_percent", 15.0, under(15.0), "shared"),
        (BESIDE | {"mfu_percent": 75.0}, "utilization_percent", under(80.0), 80.0, "shared"),
        (ON_CPU, "utilization_percent", 80.0, under(80.0), "busy_not_useful"),
        (ON_CPU, "mfu_percent", under(20.0), 20.0, "busy_not_useful"),
        (STARVED | {"launch_gaps_per_step": 1000.0}, "launch_gap_s", 301e-6, 299e-6, "launch_bound"),
        (STARVED | ONE_GAP, "launch_bound_percent", 30.0, under(30.0), "launch_bound"),
    ],
)  # fmt: skip
def test_a_cause_is_named_up_to_its_edge(row, column, inside, outside, cause):
    assert judge({**row, column: inside}).cause == cause
    assert judge({**row, column: outside}).cause != cause


STEP = {"time_s": 1.0, "mfu_percent": 10.0, "idle_ms": 300.0}


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [
        ({"tile_padding_ms": 270.0}, {"tile_padding_ms": 269.0}, "executed"),
        ({"slow_instructions_ms": 270.0}, {"slow_instructions_ms": 269.0}, "executed"),
        ({"idle_ms": 0, "tile_padding_ms": 200.0}, {"idle_ms": 0, "tile_padding_ms": 199.0}, "executed"),
        ({"ms": 210.0}, {"ms": under(210.0)}, "misaligned"),
    ],
)  # fmt: skip
def test_a_shape_is_named_up_to_its_edge(inside, outside, reason):
    reasons = []
    for changes in (inside, outside):
        row = {**STEP, "matmuls_below_best_ms": 300.0, **changes}
        if "ms" in changes:
            row["misaligned"] = json.dumps({**PADDED_MATMUL, "ms": row.pop("ms")})
        if "idle_ms" in changes:
            row["matmuls_below_best_ms"] = 0.0
        reasons.append(judge(row).reason.key)
    assert reasons[0] == reason != reasons[1]


ON_CPU = {"mfu_basis": "measured", "peak_tflop_s": 1.0}


@pytest.mark.parametrize(
    ("row", "column", "inside", "outside", "flag"),
    [
        ({}, "ceiling_raised_percent", 0.0, -1.0, "set_ceiling"),
        (ON_CPU, "ceiling_tflop_s", 0.0499, 0.05, "far_ceiling"),
        ({}, "other_processes", 1, 0, "other_processes"),
        ({}, "other_processes_percent", 15.0, under(15.0), "beside"),
        ({}, "throttled_percent", 10.0, under(10.0), "held_back"),
        ({"throttled_percent": 50.0}, "power_brake_percent", 10.0, under(10.0), "held_back"),
        ({"software_thermal_percent": 0.0}, "hardware_thermal_percent", 10.0, 9.0, "held_back"),
        ({}, "only_counted", 1, 0, "only_counted"),
        ({"steps": 50}, "measuring_percent", 2.0, under(2.0), "measuring"),
        ({"steps": 49, "watched_steps": 1}, "measuring_percent", 2.0, under(2.0), "measuring"),
        ({"measuring_percent": 5.0}, "steps", 49, 50, "measuring_briefly"),
        ({"measuring_percent": 5.0}, "steps", 50, 49, "measuring"),
        ({}, "steal_percent", 5.0, under(5.0), "stolen"),
        ({}, "disturbed_replicates", 1, 0, "disturbed"),
        ({}, "mfu_percent", over(100.0001), 100.0001, "above_peak"),
        ({}, "hfu_percent", over(100.0001), 100.0001, "above_peak"),
        (TENSOR | {"tensor_active_percent": 46.0}, "mfu_percent", 39.9, 40.1, "cross_check"),
        (TENSOR | {"tensor_active_percent": 40.0}, "mfu_percent", 46.1, 45.9, "cross_check"),
        (TENSOR | {"mfu_percent": 0.1}, "tensor_active_percent", 1.0, under(1.0), "cross_check"),
    ],
)
def test_a_flag_is_raised_up_to_its_edge(row, column, inside, outside, flag):
    raised, not_raised = (
        [one.key for one in judge({**row, column: value}).flags] for value in (inside, outside)
    )
    assert flag in raised
    assert flag not in not_raised


@pytest.mark.parametrize(
    ("beside_mhz", "is_flagged"), [(1021.0, True), (1020.0, False), (0.0, False)]
)
def test_a_reference_at_another_clock_is_told(beside_mhz, is_flagged):
    row = {"clock_mhz": 1000.0, "reference_clock_mhz": beside_mhz}
    told = json.loads(matmul_flags(row) or "{}")
    assert told == ({"unlike_clocks": {"own": 1000.0, "beside": beside_mhz}} if is_flagged else {})


@pytest.mark.parametrize(("high_s", "is_near"), [(0.12, True), (0.16, False)])
def test_a_step_of_hardly_known_time_is_not_called_compute_bound(high_s, is_near):
    row = HEALTHY | {"mfu_measured_percent": 92.0, "time_ci_low_s": 0.09, "time_ci_high_s": high_s}
    assert (judge(row).cause == "compute_bound") == is_near


@pytest.mark.parametrize(
    ("time_s", "recompilations", "is_told"),
    [(0.06, 7, True), (26e-6, 7, False), (0.06, 1, False), (0.06, None, False)],
)
def test_a_step_as_long_as_calls_that_compile_is_told_to_compile(time_s, recompilations, is_told):
    row = HEALTHY | {"time_s": time_s, "varied_calls": 10, "varied_s": 0.708}
    verdict = judge(row | {"recompilations": recompilations})
    assert (verdict.cause == "recompiled") == is_told
    if is_told:
        assert verdict.reason.numbers == {"count": 7, "calls": 10}
