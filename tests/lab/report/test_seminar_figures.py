"""Sentences of the seminar's experiments: from extreme, equal and single rows."""

import json

import pandas as pd
import pytest
from support import report_rows
from support.drawn import overlaps, repeatable
from support.said import heard, heard_of

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import figures, frames
from mfulab.lab.report.drawing import style
from mfulab.lab.report.figures import (
    convolution,
    frameworks,
    fusion,
    known_truth,
    memory_hierarchy,
    recompilations,
    seminar_matmul,
    subnormals,
)


def frame_of(rows):
    """Rows, here as dictionaries, as a figure has them."""
    frame = pd.DataFrame(rows)
    return frame.where(frame.notna(), float("nan")).infer_objects()  # as a table's empty cells are


def told(module, rows, language):
    """The sentence that a figure says of rows."""
    return module.finding(frame_of(rows), Texts(language, module.__name__.rpartition(".")[2]))


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
    told = drawn(seminar_matmul, tables)
    [finding], [errors], [wrong] = told["finding"], told["errors"], told["wrong_at"]
    row = finding["row"]
    assert (row["kernel"], row["n"], row["first_calls"]) == ("numba_cuda_seminar", 1000, 10)
    assert row["first_calls_mean_s"] == 0.1256
    assert row["compiled_s"] == pytest.approx(0.0829, rel=1e-3)
    assert (row["time_s"], finding["printed"]) == (0.0422, "540 ms")
    assert (errors["own"], errors["other_error"]) == (1e-5, 6e-5)
    assert errors["other"] == "numba_cuda_naive"
    assert (wrong["row"]["kernel"], wrong["row"]["n"]) == ("numba_cuda_seminar_shared", 1000)


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


def of_counters(*rows):
    return heard_of(known_truth, frame_of(rows))


def test_the_worst_counter_and_the_best_are_named():
    told = of_counters(
        counters("spin_one", 0.76, nvml_percent=100.0, mfulab_percent=1.0),
        counters("duty_50", 50.0, nvml_percent=55.0, mfulab_percent=48.0),
    )
    assert {"nvml_percent", "spin_one"} <= told.keys()
    assert (told["finding"][0]["reading"], told["finding"][0]["truth"]) == (100.0, 0.76)
    assert (told["best"][0]["points"], told["best"][0]["count"]) == ("2.0", 2)


def test_the_tool_of_the_largest_error_is_at_the_bottom_with_that_error():
    rows = frame_of(
        [
            counters("spin_one", 0.76, nvml_percent=100.0, mfulab_percent=1.0),
            counters("duty_50", 50.0, nvml_percent=55.0, mfulab_percent=48.0, after_percent=0.0),
        ]
    )
    read = known_truth._deviations(rows)
    worst = read.loc[read["off"].abs().groupby(read["counter"]).idxmax()].set_index("counter")
    assert worst["off"].to_dict() == pytest.approx(
        {"nvml_percent": 99.24, "mfulab_percent": -2.0, "after_percent": -50.0}
    )
    figure = style.blank("", "")
    shown = rows.assign(**{"doubtful": False, "run": "", "recorded": False, "hardware": ""})
    known_truth.draw(shown, figure, Texts("en", "known_truth"))
    [axes] = figure.axes
    assert axes.get_yticklabels()[0].get_text() == "nvidia-smi"
    assert [words.get_text()[:5] for words in axes.texts] == ["+99.2", "−50.0", "−2.0:"]


def test_no_counter_is_the_best_of_one():
    steady = counters("steady", 100.0, mfulab_percent=100.0)
    assert "best" not in of_counters(steady)
    assert of_counters(steady | {"nvml_percent": 100.0})["finding"][0]["reading"] == 100.0


def test_other_processes_are_told_and_leave_no_counter_the_best():
    read = {"mfulab_percent": 12.0, "nvml_percent": 99.0, "other_processes_percent": 88.0}
    told = of_counters(counters("steady", 100.0, **read))
    assert told["disturbed"] == [{"share": "88"}]
    assert "best" not in told


def test_a_reading_after_the_load_comes_first_and_judges_no_counter():
    told = of_counters(counters("steady", 100.0, mfulab_percent=98.0, after_percent=0.0))
    assert next(iter(told)) == "after"
    [after] = told["after"]
    assert (after["row"]["after_percent"], after["row"]["mfulab_percent"]) == (0.0, 98.0)
    assert after["points"] == 98.0
    assert "finding_one" in told, "one counter was read during the load"


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
    told = heard_of(memory_hierarchy, frame_of(rows))
    [ends] = told["finding"]
    assert (ends["small"], ends["large"]) == ("4 KiB", "1 GiB")
    assert (ends["first"]["time_per_access_s"], ends["last"]["time_per_access_s"]) == (1e-9, 1e-7)
    assert ends["factor"] == pytest.approx(100)
    assert told["orders"] == [{"size": "1 MiB", "factor": "5.00"}]
    assert "nominal" not in told
    assert heard_of(memory_hierarchy, frame_of(rows[:1])).keys() == {"random", "finding_one"}
    in_order = heard_of(memory_hierarchy, frame_of([walk("sequential", 4096, 1e-10)]))
    assert in_order.keys() == {"sequential", "finding_one"}


def test_memory_by_hand_is_told_at_the_largest_size_that_has_both():
    both = [walk("cuda_malloc", 1 << 20, 1e-9), walk("cuda_memcpy", 1 << 20, 3e-9)]
    rows = [*both, walk("cuda_malloc", 1 << 30, 1e-12), walk("host", 1 << 20, 1e-10)]
    [by_hand] = heard_of(memory_hierarchy, frame_of(rows))["by_hand"]
    assert by_hand["size"] == "1 MiB"
    assert by_hand["empty"] == pytest.approx(131e-6, rel=1e-3)
    assert by_hand["copied"] == pytest.approx(393e-6, rel=1e-3)
    assert "by_hand" not in heard_of(memory_hierarchy, frame_of(rows[2:]))


@pytest.mark.parametrize(
    ("virtual", "device", "said"),
    [(True, "cpu", True), (False, "cpu", False), (True, "cuda", False)],
)
def test_cycles_of_a_virtual_machine_are_said_to_be_nominal(virtual, device, said):
    here = {"hardware": "x", "recorded": False}
    machine = report_rows.environment("x").model_dump() | here
    machine |= {"virtual_machine": virtual, "device": device}
    row = walk("random", 4096, 1e-9) | here | {"status": "ok", "clock_mhz": 2596.1}
    tables = {"environment": pd.DataFrame([machine]), "memory": pd.DataFrame([row])}
    assert ("nominal" in heard(memory_hierarchy, tables)) == said


@pytest.mark.parametrize(
    ("size", "words"),
    [(4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 40, "1024 GiB")],
)
def test_sizes_are_said_in_binary_units(size, words):
    assert memory_hierarchy.size_of(size) == words


def profiled(*given):
    """Tables of profiled steps on one machine, with all columns that a table has."""
    kinds = dict(frames.kinds("profile"))
    common = {"hardware": "x", "status": "ok", "precision": "fp32"}
    common |= {"batch_size": 8.0, "mode": "inference"}
    common |= {"execution": "eager", "commit": "0123abc", "started_at": "2026-01-02T03:04:05+00:00"}
    rows = [repeatable({**common, "run": str(place), **each}) for place, each in enumerate(given)]
    frame = pd.DataFrame(
        {name: [row.get(name, frames.ABSENT[kind]) for row in rows] for name, kind in kinds.items()}
    )
    machine = pd.DataFrame([report_rows.environment("x").model_dump() | {"recorded": False}])
    return {"profile": frame.assign(recorded=False), "environment": machine}


def drawn(module, tables):
    """What the sentence says, by key, after drawing without an overlap in the language whose words
    are wider."""
    name = module.__name__.rpartition(".")[2]
    assert overlaps(figures.render(name, tables, "ko").figure) == []
    return heard(module, tables)


def test_subnormal_numbers_are_compared_with_normal_ones():
    slow = {"normal": 1e-4, "subnormal": 5e-3, "flushed": 1.1e-4}
    steps = []
    for operation, times in (("roots", slow), ("products", dict.fromkeys(slow, 1e-4))):
        for precision in ("fp32", "fp64"):
            for numbers, time in times.items():
                model = {"model": f"{numbers}_{operation}"}
                steps.append(model | {"precision": precision, "time_s": time})
    told = drawn(subnormals, profiled(*steps))
    [worst], [zero], [least] = told["finding"], told["zero"], told["least_alike"]
    assert (worst["row"]["operation"], worst["row"]["time_s"]) == ("roots", 5e-3)
    assert worst["row"]["factor"] == pytest.approx(50)
    assert (zero["row"]["operation"], zero["row"]["numbers"]) == ("roots", "flushed")
    assert zero["row"]["factor"] == pytest.approx(1.1)
    assert (least["row"]["operation"], least["row"]["factor"]) == ("products", 1)
    assert heard(subnormals, profiled(*steps[:2])).keys() == {"roots", "finding"}
    for time, key, factor in ((8e-4, "half_zeros", 8), (1e-4, "half_zeros_alike", 1)):
        mixed = []
        for precision in ("fp32", "fp64"):
            mixed.append({"model": "zeros_roots", "precision": precision, "time_s": time})
        told_too = drawn(subnormals, profiled(*steps, *mixed))
        [half] = told_too[key]
        assert half["row"]["factor"] == pytest.approx(factor)
        [finding] = told_too["finding"]
        assert finding["row"]["numbers"] == "subnormal", "zeros are none"
    assert subnormals.rows(profiled(steps[1])).empty, "nothing to hold it against"


def test_recompilations_are_said_beside_eager_and_the_best():
    common = {"model": "straight", "varied_calls": 10, "time_s": 1e-3}
    static = {"execution": "compile_static", "varied_s": 40.0, "graphs": 8, "recompilations": 7}
    dynamic = {"execution": "compile", "varied_s": 8.0, "graphs": 2, "recompilations": 1}
    steps = [{**common, "varied_s": 0.002}]
    steps += [{**common, **each, "graph_breaks": 0} for each in (static, dynamic)]
    told = drawn(recompilations, profiled(*steps))
    numbers = ["varied_calls", "recompilations", "graphs", "varied_s"]
    assert [*told["finding"][0]["row"][numbers]] == [10, 7, 8, 40.0]
    assert told["eager"][0]["row"]["varied_s"] == 0.002
    assert [*told["best"][0]["row"][["recompilations", "varied_s"]]] == [1, 8.0]
    broken = profiled({**steps[2], "model": "branch_on_data", "graph_breaks": 3})
    assert heard(recompilations, broken)["broken"] == [{"models": "branch_on_data"}]
    assert "none" in heard(recompilations, profiled(steps[0]))


def test_three_convolutions_are_held_against_the_library():
    steps = []
    for way, time in (("library", 1e-3), ("im2col", 3e-3), ("direct", 5e-3)):
        for mode in ("training", "inference"):
            for batch in (1.0, 16.0):
                work = {"time_s": batch * time, "flops": batch * 6e7, "mfu_percent": 9}
                steps.append(
                    {"model": f"convolution_{way}", "mode": mode, "batch_size": batch, **work}
                )
    steps[0]["relative_error"] = 3e-7
    told = drawn(convolution, profiled(*steps))
    most = told["finding"][0]["most"]
    assert [*most[["batch_size", "flops", "time_s_library"]]] == [16, 960e6, 0.016]
    assert [way["factor"] for way in told["way"]] == ["3.0", "5.0"]
    assert told["error"] == [{"error": "3.0e-07"}]
    assert convolution.rows(profiled(*steps[4:])).empty, "no library beside them"


def test_fused_operators_are_held_against_those_by_hand():
    steps = []
    times = {"by_hand": 8e-3, "library": 2e-3, "in_place": 6e-3}
    for way, time in times.items():
        for batch in (1.0, 8.0):
            work = {"time_s": batch * time, "execution": "eager", "mode": "inference"}
            steps.append({"model": f"norm_gelu_{way}", "batch_size": batch, **work})
    steps.append({**steps[1], "execution": "compile", "time_s": 0.032})
    told = drawn(fusion, profiled(*steps))
    assert told["finding"][0]["row"]["model"] == "norm_gelu_library"
    assert told["finding"][0]["factor"] == pytest.approx(4)
    assert told["finding"][0]["row"]["time_s_by_hand"] == pytest.approx(0.064)
    assert told["compiled"][0]["factor"] == pytest.approx(2)
    assert set(fusion.rows(profiled(*steps))["batch_size"]) == {8}
    assert fusion.rows(profiled(*steps[2:-1])).empty, "nothing by hand beside them"


def test_frameworks_are_compared_with_their_losses():
    losses = {"eager": [2.0, 1.0, 1e-9, 5.0], "jax": [2.0, 0.995, 0.0, 6.0]}
    steps = [
        {"model": model, "mode": mode, "execution": execution, "time_s": time, "mfu_percent": 30.0,
         "compile_s": compile_s, "losses": json.dumps(losses[execution]) if mode == "training" else ""}
        for model, mode in (("simple_cnn", "training"), ("simple_cnn", "inference"), ("conv_64", "inference"))
        for execution, time, compile_s in (("eager", 0.2, float("nan")), ("jax", 0.1, 0.5))
    ]  # fmt: skip
    told = drawn(frameworks, profiled(*steps))
    [fastest] = told["finding"]
    assert (fastest["row"]["execution"], fastest["row"]["time_s"]) == ("jax", 0.1)
    assert fastest["longer"] == 0.2
    assert told["compiled"][0]["time"] == 0.5
    assert told["until_vanished"][0]["steps"] == 2
    differ = {"count": 2, "share": "0.50", "tolerance": "1"}
    assert differ.items() <= told["losses"][0].items()
    for step in steps[:2]:
        step["losses"] = json.dumps([2.0, 0.999])
    told = heard(frameworks, profiled(*steps))
    assert told["all_steps"][0]["steps"] == 2, "no loss vanishes"
    assert (told["losses"][0]["count"], told["losses"][0]["share"]) == (2, "0")
    [alone] = heard(frameworks, profiled(steps[1]))["finding_one"]
    assert (alone["row"]["execution"], alone["row"]["time_s"]) == ("jax", 0.1)
    assert frameworks.rows(profiled(steps[0])).empty, "torch alone"


def test_a_framework_that_waits_for_new_memory_is_not_ranked_but_told():
    case = {"model": "simple_cnn", "mode": "inference", "mfu_percent": 30.0, "losses": ""}
    steps = [
        case | {"execution": "eager", "time_s": 0.4, "kept_memory_time_s": 0.1},
        case | {"execution": "jax", "time_s": 0.2, "kept_memory_time_s": 0.2},
        case | {"execution": "onnxruntime", "time_s": 0.05},
    ]
    told = heard(frameworks, profiled(*steps))
    [ranked] = told["finding"]
    assert (ranked["row"]["execution"], ranked["longer"]) == ("onnxruntime", 0.2)
    [waiting] = told["waiting"]
    assert (waiting["row"]["execution"], waiting["row"]["kept_memory_time_s"]) == ("eager", 0.1)
    assert "waiting" not in heard(frameworks, profiled(*steps[1:]))


@pytest.mark.parametrize("language", ["en", "ko"])
def test_frameworks_are_ranked_only_beyond_their_intervals(language):
    def step(model, execution, time, half):
        case = {"model": model, "mode": "inference", "batch_size": 1, "execution": execution}
        interval = {"time_ci_low_s": time - half, "time_ci_high_s": time + half}
        return case | {"time_s": time} | interval

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
