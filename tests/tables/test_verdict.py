"""Verdicts on rows made for one cause each, the cross-check, and rows with holes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.tables.mfu import mfu_columns
from mfulab.tables.verdict import CAUSES, COLUMNS, RUNGS, columns, judge

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


@pytest.mark.parametrize(
    ("changes", "cause", "numbers"),
    [
        ({"mfu_measured_percent": 82.0}, "compute-bound", ["82 %"]),
        ({"input_wait_percent": 35.0, "kernel_busy_percent": 62.0}, "input-bound", ["35 %", "DataLoader"]),
        ({"input_wait_percent": 35.0}, "not explained", ["55 %"]),  # what was queued before hides the wait
        ({"copy_percent": 40.0}, "input-bound", ["40 %"]),
        ({"communication_percent": 25.0}, "communication-bound", ["25 %"]),
        (
            {"kernel_busy_percent": 30.0, "launch_gaps_per_step": 400.0, "launch_gap_s": 8e-6},
            "launch-bound",
            ["70 %", "400 gaps", "8 µs"],
        ),
        ({"dram_active_percent": 71.0}, "memory-bound", ["71 %"]),
        (
            {"tensor_active_percent": 0.0, "fp32_active_percent": 80.0, "effective_precision": "fp32"},
            "wrong precision",
            ["80 %", "TF32"],
        ),
        ({"throttled_percent": 60.0}, "throttled", ["60 %", "1755 MHz"]),
        ({"sm_active_percent": 50.0}, "shape", ["97 %", "50 %"]),
        ({"mfu_percent": 30.0, "hfu_percent": 43.0}, "shape", ["43 %", "30 %", "recomputation"]),
        ({"occupancy_percent": 8.0}, "low occupancy", ["8 %"]),
        ({}, "not explained", ["55 %"]),
    ],
)
def test_causes_on_a_gpu(changes, cause, numbers):
    verdict = judge({**HEALTHY, **changes})
    assert verdict.cause == cause
    assert all(number in verdict.reason for number in numbers), verdict.reason


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"utilization_percent": 25.0, "mfu_percent": 10.0}, "under-used"),
        ({"utilization_percent": 99.0, "mfu_percent": 0.4}, "busy, not useful"),
        (
            {"utilization_percent": 99.0, "mfu_percent": 9.0, "bytes_moved": 2e9, "time_s": 0.1, "ceiling_gb_s": 30.0},
            "memory-bound",
        ),
        ({"utilization_percent": 99.0, "mfu_percent": 88.0, "mfu_measured_percent": 88.0}, "compute-bound"),
        ({"utilization_percent": 99.0, "mfu_percent": math.nan}, "no MFU"),
        ({"utilization_percent": 99.0}, "no MFU"),
    ],
)
def test_causes_on_a_cpu(row, cause):
    assert judge(row).cause == cause


@pytest.mark.parametrize(
    ("products", "others", "mfu", "cause", "words"),
    [
        (40.0, 50.0, 20.0, "other operators", ["50 % of the step", "aten::sqrt alone 12 %", "run at 50 % of the best"]),
        (40.0, 20.0, 20.0, "overhead", ["40 % of the step pass outside", "run at 50 % of the best"]),
        (80.0, 15.0, 20.0, "slow products", ["take 80 % of the step", "run at 25.0 % of the best"]),
    ],
)
def test_mfu_is_a_share_of_time_times_a_speed(products, others, mfu, cause, words):
    row = {
        "utilization_percent": 99.0,
        "mfu_percent": mfu,
        "mfu_measured_percent": mfu,
        "product_percent": products,
        "other_operators_percent": others,
        "top_other_operators": '{"aten::sqrt": 12.0, "aten::div": 11.6}',
    }
    verdict = judge(row)
    assert verdict.cause == cause
    assert all(part in verdict.reason for part in words)
    assert judge({**row, "utilization_percent": 30.0}).cause == "under-used"


def test_products_are_a_rung_where_no_sm_is_seen():
    row = {"utilization_percent": 99.0, "product_percent": 40.0, "mfu_percent": 35.0}
    assert judge(row).rung == "utilization → in products"
    assert judge({**row, "sm_active_percent": 90.0}).rung == "SM active → MFU"


def test_the_rung_that_loses_most():
    assert judge(HEALTHY).rung == "SM active → tensor pipe active"
    assert (
        judge({**HEALTHY, "kernel_busy_percent": 20.0, "sm_active_percent": 18.0}).rung == "utilization → kernel-busy"
    )
    assert judge({"utilization_percent": 99.0, "mfu_percent": 9.0}).rung == "utilization → MFU"
    assert judge({"mfu_percent": 9.0}).rung is None


def test_cross_check_by_hand():
    verdict = judge(HEALTHY)
    assert verdict.expected_mfu_percent == pytest.approx(45 * 1755 / 1830)
    assert verdict.flags == ()


@pytest.mark.parametrize(("executed", "flagged"), [(43.15 + 4.9, False), (43.15 + 5.1, True), (43.15 - 5.1, True)])
def test_cross_check_flags_beyond_five_points(executed, flagged):
    flags = judge({**HEALTHY, "hfu_percent": executed}).flags
    assert any("wrong peak" in flag for flag in flags) is flagged


def test_products_off_the_tensor_cores_are_not_cross_checked():
    assert judge({**HEALTHY, "effective_precision": "fp32"}).expected_mfu_percent is None
    assert judge({**HEALTHY, "peak_clock_mhz": None}).expected_mfu_percent is None


def test_flags():
    flags = " ".join(
        judge(
            {**HEALTHY, "mfu_percent": 152.0, "other_processes": 2, "throttled_percent": 12.0, "steal_percent": 9.0}
        ).flags
    )
    for part in ("152 %", "2 other process", "12 % of the time", "took 9 %"):
        assert part in flags


def test_a_cpu_that_others_use_is_flagged():
    row = {"mfu_percent": 5.0, "utilization_percent": 50.0, "others_percent": 48.0}
    assert "other processes took 48 %" in judge(row).flags[0]
    assert judge(row).cause == "shared"
    assert judge({**row, "others_percent": 10.0}).flags == ()
    assert judge({**row, "others_percent": 10.0}).cause == "under-used"


NUMBERS = st.one_of(st.none(), st.floats(0, 150), st.just(math.nan), st.just(""))
NUMERIC = [name for name, _ in RUNGS] + [
    "dram_active_percent",
    "fp32_active_percent",
    "launch_gap_s",
    "mfu_measured_percent",
]


@given(st.fixed_dictionaries(dict.fromkeys(NUMERIC, NUMBERS)))
def test_any_row_gets_a_verdict(row):
    verdict = judge(row)
    assert verdict.cause in {*(cause for cause, _ in CAUSES), "no MFU", "not explained"}
    assert verdict.reason.endswith(".")


CEILING = {
    "computed_tflop_s": 989.4,
    "computed_clock_mhz": 1830.0,
    "max_clock_tflop_s": 1070.5,
    "measured_tflop_s": 790.0,
}


def test_denominators_by_hand():
    columns = mfu_columns(395.0, CEILING, 1464.0, gpu=True)
    assert columns["mfu_spec_percent"] == pytest.approx(39.92, abs=0.01)
    assert columns["mfu_max_clock_percent"] == pytest.approx(36.90, abs=0.01)
    assert columns["mfu_actual_clock_percent"] == pytest.approx(39.92 * 1830 / 1464, abs=0.01)
    assert columns["mfu_measured_percent"] == pytest.approx(50)
    assert (columns["mfu_percent"], columns["mfu_basis"]) == (columns["mfu_spec_percent"], "spec")


def test_a_cpu_stands_on_its_measured_ceiling():
    columns = mfu_columns(0.2, {"computed_tflop_s": 0.166, "measured_tflop_s": 0.21}, None, gpu=False)
    assert (columns["mfu_percent"], columns["mfu_basis"]) == (pytest.approx(100 * 0.2 / 0.21), "measured")
    assert columns["mfu_spec_percent"] > 100, "shown, not clipped"
    assert columns["mfu_actual_clock_percent"] is None


def test_an_unknown_peak_is_no_mfu():
    columns = mfu_columns(100.0, {"measured_tflop_s": 790.0}, 1500.0, gpu=True)
    assert (columns["mfu_percent"], columns["mfu_basis"]) == (None, None)
    assert columns["mfu_measured_percent"] == pytest.approx(12.66, abs=0.01)
    assert mfu_columns(None, CEILING, None, gpu=True)["mfu_percent"] is None


def test_the_verdict_as_columns():
    found = columns({**HEALTHY, "other_processes": 1})
    assert tuple(found) == COLUMNS
    assert (found["verdict"], found["verdict_rung"]) == ("not explained", "SM active → tensor pipe active")
    assert found["verdict_flags"] == "1 other process used this device"
    assert set(columns({"mfu_percent": 3.0}).values()) == {None}
