"""Sentences of the seminar's experiments: from extreme, equal and single rows."""

import json

import pandas as pd
import pytest
from support import report_rows
from support.drawn import overlaps

from mfulab.core.language import Texts
from mfulab.report import figures, frames
from mfulab.report.figures import (
    alignment,
    convolution,
    frameworks,
    known_truth,
    memory_hierarchy,
    reading_utilization,
    recompilations,
    rounding_modes,
    seminar_matmul,
    special_values,
    subnormals,
    tolerances,
)


def told(module, rows, language="en"):
    """The sentence that a figure says of rows, here as dictionaries."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    frame = frame.where(frame.notna(), float("nan")).infer_objects()  # as a table's empty cells are
    return module.finding(frame, Texts(language, module.__name__.rpartition(".")[2]))


def matmuls(*given):
    common = {"n": 1000, "status": "ok", "first_calls": 10, "time_s": 0.05, "first_call_s": 0.5}
    return pd.DataFrame([{**common, "first_calls_mean_s": 0.095, **each} for each in given])


def test_the_seminar_s_mean_is_said_by_its_worst_kernel():
    rows = matmuls(
        {"kernel": "numba_cpu_naive", "max_absolute_error": 6e-5},
        {"kernel": "numba_cpu_seminar", "max_absolute_error": 1e-5, "first_call_s": 4.95, "first_calls_mean_s": 0.54},
        {"kernel": "numba_cuda_seminar_shared", "status": "incorrect", "time_s": None, "first_calls_mean_s": None},
        {"kernel": "numba_cpu_seminar", "n": 256, "first_calls_mean_s": 9.0},
    )
    words = told(seminar_matmul, rows)
    assert "numba_cpu_seminar at 1000³: the mean of its first 10 calls is 540 ms, 11× its hot time of 50.0 ms" in words
    assert "makes 92 % of that mean" in words
    assert "is off by at most 1.0e-05 at 1000³; numba_cpu_naive, summed in float32, by 6.0e-05" in words
    assert "numba_cuda_seminar_shared gives a wrong result at 1000³" in words
    assert "Compilation does not dominate" not in words
    slow = {"kernel": "numba_cpu_seminar", "time_s": 0.638, "first_calls_mean_s": 0.657, "first_call_s": 0.99}
    slow["max_absolute_error"] = 0.0
    words = told(seminar_matmul, matmuls(slow, {"kernel": "numba_cpu_blocked", "first_calls_mean_s": 9.0}))
    assert "the first call alone makes 15 % of that mean" in words
    assert "Compilation does not dominate this mean: without the first call it is 620 ms." in words
    single = told(seminar_matmul, rows.head(1))
    assert "1.9× its hot time" in single
    assert "Summed" not in single
    assert "10 % of" in told(
        seminar_matmul,
        matmuls({"kernel": "torch", "first_call_s": 0.05, "first_calls_mean_s": 0.05, "max_absolute_error": 0.0}),
    )


def counters(load, truth, **read):
    others = {"other_processes_percent": 5.0}
    return {"load": load, "truth_percent": truth, **others, **dict.fromkeys(known_truth.COUNTERS), **read}


def test_the_worst_counter_and_the_best_are_named():
    rows = [
        counters("spin_one", 0.76, nvml_percent=100.0, mfulab_percent=1.0),
        counters("duty_50", 50.0, nvml_percent=55.0, mfulab_percent=48.0),
    ]
    words = told(known_truth, rows)
    assert words.startswith("nvidia-smi is the furthest off: it reads 100 % of the load “one core or SM spins”")
    assert "which is 0.76 % by construction" in words
    assert words.endswith("mfulab is off by at most 2.0 points over 2 loads.")
    assert "off by at most" not in told(known_truth, [counters("steady", 100.0, mfulab_percent=100.0)])
    assert "reads 100 %" in told(known_truth, [counters("steady", 100.0, mfulab_percent=100.0, nvml_percent=100.0)])
    shared = counters("steady", 100.0, mfulab_percent=12.0, nvml_percent=99.0, other_processes_percent=88.0)
    assert "Other processes took 88 % of these CPUs" in told(known_truth, [shared])
    assert "off by at most" not in told(known_truth, [shared])


def reading(**changed):
    known = {"run": "a", "load": "steady", "polling_period_s": 0.2, "mfulab_percent": 98.0, "after_percent": 0.0}
    polled = {"polled_low_percent": 90.0, "polled_high_percent": 100.0, "polls": 20, "mfu_percent": 80.0}
    return {**known, **polled, **changed}


def test_a_reading_after_the_loop_is_said_beside_its_mean():
    words = told(
        reading_utilization, [reading(), reading(run="b", load="bursty", mfulab_percent=21.0, polled_low_percent=0.0)]
    )
    assert words.startswith("One reading after the loop says 0 %, while the steady load kept the device 98 % busy.")
    assert "Its MFU is 80 %." in words
    assert "the load in bursts read from 0 to 100 %, with a mean of 21 %" in words
    single = told(
        reading_utilization, [reading(after_percent=None, mfu_percent=None, polls=0, polled_low_percent=None)]
    )
    assert single == "The steady load kept the device 98 % busy; no single reading after the loop is known."
    assert "from 98 to 98 %" in told(reading_utilization, [reading(polled_low_percent=98.0, polled_high_percent=98.0)])


def test_memory_in_use_is_no_memory_utilization_and_an_empty_period_is_named():
    unknown = reading(memory_used_percent=1.7, reasons='{"memory_utilization_percent": "a counter of NVIDIA GPUs"}')
    words = told(reading_utilization, [unknown])
    assert "Memory in use was 1.7 % of the total. Memory utilization," in words
    assert words.endswith("is unknown: a counter of NVIDIA GPUs.")
    assert told(reading_utilization, [{**unknown, "reasons": ""}]).endswith("Memory in use was 1.7 % of the total.")
    known = told(reading_utilization, [reading(memory_used_percent=60.0, memory_utilization_percent=35.0)])
    assert known.endswith("the time in which memory was accessed, 35 %.")

    why = "the period of 0.01 s is shorter than the counter's own, 0.02 s"
    kinds = dict(frames.kinds("readings"))
    told_of = [
        reading(polled_mean_percent=97.0, window_s=6.0),
        reading(run="b", polling_period_s=0.01, window_s=6.0, reasons=json.dumps({"polled_mean_percent": why})),
    ]
    common = {"hardware": "x", "status": "ok"}
    rows = [{name: frames.ABSENT[kind] for name, kind in kinds.items()} | common | row for row in told_of]
    machine = pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])
    polls = pd.DataFrame([{"hardware": "x", "recorded": False, "run": "a", "time_s": 1.0, "utilization_percent": 97.0}])
    tables = {"readings": pd.DataFrame(rows), "series": polls, "environment": machine}
    for language, said in (
        ("en", f"is not drawn: {why}."),
        ("ko", "주기 0.01초가 카운터 자체의 주기 0.02초보다 짧음."),
    ):
        words = reading_utilization.finding(reading_utilization.rows(tables), Texts(language, "reading_utilization"))
        assert words.endswith(said)


def walk(pattern, size, seconds):
    common = {"machine": "here", "nominal_mhz": float("nan")}
    return {"pattern": pattern, "working_set_bytes": size, "time_per_access_s": seconds, **common}


def test_the_ends_of_the_hierarchy_are_compared():
    rows = [
        walk("random", 4096, 1e-9),
        walk("random", 1 << 30, 1e-7),
        walk("rows", 1 << 20, 1e-9),
        walk("columns", 1 << 20, 5e-9),
    ]
    words = told(memory_hierarchy, rows)
    assert "an access takes 1.00 ns in 4 KiB and 100 ns in 1 GiB: 100× as long" in words
    assert "A matrix of 1 MiB takes 5.00× as long by columns as by rows" in words
    assert "1.00× as long" in told(memory_hierarchy, rows[:1])
    assert "Walked as in order" in told(memory_hierarchy, [walk("sequential", 4096, 1e-10)])
    assert "MHz" not in words


@pytest.mark.parametrize(
    ("virtual", "device", "said"), [(True, "cpu", True), (False, "cpu", False), (True, "cuda", False)]
)
def test_cycles_of_a_virtual_machine_are_said_to_be_nominal(virtual, device, said):
    machine = report_rows.environment("x").model_dump() | {"recorded": False, "virtual_machine": virtual}
    row = walk("random", 4096, 1e-9) | {"status": "ok", "hardware": "x", "recorded": False, "clock_mhz": 2596.1}
    tables = {"environment": pd.DataFrame([machine | {"device": device}]), "memory": pd.DataFrame([row])}
    words = memory_hierarchy.finding(memory_hierarchy.rows(tables), Texts("en", "memory_hierarchy"))
    assert ("of the nominal 2,596 MHz" in words) == said


@pytest.mark.parametrize(
    ("size", "words"), [(4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 40, "1024 GiB")]
)
def test_sizes_are_said_in_binary_units(size, words):
    assert memory_hierarchy.size_of(size) == words


def product(n, time_s, spread=0.0):
    return {
        "time_ci_low_s": time_s * (1 - spread),
        "time_ci_high_s": time_s * (1 + spread),
        "n": n,
        "precision": "fp32",
        "kernel": "torch",
        "machine": "here",
        "time_s": time_s,
        "flops": 2 * n**3,
        "tflop_s": 2e-12 * n**3 / time_s,
    }


def test_the_step_over_a_tile_is_said_with_its_flops():
    rows = [product(512, 1e-3), product(513, 1.2e-3), product(520, 1e-3), product(521, 1e-3), product(530, 9.0)]
    words = told(alignment, rows)
    assert "It rises most from n = 512 to 513: the FLOPs change by +0.59 % and the time by +20 %" in words
    assert "the time changes by +10 % in the median" in words
    assert "Beyond the intervals it rises in 1 of 2 pairs and falls in 0." in words
    assert "changes by +0 % in the median. Beyond the intervals it rises in 0 of 1 pair" in told(alignment, rows[2:4])
    falling = told(alignment, [product(512, 2e-3), product(513, 1e-3)])
    assert falling.endswith("by −50 % in the median. Beyond the intervals it rises in 0 of 1 pair and falls in 1.")
    wide = told(alignment, [product(512, 1e-3, 0.2), product(513, 1.2e-3, 0.2)])
    assert wide.endswith("by +20 % in the median. Beyond the intervals it rises in 0 of 1 pair and falls in 0.")
    assert [alignment.tile(n) for n in (512, 576, 544, 528, 520, 521)] == [128, 64, 32, 16, 8, 1]


def test_a_few_sizes_are_no_staircase():
    tables = {"environment": pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])}
    columns = {
        "hardware": "x",
        "recorded": False,
        "status": "ok",
        "family": "library",
        "size": "",
        "batch": 1,
        "run": "r",
    }

    def of(*sizes):
        rows = [{**product(n, 1e-3), **columns, "m": n, "k": n, "size": str(n)} for n in sizes]
        return alignment.rows({**tables, "matmul": pd.DataFrame(rows)})

    assert of(256, 512, 513).empty
    assert len(of(256, 257, 264, 265, 272, 273, 288, 289, 300)) == 9


def test_directions_of_rounding_are_compared_where_they_cost_most():
    common = {"precision": "fp32", "sum_length": 4096, "naive_sum_error": 1e-6, "toward_zero_sum_error": 3e-4}
    rows = [
        {**common, "not_associative_percent": 20.0, "bits": 32, "tenths_from_left": 0.6, "tenths_from_right": 0.6},
        {
            **common,
            "precision": "bf16",
            "bits": 16,
            "toward_zero_sum_error": 1e-6,
            "not_associative_percent": 45.0,
            "tenths_from_left": 0.61,
            "tenths_from_right": 0.6,
        },
    ]
    words = told(rounding_modes, rows)
    assert (
        "In fp32 the sum of 4096 numbers is off by 1.0e-06 rounded to nearest and by 0.00030 cut off: 300× as much"
        in words
    )
    assert "In bf16 45 % of triples" in words
    assert words.endswith("One such triple in bf16: (0.1 + 0.2) + 0.3 is 0.61, 0.1 + (0.2 + 0.3) is 0.6.")
    assert told(rounding_modes, rows[:1]).endswith("c ≠ a + (b + c)."), "no triple of tenths differs"
    unknown = {**rows[1], "tenths_from_left": None, "tenths_from_right": None}
    assert told(rounding_modes, [unknown]).endswith("c ≠ a + (b + c).")
    exact = {**unknown, "naive_sum_error": 0.0, "toward_zero_sum_error": 0.0, "not_associative_percent": None}
    assert told(rounding_modes, [exact]) == "The sums of 1 format were exact."


def test_patterns_of_nan_are_counted_and_what_has_no_number_is_not_said():
    row = {"precision": "fp16", "bits": 16, "nan_patterns": 2046, "round_trip_digits": 5, "sigmoid_fails_at": 12.0}
    words = told(special_values, [row, {**row, "precision": "fp64", "bits": 64, "round_trip_digits": 17}])
    assert words.startswith("In fp16 2,046 of 65,536 patterns (3.1 %) are NaN. A number in fp64 is read back from 17")
    assert words.endswith("is NaN in fp16 from x = 12 on.")
    assert told(special_values, [{**row, "round_trip_digits": None, "sigmoid_fails_at": None}]).endswith("are NaN.")


def profiled(*given):
    """Tables of profiled steps on one machine, with all columns that a table has."""
    kinds = dict(frames.kinds("profile"))
    common = {"hardware": "x", "status": "ok", "precision": "fp32", "batch_size": 8.0, "mode": "inference"}
    common |= {"execution": "eager", "commit": "0123abc", "started_at": "2026-01-02T03:04:05+00:00"}
    rows = [{**common, "run": str(place), **each} for place, each in enumerate(given)]
    frame = pd.DataFrame({name: [row.get(name, frames.ABSENT[kind]) for row in rows] for name, kind in kinds.items()})
    machine = pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])
    return {"profile": frame.assign(recorded=False), "environment": machine}


def drawn(module, tables):
    """The sentence, after drawing without an overlap in the language whose words are wider."""
    name = module.__name__.rpartition(".")[2]
    assert overlaps(figures.render(name, tables, "ko").figure) == []
    return said(module, tables)


def said(module, tables):
    """The sentence in English."""
    return figures.finding(module, module.rows(tables), Texts("en", module.__name__.rpartition(".")[2]))


def test_subnormal_numbers_are_compared_with_normal_ones():
    steps = [
        {"model": f"{numbers}_{operation}", "precision": precision, "time_s": time if operation == "roots" else 1e-4}
        for operation in ("roots", "products")
        for precision in ("fp32", "fp64")
        for numbers, time in (("normal", 1e-4), ("subnormal", 5e-3), ("flushed", 1.1e-4))
    ]
    words = drawn(subnormals, profiled(*steps))
    assert "square roots of subnormal numbers take 50× as long as those of normal ones (5.00 ms a step)" in words
    assert "Taken for zero, they take 1.1× as long." in words
    assert words.endswith("products take 1.0×.")
    assert said(subnormals, profiled(*steps[:2])).endswith("a step).")
    assert subnormals.rows(profiled(steps[1])).empty, "nothing to hold it against"


def test_recompilations_are_said_beside_eager_and_the_best():
    common = {"model": "straight", "varied_calls": 10, "time_s": 1e-3}
    steps = [
        {**common, "varied_s": 0.002},
        {
            **common,
            "execution": "compile_static",
            "varied_s": 40.0,
            "graphs": 8,
            "recompilations": 7,
            "graph_breaks": 0,
        },
        {**common, "execution": "compile", "varied_s": 8.0, "graphs": 2, "recompilations": 1, "graph_breaks": 0},
    ]
    words = drawn(recompilations, profiled(*steps))
    assert "10 calls with changing batch sizes compile 7 times again, 8 graphs in all, and take 40.0 s." in words
    assert "Eager takes 2.00 ms." in words
    assert words.endswith("compile compiles 1 time again and takes 8.00 s.")
    broken = profiled({**steps[2], "model": "branch_on_data", "graph_breaks": 3})
    assert said(recompilations, broken).endswith("goes back to Python in: branch_on_data.")
    assert "nothing was compiled" in said(recompilations, profiled(steps[0]))


def test_three_convolutions_are_held_against_the_library():
    steps = [
        {
            "model": model,
            "mode": mode,
            "batch_size": batch,
            "time_s": batch * time,
            "flops": batch * 6e7,
            "mfu_percent": 9,
        }
        for model, time in (("convolution_library", 1e-3), ("convolution_im2col", 3e-3), ("convolution_direct", 5e-3))
        for mode in ("training", "inference")
        for batch in (1.0, 16.0)
    ]
    steps[0]["relative_error"] = 3e-7
    words = drawn(convolution, profiled(*steps))
    assert "batch size 16: 960 MFLOP take the library 16.0 ms." in words
    assert "Beside it: im2col and a matmul 3.0× as long, direct loops 5.0× as long." in words
    assert words.endswith("The outputs are off by at most 3.0e-07 of float64's, relatively.")
    assert convolution.rows(profiled(*steps[4:])).empty, "no library beside them"


def test_frameworks_are_compared_with_their_losses():
    losses = {"eager": [2.0, 1.0, 1e-9, 5.0], "jax": [2.0, 0.995, 0.0, 6.0]}
    steps = [
        {"model": model, "mode": mode, "execution": execution, "time_s": time, "mfu_percent": 30.0,
         "compile_s": compile_s, "losses": json.dumps(losses[execution]) if mode == "training" else ""}
        for model, mode in (("simple_cnn", "training"), ("simple_cnn", "inference"), ("conv_64", "inference"))
        for execution, time, compile_s in (("eager", 0.2, float("nan")), ("jax", 0.1, 0.5))
    ]  # fmt: skip
    words = drawn(frameworks, profiled(*steps))
    assert "JAX, jit takes 100 ms a step, torch, eager 200 ms." in words
    assert "JAX, jit takes 500 ms to compile, the longest of all." in words
    assert "Over the first 2 training steps, before the loss vanishes" in words
    assert words.endswith("the losses of 2 executions differ by at most 0.50 %, within the tolerance of 1 %.")
    for step in steps[:2]:
        step["exact_losses"] = json.dumps([2.0, 0.999, 1e-9, 5.0])
    words = drawn(frameworks, profiled(*steps))
    assert words.endswith("From the losses of float64 they are off by at most 0.40 %.")
    for step in steps[:2]:
        step["losses"] = json.dumps([2.0, 0.999])
    words = drawn(frameworks, profiled(*steps))
    assert "Over the first 2 training steps the losses of 2 executions differ by at most 0 %" in words
    assert "a step." in said(frameworks, profiled(steps[1]))
    assert frameworks.rows(profiled(steps[0])).empty, "torch alone"


@pytest.mark.parametrize("language", ["en", "ko"])
def test_frameworks_are_ranked_only_beyond_their_intervals(language):
    def step(model, execution, time, half):
        interval = {"time_ci_low_s": time - half, "time_ci_high_s": time + half}
        return {"model": model, "mode": "inference", "batch_size": 1, "execution": execution, "time_s": time} | interval

    text = Texts(language, "frameworks")
    nothing = {"compile_s": float("nan"), "losses": "", "mfu_percent": 30.0}
    wide = [step("conv_64", "eager", 0.5, 0.45), step("conv_64", "jax", 0.1, 0.01)]
    narrow = [step("simple_cnn", name, time, 0.01) for name, time in (("eager", 0.2), ("jax", 0.1), ("compile", 0.105))]
    words = told(frameworks, [each | nothing for each in [*wide, *narrow]], language)
    assert "simple_cnn" in words, "the wider ratio is within its intervals"
    assert words.endswith(text("as_fast", others=text("compile"), fast=text("jax")))
    alike = told(frameworks, [each | nothing for each in wide], language)
    named = {"row": wide[1], "fast": text("jax"), "slow": text("eager")}
    assert alike == text("finding_alike", **named, longer=0.5)
    assert told(frameworks, [wide[1] | nothing], language) == text("finding_one", **named)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ([2.0, 1.0, 0.5], (3, 0.0)),
        ([2.0, 1.25, 0.5], (3, 20.0)),
        ([2.0, 1.0, 1e-7], (2, 0.0)),
        ([2.0], (1, 0.0)),
        ([0.0, 9.0, 9.0], (0, 0.0)),
    ],
)
def test_losses_are_compared_until_one_vanishes(other, found):
    assert frameworks.alike({"eager": [2.0, 1.0, 0.5], "jax": other}) == pytest.approx(found)


def test_losses_are_off_float64_s_or_the_first_execution_s():
    curves = {"eager": [2.0, 1.0], "jax": [2.0, 0.5]}
    found = frameworks.deviations(curves, [2.0, 0.8])
    assert found["eager"] == pytest.approx([0, 25.0])
    assert found["jax"] == pytest.approx([0, 37.5])
    assert frameworks.deviations(curves, []) == {"jax": [0, 50.0]}
    assert frameworks.deviations({"eager": [0.0], "jax": [0.0]}, [0.0]) == {"eager": [], "jax": []}


def test_tolerances_are_said_where_an_absolute_one_errs_most():
    row = {"precision": "fp64", "relative_tolerance": 2e-16, "gradcheck_passes": True}
    row |= {"absolute_refuses_percent": 47.0, "absolute_accepts_percent": 51.0}
    words = told(tolerances, [row, {**row, "precision": "bf16", "gradcheck_passes": False}])
    assert "refuses 47 % of the right results and accepts 51 % of the wrong ones" in words
    assert words.endswith("gradcheck passes in fp64. In bf16 it fails, for its differences are too coarse there.")
    single = told(tolerances, [{**row, "gradcheck_passes": None}])
    assert single.endswith("accepts every right one.")
