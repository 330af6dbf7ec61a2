"""Sentences of the seminar's experiments: from extreme, equal and single rows."""

import json
import re

import pandas as pd
import pytest
from support import report_rows
from support.drawn import overlaps

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import figures, frames
from mfulab.lab.report.figures import (
    convolution,
    frameworks,
    known_truth,
    memory_hierarchy,
    recompilations,
    seminar_matmul,
    subnormals,
)


def told(module, rows, language="en"):
    """The sentence that a figure says of rows, here as dictionaries."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    frame = frame.where(frame.notna(), float("nan")).infer_objects()  # as a table's empty cells are
    return module.finding(frame, Texts(language, module.__name__.rpartition(".")[2]))


def matmuls(*given):
    """Tables of matmuls of one machine, timed from the first call on."""
    common = {"hardware": "x", "status": "ok", "precision": "fp32", "first_calls": 10.0}
    common |= {"time_s": 0.05, "first_call_s": 0.5, "first_calls_mean_s": 0.095, "batch": 1.0}
    kinds = dict(frames.kinds("matmul"))
    rows = []
    for place, each in enumerate(given):
        side = float(each.get("n", 1000))
        row = {**common, "m": side, "k": side, "n": side, "run": str(place), **each}
        row["size"] = f"{side:.0f}"
        rows.append({name: row.get(name, frames.ABSENT[kind]) for name, kind in kinds.items()})
    machine = pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])
    return {"matmul": pd.DataFrame(rows).assign(recorded=False), "environment": machine}


def test_the_seminar_s_mean_is_taken_apart():
    """126 ms of the recorded GPU: 83 compiling, 42 the kernel."""
    naive = {"first_call_s": 0.871, "first_calls_mean_s": 0.1256, "time_s": 0.0422}
    tables = matmuls(
        {"kernel": "torch", "time_s": 0.001, "first_call_s": 0.1, "first_calls_mean_s": 0.011},
        {"kernel": "numba_cuda_naive", "max_absolute_error": 6e-5},
        {"kernel": "numba_cuda_seminar", "max_absolute_error": 1e-5, **naive},
        {"kernel": "numba_cuda_seminar", "n": 256.0, "first_calls_mean_s": 9.0},
        {"kernel": "numba_cuda_seminar_shared", "status": "incorrect", "time_s": float("nan")},
    )
    words = said(seminar_matmul, tables)
    assert "numba_cuda_seminar takes 126 ms in the mean of its first 10 calls at 1000³" in words
    assert "82.9 ms compiling, 42.2 ms the kernel" in words
    assert "printed 540 ms" in words
    assert "1.0e-05; numba_cuda_naive, summed in float32, by 6.0e-05" in words
    assert "numba_cuda_seminar_shared gives a wrong result at 1000³" in words
    drawn(seminar_matmul, tables)


def test_parts_of_a_mean_are_its_sum_and_never_negative():
    tables = matmuls(
        {"kernel": "numba_cpu_seminar", "first_call_s": 0.04, "first_calls_mean_s": 0.06},
        {"kernel": "numba_cpu_naive"},
    )
    rows = seminar_matmul.rows(tables).set_index("kernel")
    assert (rows[["compiled_s", "cold_s"]] >= 0).all(axis=None)
    whole = rows.loc["numba_cpu_naive", ["time_s", "compiled_s", "cold_s"]].sum()
    assert whole == pytest.approx(rows.loc["numba_cpu_naive", "first_calls_mean_s"])
    assert seminar_matmul.rows(matmuls({"kernel": "torch"})).empty, "none of the text's kernels"


def counters(load, truth, **read):
    others = {"other_processes_percent": 5.0}
    unread = dict.fromkeys((*known_truth.COUNTERS, *known_truth.SINGLE))
    return {"load": load, "truth_percent": truth, **others, **unread, **read}


def test_the_worst_counter_and_the_best_are_named():
    rows = [
        counters("spin_one", 0.76, nvml_percent=100.0, mfulab_percent=1.0),
        counters("duty_50", 50.0, nvml_percent=55.0, mfulab_percent=48.0),
    ]
    words = told(known_truth, rows)
    worst = "nvidia-smi is the furthest off: it reads 100 % of the load “one core or SM spins”"
    assert worst in words
    assert "which is 0.76 % by construction" in words
    assert words.endswith("mfulab is off by at most 2.0 points over 2 loads.")
    assert "off by at most" not in told(
        known_truth, [counters("steady", 100.0, mfulab_percent=100.0)]
    )
    assert "reads 100 %" in told(
        known_truth, [counters("steady", 100.0, mfulab_percent=100.0, nvml_percent=100.0)]
    )
    shared = counters(
        "steady", 100.0, mfulab_percent=12.0, nvml_percent=99.0, other_processes_percent=88.0
    )
    assert "Other processes took 88 % of these CPUs" in told(known_truth, [shared])
    assert "off by at most" not in told(known_truth, [shared])
    late = counters("steady", 100.0, mfulab_percent=98.0, after_percent=0.0)
    first, _, _ = told(known_truth, [late]).partition(".")
    assert re.findall(r"(\d+) (?:%|points)", first) == ["0", "98", "98"]
    assert "mfulab is the one counter" in told(known_truth, [late]), (
        "a reading at one time judges no counter"
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_counter_is_not_the_worst_of_several(language):
    alone = [
        counters("spin_one", 50.0, nvml_percent=100.0),
        counters("steady", 100.0, nvml_percent=97.0),
    ]
    words = told(known_truth, alone, language)
    text = Texts(language, "known_truth")
    numbers = {"reading": 100.0, "truth": 50.0}
    names = {"counter": text("nvml_percent"), "load": text("spin_one")}
    assert words == text("finding_one", **names, **numbers)
    both = [row | {"mfulab_percent": 99.0} for row in alone]
    assert text("finding", **names, **numbers) in told(known_truth, both, language)


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
    assert "an access in 4 KiB takes 1.00 ns." in told(memory_hierarchy, rows[:1])
    in_order = told(memory_hierarchy, [walk("sequential", 4096, 1e-10)])
    assert "in order" in in_order
    assert "100 ps" in in_order
    assert "MHz" not in words


def test_memory_by_hand_is_told_at_the_largest_size_that_has_both():
    both = [walk("cuda_malloc", 1 << 20, 1e-9), walk("cuda_memcpy", 1 << 20, 3e-9)]
    rows = [*both, walk("cuda_malloc", 1 << 30, 1e-12), walk("host", 1 << 20, 1e-10)]
    words = told(memory_hierarchy, rows)
    assert (
        "1 MiB of GPU memory take 131 µs to get and give back by hand, and 393 µs with a copy"
        in words
    )
    assert "by hand" not in told(memory_hierarchy, rows[2:])


@pytest.mark.parametrize(
    ("virtual", "device", "said"),
    [(True, "cpu", True), (False, "cpu", False), (True, "cuda", False)],
)
def test_cycles_of_a_virtual_machine_are_said_to_be_nominal(virtual, device, said):
    machine = report_rows.environment("x").model_dump() | {
        "recorded": False,
        "virtual_machine": virtual,
    }
    row = walk("random", 4096, 1e-9) | {
        "status": "ok",
        "hardware": "x",
        "recorded": False,
        "clock_mhz": 2596.1,
    }
    tables = {
        "environment": pd.DataFrame([machine | {"device": device}]),
        "memory": pd.DataFrame([row]),
    }
    words = memory_hierarchy.finding(memory_hierarchy.rows(tables), Texts("en", "memory_hierarchy"))
    assert ("of the nominal 2,596 MHz" in words) == said


@pytest.mark.parametrize(
    ("size", "words"),
    [(4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 40, "1024 GiB")],
)
def test_sizes_are_said_in_binary_units(size, words):
    assert memory_hierarchy.size_of(size) == words


def profiled(*given):
    """Tables of profiled steps on one machine, with all columns that a table has."""
    kinds = dict(frames.kinds("profile"))
    common = {
        "hardware": "x",
        "status": "ok",
        "precision": "fp32",
        "batch_size": 8.0,
        "mode": "inference",
    }
    common |= {"execution": "eager", "commit": "0123abc", "started_at": "2026-01-02T03:04:05+00:00"}
    rows = [{**common, "run": str(place), **each} for place, each in enumerate(given)]
    frame = pd.DataFrame(
        {name: [row.get(name, frames.ABSENT[kind]) for row in rows] for name, kind in kinds.items()}
    )
    machine = pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])
    return {"profile": frame.assign(recorded=False), "environment": machine}


def drawn(module, tables):
    """The sentence, after drawing without an overlap in the language whose words are wider."""
    name = module.__name__.rpartition(".")[2]
    assert overlaps(figures.render(name, tables, "ko").figure) == []
    return said(module, tables)


def said(module, tables):
    """The sentence in English."""
    return figures.finding(
        module, module.rows(tables), Texts("en", module.__name__.rpartition(".")[2])
    )


def test_subnormal_numbers_are_compared_with_normal_ones():
    steps = [
        {
            "model": f"{numbers}_{operation}",
            "precision": precision,
            "time_s": time if operation == "roots" else 1e-4,
        }
        for operation in ("roots", "products")
        for precision in ("fp32", "fp64")
        for numbers, time in (("normal", 1e-4), ("subnormal", 5e-3), ("flushed", 1.1e-4))
    ]
    words = drawn(subnormals, profiled(*steps))
    assert (
        "square roots of subnormal numbers take 50× as long as those of normal ones (5.00 ms per step)"
        in words
    )
    assert "With torch.set_flush_denormal they take 1.1× as long." in words
    assert words.endswith("products of subnormal numbers take 1.0× as long.")
    assert said(subnormals, profiled(*steps[:2])).endswith("per step).")
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
        {
            **common,
            "execution": "compile",
            "varied_s": 8.0,
            "graphs": 2,
            "recompilations": 1,
            "graph_breaks": 0,
        },
    ]
    words = drawn(recompilations, profiled(*steps))
    [first] = [part for part in words.split(". ") if "10 calls" in part]
    assert re.findall(r"[\d.]+", first) == ["10", "7", "8", "40.0"]
    assert "Eager takes 2.00 ms." in words
    assert re.findall(r"[\d.]+", words.rpartition("2.00 ms. ")[2]) == ["1", "8.00", "."]
    broken = profiled({**steps[2], "model": "branch_on_data", "graph_breaks": 3})
    assert said(recompilations, broken).endswith(
        "Graphs break in branch_on_data: there torch.compile goes back to Python."
    )
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
        for model, time in (
            ("convolution_library", 1e-3),
            ("convolution_im2col", 3e-3),
            ("convolution_direct", 5e-3),
        )
        for mode in ("training", "inference")
        for batch in (1.0, 16.0)
    ]
    steps[0]["relative_error"] = 3e-7
    words = drawn(convolution, profiled(*steps))
    assert "at batch size 16 has 960 MFLOP and takes the library 16.0 ms." in words
    assert re.findall(r"([\d.]+)×", words) == ["3.0", "5.0"]
    assert words.endswith("The outputs' relative error against float64 is at most 3.0e-07.")
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
    assert "JAX jit takes 100 ms per step, torch eager 200 ms." in words
    assert "JAX jit takes 500 ms to compile, the longest of all." in words
    assert (
        "Over the first 2 training steps of simple_cnn (batch 8), before the loss vanishes" in words
    )
    assert words.endswith(
        "the losses of 2 executions differ by at most 0.50 %, within the tolerance of 1 %."
    )
    for step in steps[:2]:
        step["losses"] = json.dumps([2.0, 0.999])
    words = drawn(frameworks, profiled(*steps))
    assert (
        "training steps of simple_cnn (batch 8) the losses of 2 executions differ by at most 0 %"
        in words
    )
    assert "JAX jit takes 100 ms per step." in said(frameworks, profiled(steps[1]))
    assert frameworks.rows(profiled(steps[0])).empty, "torch alone"


@pytest.mark.parametrize("language", ["en", "ko"])
def test_frameworks_are_ranked_only_beyond_their_intervals(language):
    def step(model, execution, time, half):
        interval = {"time_ci_low_s": time - half, "time_ci_high_s": time + half}
        return {
            "model": model,
            "mode": "inference",
            "batch_size": 1,
            "execution": execution,
            "time_s": time,
        } | interval

    text = Texts(language, "frameworks")
    nothing = {"compile_s": float("nan"), "losses": "", "mfu_percent": 30.0}
    wide = [step("conv_64", "eager", 0.5, 0.45), step("conv_64", "jax", 0.1, 0.01)]
    narrow = [
        step("simple_cnn", name, time, 0.01)
        for name, time in (("eager", 0.2), ("jax", 0.1), ("compile", 0.105))
    ]
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
