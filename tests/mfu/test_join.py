"""The join: hand-computed cases, and what must hold for any numbers."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.language import verdicts
from mfulab.core.said import Said
from mfulab.mfu import join
from mfulab.mfu import utilization as mfu
from mfulab.mfu.account import shares_of
from mfulab.mfu.step import StepFacts, StepPeaks, StepTime, StepWork
from mfulab.mfu.utilization import quotient_interval

positive = st.floats(1e-9, 1e15)
maybe = st.one_of(st.none(), positive)

FLOPS = {"forward_flops": 1e12, "backward_flops": 2e12, "executed_backward_flops": 2.5e12}
FLOPS |= {"forward_causal_flops": 0.9e12, "backward_causal_flops": 1.8e12}
FLOPS |= {"recomputed_flops": 1e12, "forward_bytes": 4e9, "backward_bytes": 8e9}
COMPUTE = {"computed_tflop_s": 60.0, "measured_tflop_s": 40.0}
MEMORY = {"measured_gb_s": 100.0, "computed_gb_s": 120.0}
STEP = {"status": "ok", "time_s": 0.5, "time_ci_low_s": 0.4, "time_ci_high_s": 0.6, "energy_j": 2.0}
STEP |= {"batch_size": 8, "sequence_length": 16, "mode": "training", "gradient_accumulation": 1}
STEP |= {"checkpointing": False, "dtype": "float32"}


def columns(
    device: str = "cuda", flops: dict = FLOPS, compute: dict = COMPUTE, **changes: object
) -> dict:
    """Joined columns of the step with what differs."""
    return join.profile_columns({**STEP, **changes}, flops, compute, MEMORY, device)


def test_mfu_of_a_job_is_all_flops_over_the_slowest_step_and_the_sum_of_peaks():
    alone = columns()
    four = columns(processes=4, devices=4.0)
    assert four["mfu_percent"] == pytest.approx(alone["mfu_percent"])
    assert (four["flops"], four["peak_tflop_s"]) == (4 * alone["flops"], 4 * alone["peak_tflop_s"])
    assert four["samples_per_s"] == 4 * alone["samples_per_s"]
    # Ranks that share one device's threads share its peak.
    shared = columns("cpu", processes=4, devices=1.0)
    whole = columns("cpu")
    assert shared["mfu_percent"] == pytest.approx(4 * whole["mfu_percent"])
    assert four["predicted_memory_bytes"] is None


def test_modules_share_a_cpu_s_step_as_they_do_the_traced_one_and_a_gpu_s_keep_their_kernels_time():
    modules = [([], 800e6, 3e12), (["Net"], 400e6, 3e12), (["Net", "ReLU"], 100e6, 0)]
    told = [{"path": p, "calls": 1, "time_ns": t, "flops": f} for p, t, f in modules]
    row = {"kernel_busy_percent": 90.0, "modules": json.dumps(told)}
    on = {kind: json.loads(columns(kind, **row)["module_times"]) for kind in ("cpu", "cuda")}
    assert [one["ms"] for one in on["cpu"]] == pytest.approx([500, 250, 62.5])
    assert [one["ms"] for one in on["cuda"]] == pytest.approx([800, 400, 100])
    expected = pytest.approx(100 * 3e12 / 0.25 / (COMPUTE["measured_tflop_s"] * 1e12), rel=1e-5)
    assert on["cpu"][1]["mfu_percent"] == expected
    found = on["cuda"][1]["mfu_percent"]
    assert found == pytest.approx(100 * 3e12 / 0.4 / (COMPUTE["computed_tflop_s"] * 1e12), rel=1e-5)
    assert "mfu_percent" not in on["cpu"][2]
    assert [(one["depth"], one["name"]) for one in on["cpu"]] == [(0, ""), (1, "Net"), (2, "ReLU")]
    assert columns("cpu")["module_times"] is None
    refused = {**row, "kernel_busy_percent": None}
    seen = columns(**refused)["module_times"]
    assert seen is None, "CUPTI was refused"
    assert columns("cpu", **refused)["module_times"]


def test_a_training_step_on_a_gpu_by_hand():
    joined = columns()
    assert joined["flops"] == 3e12
    assert joined["tflop_s"] == pytest.approx(6.0)
    assert joined["mfu_basis"] == "spec"
    assert joined["mfu_percent"] == joined["mfu_spec_percent"] == pytest.approx(10.0)
    assert joined["mfu_measured_percent"] == pytest.approx(15.0)
    assert joined["hfu_percent"] == pytest.approx(100 * 3.5e12 / 0.5 / 60e12)
    assert joined["mfu_ci_low_percent"] == pytest.approx(100 * 3 / 0.6 / 60)
    assert joined["mfu_ci_high_percent"] == pytest.approx(100 * 3 / 0.4 / 60)
    assert joined["samples_per_s"] == pytest.approx(16)
    assert joined["tokens_per_s"] == pytest.approx(256)
    assert joined["arithmetic_intensity"] == pytest.approx(250)
    assert joined["samples_per_j"] == pytest.approx(4)
    assert joined["flops_per_j"] == pytest.approx(1.5e12)
    assert joined["mfu_note"] is None


def test_every_denominator_and_the_verdict():
    compute = {**COMPUTE, "computed_clock_mhz": 2000.0, "max_clock_tflop_s": 75.0}
    joined = columns(compute=compute, clock_mhz=1000.0)
    assert joined["mfu_max_clock_percent"] == pytest.approx(8.0)
    assert joined["mfu_actual_clock_percent"] == pytest.approx(20.0)
    assert joined["peak_clock_mhz"] == 2000.0
    assert joined["verdict"]
    assert verdicts.columns(joined)["verdict_reason"].endswith(".")


def test_a_run_without_a_time_has_no_verdict():
    joined = columns(status="failed")
    assert joined["verdict"] is None


def test_mbu_is_of_inference():
    flops = {**FLOPS, "parameters": 1_200_000_000}
    row = {"mode": "inference", "dtype": "bfloat16"}
    found = columns(flops=flops, **row)["mbu_percent"]
    assert found == pytest.approx(100 * 2.4 / 0.5 / 120)
    seen = columns("cpu", flops=flops, **row)["mbu_percent"]
    assert seen == pytest.approx(100 * 2.4 / 0.5 / 100)
    assert columns(flops=flops)["mbu_percent"] is None
    looked_up = {**flops, "looked_up_parameters": 300_000_000}
    expected = pytest.approx(100 * 1.8 / 0.5 / 120)
    assert columns(flops=looked_up, **row)["mbu_percent"] == expected
    unread = {**row, "unread_parameters": 600_000_000}
    wanted = pytest.approx(100 * 1.2 / 0.5 / 120)
    assert columns(flops=flops, **unread)["mbu_percent"] == wanted


def test_useful_mfu_is_the_part_of_real_tokens():
    padded = {**FLOPS, "useful_percent": 25.0}
    joined = columns(flops=padded)
    assert joined["useful_mfu_percent"] == pytest.approx(joined["mfu_percent"] / 4)
    found = joined["verdict"]
    assert found == "not_explained", "padding takes 7.5 % of the time, what nothing explains 85 %"
    fast = columns(flops=padded, time_s=0.0625)
    assert fast["verdict"] == "padded"
    assert columns()["useful_mfu_percent"] is None


def test_inference_takes_the_forward_pass_alone():
    joined = columns(mode="inference")
    assert (joined["flops"], joined["executed_flops"], joined["bytes_moved"]) == (1e12, 1e12, 4e9)


def test_inference_takes_the_pass_in_evaluation_mode():
    counted = {"inference_flops": 0.8e12, "inference_causal_flops": 0.7e12, "inference_bytes": 3e9}
    joined = columns(flops={**FLOPS, **counted}, mode="inference")
    assert (joined["flops"], joined["causal_flops"], joined["bytes_moved"]) == (0.8e12, 0.7e12, 3e9)
    assert joined["mfu_percent"] == pytest.approx(100 * 0.8 / 0.5 / 60)
    assert joined["hfu_percent"] == pytest.approx(joined["mfu_percent"])


@pytest.mark.parametrize("mode", ["inference", "decoding"])
def test_accumulation_is_of_training_alone(mode):
    flops = {**FLOPS, "decoding_flops": 1e9, "decoding_bytes": 1e9}
    once = columns(flops=flops, mode=mode)
    four = columns(flops=flops, mode=mode, gradient_accumulation=4)
    assert four == once


def test_accumulation_multiplies_work_and_samples():
    joined = columns(gradient_accumulation=4)
    assert joined["flops"] == 12e12
    assert joined["samples_per_s"] == pytest.approx(64)


def test_checkpointing_shows_in_hfu_and_not_in_mfu():
    plain = columns()
    again = columns(checkpointing=True)
    assert again["mfu_percent"] == plain["mfu_percent"]
    assert again["executed_flops"] - plain["executed_flops"] == 1e12


def test_a_teacher_shows_in_hfu_where_it_runs_in_each_step():
    counted = {**FLOPS, "inference_flops": 2e12}
    plain, online, cached = (
        columns(flops=counted, teacher=kind) for kind in ("none", "online", "cached")
    )
    assert online["mfu_percent"] == plain["mfu_percent"] == cached["mfu_percent"]
    assert online["executed_flops"] - plain["executed_flops"] == 2e12
    assert cached["executed_flops"] == plain["executed_flops"]
    assert online["predicted_memory_bytes"] is None


def test_quantised_weights_are_read_as_they_lie():
    counted = {**FLOPS, "parameters": 100, "looked_up_parameters": 20}
    whole, fewer = (
        columns(flops=counted, mode="inference", weight_bytes=size) for size in (None, 40.0)
    )
    assert whole["mbu_percent"] / fewer["mbu_percent"] == pytest.approx(80 * 4 / 40)
    assert whole["bytes_moved"] - fewer["bytes_moved"] == pytest.approx(80 * 4 - 40)


def test_the_roofline_s_time_is_operator_by_operator():
    # 40 TFLOP/s and 100 GB/s: 1 s of arithmetic over 0.5 s of moving, then 0.1 s over 2 s; 3 s of
    # others.
    passes = {"forward": [(40e12, 50e9), (4e12, 200e9), (0, 300e9)], "backward": [(80e12, 8e9)]}
    flops = {**FLOPS, "intensities": json.dumps(passes)}
    joined = columns(flops=flops)
    assert joined["roofline_time_s"] == pytest.approx(1 + 2 + 2)
    assert joined["unfused_roofline_time_s"] == pytest.approx(1 + 2 + 3 + 2)
    half = columns(flops=flops, dtype="bfloat16", gradient_accumulation=3)
    assert half["unfused_roofline_time_s"] == pytest.approx(3 * (1 + 1 + 1.5 + 2))
    for unlike in ({"mode": "decoding"}, {"checkpointing": True}, {"weight_bytes": 9}):
        assert columns(flops=flops, **unlike)["roofline_time_s"] is None
    assert columns()["roofline_time_s"] is None


def test_half_precision_moves_half_the_bytes():
    joined = columns(dtype="bfloat16")
    assert joined["bytes_moved"] == 6e9


def test_a_cpu_is_held_against_what_was_measured_there():
    joined = columns("cpu")
    assert joined["mfu_basis"] == "measured"
    assert joined["mfu_percent"] == joined["mfu_measured_percent"]


@pytest.mark.parametrize(("device", "is_flagged"), [("cpu", True), ("cuda", False)])
def test_a_share_of_a_ceiling_far_below_the_computed_peak_is_flagged(device, is_flagged):
    """A GPU's MFU is of its peak, whatever was measured."""
    far = COMPUTE | {"measured_tflop_s": 60.0 / 800}
    for joined in (
        columns(device, compute=far),
        join.matmul_columns(PRODUCT, far, device),
    ):
        flags = json.loads(joined["verdict_flags"] or "{}")
        assert ("far_ceiling" in flags) == is_flagged
        if is_flagged:
            assert flags["far_ceiling"]["share"] == pytest.approx(100 / 800)
    near = join.matmul_columns(PRODUCT, COMPUTE, device)["verdict_flags"]
    assert "far_ceiling" not in (near or "")


def test_above_the_peak_is_shown_and_flagged():
    joined = columns(time_s=0.01)
    assert joined["mfu_percent"] == pytest.approx(500)
    assert "above 100 %" in verdicts.note(joined)


@pytest.mark.parametrize(
    ("row", "flops", "compute", "reason"),
    [
        (STEP, {}, COMPUTE, "FLOPs were not counted"),
        (STEP, {"message": "meta failed"}, COMPUTE, "meta failed"),
        ({**STEP, "time_s": None}, FLOPS, COMPUTE, "was not timed"),
        ({**STEP, "effective_precision": "fp8"}, FLOPS, {}, "no peak is known for fp8"),
    ],
)
def test_no_mfu_says_why(row, flops, compute, reason):
    joined = join.profile_columns(row, flops, compute, MEMORY, "cuda")
    assert joined["mfu_percent"] is None
    assert joined["mfu_basis"] is None or compute
    assert reason in verdicts.note({**row, **joined}, flops.get("message"))


PRODUCT = {"status": "ok", "time_s": 0.5, "flops": 2e12, "bytes_moved": 1e10}
PRODUCT |= {"reference_time_s": 0.25, "cold_time_s": 1.0}


@pytest.mark.parametrize("status", ["out_of_memory", "unsupported", "incorrect", "failed"])
def test_only_ok_rows_have_speeds(status):
    profiled = columns(status=status)
    multiplied = join.matmul_columns(PRODUCT | {"status": status}, COMPUTE, "cuda")
    speeds = ("tflop_s", "mfu_percent", "hfu_percent")
    speeds += ("samples_per_s", "tokens_per_s", "samples_per_j")
    shares = ("share_of_spec_percent", "share_of_measured_percent", "share_of_reference_percent")
    assert [profiled[name] for name in speeds] == [None] * len(speeds)
    assert [multiplied[name] for name in ("tflop_s", *shares)] == [None] * (1 + len(shares))


def test_a_matmul_by_hand():
    joined = join.matmul_columns(PRODUCT, COMPUTE, "cuda")
    assert joined["tflop_s"] == pytest.approx(4)
    assert joined["cold_tflop_s"] == pytest.approx(2)
    assert joined["end_to_end_tflop_s"] is None
    assert joined["share_of_spec_percent"] == pytest.approx(100 * 4 / 60)
    assert joined["share_of_measured_percent"] == pytest.approx(10)
    assert joined["share_of_reference_percent"] == pytest.approx(50)
    assert joined["arithmetic_intensity"] == pytest.approx(200)


@pytest.mark.parametrize(
    ("time_s", "limit", "device", "impossible"),
    [
        (0.5, 4.1, "cuda", False),
        (0.5, 3.9, "cuda", True),
        (0.5, 3.9, "cpu", False),  # turbo hides there: its computed peak is no limit
        (0.5, None, "cuda", False),
        (None, 3.9, "cuda", False),
    ],
)
def test_a_time_below_the_roofline_is_impossible_on_a_gpu(time_s, limit, device, impossible):
    row = {"status": "ok", "time_s": time_s, "flops": 2e12}
    said = join.faster_than_possible(row, {"max_clock_tflop_s": limit}, {}, device)
    assert (said is not None) == impossible
    assert not said or said == Said("above_highest_clock", {"speed": 4.0, "limit": 3.9})


@pytest.mark.parametrize(
    ("changed", "impossible"),
    [
        ({}, True),  # 2 · 4 bytes · 2²⁴ in 21 µs: 6391 GB/s
        ({"cold_time_s": 40.1e-6}, False),
        ({"cold_time_s": None}, False),
        ({"precision": "bf16"}, False),
        ({"precision": "unheard of"}, False),
        ({"status": "incorrect"}, False),
    ],
)
def test_operands_come_from_memory_no_faster_than_it_is(changed, impossible):
    row = {"batch": 1 << 24, "m": 1, "n": 1, "k": 1, "status": "ok", "precision": "fp32"}
    row |= {"time_s": 1e-6, "cold_time_s": 21e-6, **changed}
    said = join.faster_than_possible(row, {}, {"computed_gb_s": 3352.0}, "cuda")
    assert (said is not None) == impossible
    assert not said or said.key == "above_bandwidth"
    assert join.faster_than_possible(row, {}, {}, "cuda") is None
    assert join.faster_than_possible(row, {}, {"computed_gb_s": 3352.0}, "cpu") is None


@given(
    row=st.fixed_dictionaries(
        {
            "status": st.just("ok"),
            "time_s": maybe,
            "energy_j": maybe,
            "batch_size": st.one_of(st.none(), st.integers(1, 9)),
        }
    ),
    flops=st.fixed_dictionaries(dict.fromkeys(FLOPS, maybe)),
    compute=st.fixed_dictionaries(dict.fromkeys(COMPUTE, maybe)),
    device=st.sampled_from(["cpu", "cuda", None]),
)
def test_none_goes_through_and_nothing_becomes_zero(row, flops, compute, device):
    joined = join.profile_columns(row, flops, compute, MEMORY, device)
    assert 0 not in [value for value in joined.values() if isinstance(value, float)]
    needs = {
        "flops": [flops["forward_flops"], flops["backward_flops"]],
        "tflop_s": [flops["forward_flops"], flops["backward_flops"], row["time_s"]],
        "samples_per_s": [row["batch_size"], row["time_s"]],
        "samples_per_j": [row["batch_size"], row["energy_j"]],
    }
    for name, inputs in needs.items():
        assert (joined[name] is None) == (None in inputs)


@given(
    time=positive,
    flops=positive,
    measured=positive,
    computed=positive,
    factor=st.floats(1.001, 1000),
)
def test_mfu_scales_as_it_must(time, flops, measured, computed, factor):
    counted = {"forward_flops": flops, "backward_flops": 2 * flops}
    compute = {"measured_tflop_s": measured, "computed_tflop_s": computed}

    def mfu(time, compute):
        row = {"status": "ok", "time_s": time}
        return join.profile_columns(row, counted, compute, {}, "cuda")["mfu_percent"]

    slower = mfu(time * factor, compute)
    assert slower == pytest.approx(mfu(time, compute) / factor, rel=1e-9)
    found = mfu(time, {**compute, "computed_tflop_s": computed * factor})
    assert found == pytest.approx(slower, rel=1e-9)


@given(part=maybe, whole=st.one_of(st.none(), st.floats(-1, 1e15)))
def test_percent_never_divides_by_nothing(part, whole):
    result = mfu.percent(part, whole)
    if part is None or whole is None or whole <= 0:
        assert result is None
    else:
        assert result == pytest.approx(100 * part / whole)


COUNTED = {"parameters": 100, "trainable_parameters": 100, "step_peak_bytes": 4000}
COUNTED |= {"step_peak_fixed_bytes": 8, "checkpointed_peak_bytes": 2000}
COUNTED |= {"inference_peak_bytes": 1200}
TRAINED = {"mode": "training", "dtype": "float32", "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("row", "device", "expected"),
    [
        (TRAINED, "cpu", 400 + 4008),
        ({**TRAINED, "checkpointing": True}, "cpu", 400 + 2008),
        ({**TRAINED, "gradient_accumulation": 2}, "cpu", 400 + 4008 + 400),
        ({**TRAINED, "optimizer": "adam", "dtype": "bfloat16"}, "cuda", 200 + 400 + 2008),
        ({**TRAINED, "dtype": "bfloat16", "autocast": True}, "cuda", 400 + 2008 + 200 + 200),
        ({"mode": "inference", "dtype": "float16"}, "cuda", 200 + 600),
        ({**TRAINED, "dtype": "unknown"}, "cpu", None),
    ],
)
def test_predicted_memory(row, device, expected):
    assert join.predicted_memory(row, COUNTED, device) == expected
    assert join.predicted_memory(row, {}, device) is None


@pytest.mark.parametrize(
    ("change", "device", "workspace"),
    [
        ({}, "cpu", 1000),
        ({}, "cuda", 0),
        ({"dtype": "bfloat16"}, "cpu", 0),
        ({"autocast": True}, "cpu", 0),
        ({"checkpointing": True}, "cpu", 0),
    ],
)
def test_an_lstm_of_a_cpu_has_a_workspace_in_plain_training(change, device, workspace):
    counted = {**COUNTED, "cpu_lstm_bytes": 400, "cpu_lstm_fixed_bytes": 600}
    row = {**TRAINED, **change}
    without = join.predicted_memory(row, COUNTED, device)
    assert join.predicted_memory(row, counted, device) == without + workspace


@pytest.mark.parametrize(
    "holding",
    [
        {"attention": "math"},
        {"teacher": "cached"},
        {"processes": 2},
        {"mode": "prefill"},
        {"mode": "decoding"},
        {"autograd": "recorded"},
        {"autograd": "leaked"},
    ],
)
def test_no_memory_is_predicted_of_what_holds_more_than_was_counted(holding):
    assert join.predicted_memory({**TRAINED, **holding}, COUNTED, "cpu") is None


@pytest.mark.parametrize(
    ("implementation", "device", "temporaries"),
    [
        ("default", "cpu", 0),
        ("default", "cuda", 1),
        ("foreach", "cpu", 1),
        ("fused", "cuda", 0),
        (None, "cuda", 1),
    ],
)
def test_an_optimiser_that_updates_at_once_holds_temporaries(implementation, device, temporaries):
    row = {**TRAINED, "optimizer": "adam", "optimizer_implementation": implementation}
    small = {**COUNTED, "step_peak_bytes": 400, "step_peak_fixed_bytes": 0}
    assert join.predicted_memory(row, small, device) == 400 + 800 + 400 * (1 + temporaries)


def test_a_quotient_carries_the_intervals_of_both_sides():
    low, high = quotient_interval(2.0, [(4.0, 3.6, 4.4)], [(2.0, 1.9, 2.1)])
    own, others = math.log(4.4 / 4), math.log(2 / 1.9)
    assert math.log(high / 2) == pytest.approx(math.hypot(own, others))
    assert low < 2 < high
    exact = quotient_interval(2.0, [(4.0, 3.6, 4.4)], [(2.0, None, None)])
    assert exact == pytest.approx((1.8, 2.2)), "a datasheet's peak is exact"
    assert quotient_interval(2.0, [(4.0, None, None)], [(2.0, None, None)]) == (None, None)
    assert quotient_interval(None, [(4.0, 3.6, 4.4)]) == (None, None)
    for impossible in ((4.0, -0.5, 0.0), (-0.5, 3.6, 4.4), (0.0, 3.6, 4.4)):
        assert quotient_interval(2.0, [impossible]) == (None, None)


def test_mfu_of_a_measured_ceiling_is_as_unsure_as_both():
    exact = StepPeaks("measured", ceiling_tflop_s=1.0)
    unsure = replace(exact, ceiling_ci_low_tflop_s=0.9, ceiling_ci_high_tflop_s=1.1)
    narrow, wide = (
        shares_of(StepFacts(StepTime(1.0, 0.95, 1.05), StepWork(flops=5e11), peaks))
        for peaks in (exact, unsure)
    )
    assert narrow.mfu_percent == wide.mfu_percent == 50
    assert wide.mfu_ci_low_percent < narrow.mfu_ci_low_percent < 50
    assert 50 < narrow.mfu_ci_high_percent < wide.mfu_ci_high_percent


RUN = {"status": "ok", "run": "a", "time_s": 0.5, "time_ci_low_s": 0.4, "time_ci_high_s": 0.625}
CEILING = {"measured_tflop_s": 3.0}


def test_a_run_above_the_ceiling_raises_it_with_its_own_interval():
    raised = join.raised_ceiling(CEILING, {**RUN, "model": "gpt2", "devices": 2.0}, 8e12)
    ends = {"measured_ci_low_tflop_s": 6.4, "measured_ci_high_tflop_s": 10.0}
    by = {"measured_with": "gpt2", "measured_shape": None, "raised_by": "a"}
    assert raised == {"measured_tflop_s": 8.0, "swept_tflop_s": 3.0, **ends, **by}
    matmul = {**RUN, "kernel": "library", "m": 2, "n": 3, "k": 4}
    again = join.raised_ceiling({**CEILING, "swept_tflop_s": 1.0}, matmul, 8e12)
    assert (again["measured_with"], again["measured_shape"]) == ("library", "2x3x4")
    assert (again["measured_tflop_s"], again["swept_tflop_s"]) == (16.0, 1.0)
    assert join.raised_ceiling({}, RUN, 1e9)["measured_tflop_s"] == 0.002


@pytest.mark.parametrize(
    ("row", "flops"),
    [
        (RUN, 1.5e12),
        (RUN, None),
        ({**RUN, "status": "failed"}, 8e12),
        ({**RUN, "time_s": None}, 8e12),
        ({**RUN, "devices": 8}, 8e12),
    ],
)
def test_a_run_below_the_ceiling_leaves_it(row, flops):
    assert join.raised_ceiling(CEILING, row, flops) == {}
