"""Sentences of the seminar's experiments: from extreme, equal and single rows."""

import pandas as pd
import pytest
from support import report_rows

from mfulab.language import Texts
from mfulab.report.figures import (
    alignment,
    known_truth,
    memory_hierarchy,
    reading_utilization,
    rounding_modes,
    seminar_matmul,
    special_values,
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
    )
    words = told(seminar_matmul, rows)
    assert "numba_cpu_seminar at 1000³: the mean of its first 10 calls is 540 ms, 11× its hot time of 50.0 ms" in words
    assert "makes 92 % of that mean" in words
    assert "is off by at most 1.0e-05 at 1000³; numba_cpu_naive, summed in float32, by 6.0e-05" in words
    assert "numba_cuda_seminar_shared gives a wrong product at 1000³" in words
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
    shared = counters("steady", 100.0, mfulab_percent=12.0, other_processes_percent=88.0)
    assert "Other processes took 88 % of these CPUs" in told(known_truth, [shared])


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


def walk(pattern, size, seconds):
    return {"pattern": pattern, "working_set_bytes": size, "time_per_access_s": seconds, "machine": "here"}


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


@pytest.mark.parametrize(
    ("size", "words"), [(4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 40, "1024 GiB")]
)
def test_sizes_are_said_in_binary_units(size, words):
    assert memory_hierarchy.size_of(size) == words


def product(n, time_s):
    return {
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
    assert "from n = 512 to 513 the FLOPs change by +0.59 % and the time by +20 %" in words
    assert "time by +0 %" in told(alignment, rows[2:4])
    assert "time by −50 %" in told(alignment, [product(512, 2e-3), product(513, 1e-3)])
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
        {**common, "not_associative_percent": 20.0},
        {**common, "precision": "bf16", "toward_zero_sum_error": 1e-6, "not_associative_percent": 45.0},
    ]
    words = told(rounding_modes, rows)
    assert (
        "In fp32 the sum of 4096 numbers is off by 1.0e-06 rounded to nearest and by 0.00030 cut off: 300× as much"
        in words
    )
    assert "In bf16 45 % of triples" in words
    exact = {**common, "naive_sum_error": 0.0, "toward_zero_sum_error": 0.0, "not_associative_percent": None}
    assert told(rounding_modes, [exact]) == "The sums of 1 format were exact."


def test_patterns_of_nan_are_counted_and_what_has_no_number_is_not_said():
    row = {"precision": "fp16", "bits": 16, "nan_patterns": 2046, "round_trip_digits": 5, "sigmoid_fails_at": 12.0}
    words = told(special_values, [row, {**row, "precision": "fp64", "bits": 64, "round_trip_digits": 17}])
    assert words.startswith("In fp16 2,046 of 65,536 patterns (3.1 %) are NaN. A number in fp64 is read back from 17")
    assert words.endswith("is NaN in fp16 from x = 12 on.")
    assert told(special_values, [{**row, "round_trip_digits": None, "sigmoid_fails_at": None}]).endswith("are NaN.")
