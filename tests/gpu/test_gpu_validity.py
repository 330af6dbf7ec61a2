"""The checks of a GPU's record, on rows by hand; the reader of Nsight Compute, on its texts."""

import importlib
import json
import math
from types import SimpleNamespace

import pytest
import torch

from mfulab.cli.main import main
from mfulab.device.identity import slug

NAN = float("nan")
H100 = {"bf16": (789, 797), "fp32": (51.9, 52)}
SPEC = {"ceiling": "bf16", "computed_clock_mhz": 1830.0}


@pytest.fixture
def validity(benchmark_scripts):
    return importlib.import_module("gpu_validity")


@pytest.fixture
def executed(benchmark_scripts):
    return importlib.import_module("executed_operations")


def verdicts(lines):
    return [line.verdict for line in lines]


def step(tflop_s, run="model=large_product,precision=bf16"):
    row = {"model": "large_product", "run": run, "precision": "bf16"}
    return row | {"flops": 2 * 8192**3, "tflop_s": tflop_s}


def product(tflop_s, flops=2 * 8192**3):
    row = {"kernel": "torch", "run": "kernel=torch", "precision": "bf16"}
    return row | {"flops": flops, "tflop_s": tflop_s}


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        (793.0, [product(800.0)], "ok"),  # 0.991
        (791.0, [product(800.0)], "differs"),
        (809.0, [product(800.0)], "differs"),
        (800.0, [product(700.0), product(799.0), product(900.0)], "ok"),  # the median of three
        (800.0, [product(800.0, flops=2 * 4096**3)], "not measurable"),
        (800.0, [product(NAN)], "not measurable"),
        (NAN, [product(800.0)], "not measurable"),
    ],
)
def test_one_product_through_both_paths(validity, own, others, verdict):
    assert verdicts(validity.products_agree([step(own)], others)) == [verdict]


@pytest.mark.parametrize(
    ("measured", "clock", "verdict"),
    [
        (795.0, 1700.0, "ok"),
        (766.0, NAN, "ok"),  # 789 less 3 %
        (700.0, 1600.0, "ok"),  # 0.4375 a MHz, and 789 ÷ 1830 is 0.4311: only the clock is missing
        (700.0, 1800.0, "differs"),  # 0.389 a MHz
        (700.0, NAN, "differs"),
        (900.0, 1600.0, "differs"),  # faster than anybody has seen
        (NAN, 1600.0, "not measurable"),
    ],
)
def test_a_ceiling_is_the_published_one_or_its_clock_tells_why(validity, measured, clock, verdict):
    row = {**SPEC, "measured_tflop_s": measured, "clock_mhz": clock}
    assert verdicts(validity.ceilings_as_published([row], {"bf16": H100["bf16"]})) == [verdict]


def test_published_rates_belong_to_names_that_drivers_give(validity):
    found = set(validity.PUBLISHED)
    assert found == {slug(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")}


def test_an_unknown_device_or_an_absent_ceiling_is_not_measurable(validity):
    assert verdicts(validity.ceilings_as_published([], {})) == ["not measurable"]
    assert verdicts(validity.ceilings_as_published([], H100)) == ["not measurable"] * 2


def test_executed_operations_agree_within_two_percent(validity):
    counted = {"counted_flops": 1000, "reason": ""}
    cases = [
        counted | {"case": "a", "executed_operations": 1019},
        counted | {"case": "b", "executed_operations": 1021},
        counted | {"case": "c", "executed_operations": None, "reason": "ncu is not installed"},
        counted | {"case": "d", "executed_operations": 10667, "executed_ratio": 32 / 3},
    ]
    lines = list(validity.executed_as_counted(cases))
    assert verdicts(lines) == ["ok", "differs", "not measurable", "ok"]
    assert lines[2].because == "ncu is not installed"


@pytest.mark.parametrize(
    ("active", "clock", "hfu", "precision", "verdict"),
    [
        (80.0, 1830.0, 76.0, "bf16", "ok"),
        (80.0, 1372.5, 60.0, "bf16", "ok"),  # three quarters of the clock
        (80.0, 1372.5, 70.0, "bf16", "differs"),
        (19.0, 1830.0, 60.0, "bf16", "not measurable"),
        (80.0, 1830.0, 60.0, "fp32", "not measurable"),
        (NAN, 1830.0, 60.0, "bf16", "not measurable"),
    ],
)
def test_the_tensor_pipe_and_hfu_tell_the_same(validity, active, clock, hfu, precision, verdict):
    row = {"run": "a", "ceiling": "bf16", "effective_precision": precision, "hfu_percent": hfu}
    row |= {"tensor_active_percent": active, "clock_mhz": clock}
    assert verdicts(validity.tensor_pipe_as_hfu([row], [SPEC])) == [verdict]


def test_repetitions_are_runs_that_differ_in_their_seed_alone(validity):
    rows = [
        {"run": "a", "time_s": 1.0},
        {"run": "a,seed=1", "time_s": 1.009},
        {"run": "a,seed=2", "time_s": 1.004},
        {"run": "b", "time_s": 1.0},
        {"run": "b,seed=1", "time_s": 1.02},
        {"run": "c", "time_s": 1.0},
        {"run": "d", "time_s": NAN},
    ]
    lines = list(validity.runs_repeat(rows))
    assert [(line.subject, line.verdict) for line in lines] == [("a", "ok"), ("b", "differs")]
    assert lines[0].because == "0.90 % over 3 runs"
    assert verdicts(validity.runs_repeat(rows[5:])) == ["not measurable"]


def test_it_reads_the_tables_and_ends_with_one_where_something_differs(validity, tmp_path, capsys):
    from support import report_rows

    manifest = report_rows.lay_out(tmp_path, report_rows.GPU)
    # as where the rest was cut off
    next((tmp_path / "results").glob("*/profile_step/*/row.csv")).unlink()
    options = ["--also", str(manifest), "--root", str(tmp_path)]
    main(["tables", *options, "--out", str(tmp_path / "tables")])
    cases = [{"case": "product", "counted_flops": 100, "executed_operations": 100, "reason": ""}]
    (tmp_path / "executed.json").write_text(json.dumps(cases))
    command = ["--tables", str(tmp_path / "tables"), "--executed", str(tmp_path / "executed.json")]
    assert validity.main(command) == 0
    printed = capsys.readouterr().out
    assert (
        "ok              executed operations against counted FLOPs: product: 100 against 100: 1.0000"
        in printed
    )
    assert "not measurable  run-to-run spread" in printed
    cases[0]["executed_operations"] = 90
    (tmp_path / "executed.json").write_text(json.dumps(cases))
    assert validity.main(command) == 1


HOPPER = """
sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off   # of math ops executed in Tensor path
sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_on    # of math ops executed in Tensor path
sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off    # of math ops executed in Tensor path
sm__ops_path_tensor_op_igmma_src_int8_sparsity_off            # of math ops executed in Tensor path
sm__ops_path_tensor_src_bf16_dst_fp32                         # of math ops executed in Tensor path
smsp__sass_thread_inst_executed_op_ffma_pred_on               # of thread instructions
"""


def test_each_operation_is_counted_by_one_metric(executed):
    assert executed.tensor_metrics(HOPPER) == [
        "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum",
        "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum",
    ]
    without = "\n".join(line for line in HOPPER.splitlines() if "_op_" not in line)
    assert executed.tensor_metrics(without) == ["sm__ops_path_tensor_src_bf16_dst_fp32.sum"]
    assert executed.tensor_metrics("==ERROR== no GPU") == []


def test_a_report_is_summed_over_kernels_and_metrics(executed):
    report = (
        '==PROF== Connected\n"ID","Kernel Name","a.sum","b.sum"\n"","","",""\n'
        '"0","first","1,000","2"\n"1","second","30",""\n'
    )
    assert executed.summed(report, ["a.sum", "b.sum"]) == 1032
    with pytest.raises(executed.NotMeasurableError, match="profiled no kernel"):
        executed.summed("==ERROR== ERR_NVGPUCTRPERM", ["a.sum"])
    with pytest.raises(executed.NotMeasurableError, match=r"none of c\.sum"):
        executed.summed(report, ["c.sum"])


def test_the_cases_count_what_their_shapes_say(executed):
    assert executed.counted_flops("product") == 2 * 4096**3
    # Two products forward; backward five, since the scores are computed again.
    assert executed.counted_flops("attention") == 7 * 2 * 8 * 16 * 2048**2 * 128
    assert executed.counted_flops("convolution") == 2 * 64 * 56**2 * 256**2 * 9


def test_without_nsight_compute_a_case_says_why(executed, monkeypatch):
    monkeypatch.setattr(executed.shutil, "which", lambda name: None)
    monkeypatch.setattr(executed, "Path", lambda *parts: _Nowhere())
    row = executed.compare("product")
    assert row["executed_operations"] is None
    assert "not installed" in row["reason"]


def test_a_report_that_cannot_be_read_costs_its_case_alone(executed, monkeypatch):
    report = '"a.sum"\n""\n"n/a"\n'
    monkeypatch.setattr(
        executed, "executed_operations", lambda case: executed.summed(report, ["a.sum"])
    )
    monkeypatch.setattr(executed, "counted_flops", lambda case: 1)
    row = executed.compare("product")
    assert row["executed_operations"] is None
    assert "n/a" in row["reason"]


def test_a_profiler_that_breaks_costs_its_rung_alone(benchmark_scripts, monkeypatch):
    second_clock = importlib.import_module("second_clock")

    def breaks(step, calls):
        raise FileNotFoundError("clock.hatchet")

    monkeypatch.setattr(second_clock, "by_proton", breaks)
    monkeypatch.setattr(second_clock, "observe", lambda *asked: SimpleNamespace(time_s=1.0))
    monkeypatch.setattr(second_clock, "clock_for", lambda device: None)
    monkeypatch.setattr("mfulab.kernels.base.require_capability", lambda *asked: None)
    made = second_clock.random_operands
    monkeypatch.setattr(
        second_clock, "random_operands", lambda *asked, seed: made(*asked[:2], "cpu", seed)
    )
    found = second_clock.compare("triton_plain", "fp32", 64)["reason"]
    assert found == "FileNotFoundError: clock.hatchet"


@pytest.mark.parametrize("script", ["executed_operations", "second_clock"])
def test_a_check_that_is_cut_off_leaves_earlier_cases(
    benchmark_scripts, monkeypatch, tmp_path, script
):
    module, seen = importlib.import_module(script), []

    def compare(*case):
        if seen:
            raise KeyboardInterrupt
        seen.append(case)
        times = dict.fromkeys(("executed_operations", "events_s", "proton_s"))
        return {"case": str(case), "counted_flops": 1, "reason": "no GPU", **times}

    monkeypatch.setattr(module, "compare", compare)
    with pytest.raises(KeyboardInterrupt):
        module.main(["--out", str(tmp_path / "cases.json")])
    found = [case["reason"] for case in json.loads((tmp_path / "cases.json").read_text())]
    assert found == ["no GPU"]


class _Nowhere:
    def glob(self, pattern):
        return []


@pytest.mark.gpu
def test_tensor_cores_execute_what_is_counted(executed):
    row = executed.compare("product")
    if row["reason"]:
        pytest.skip(row["reason"])
    assert math.isclose(row["executed_operations"], row["counted_flops"], rel_tol=0.02)


def test_the_product_of_the_check_is_one_product():
    from mfulab.models.busy import WideLinear

    with torch.device("meta"):
        assert [tuple(p.shape) for p in WideLinear(8192, 1).parameters()] == [(8192, 8192)]


def test_the_energy_counter_is_held_against_polled_power(validity):
    def series(run, watts, inside=True):
        return [{"run": run, "in_window": inside, "power_w": watts}] * 10

    rows = [
        {"run": name, "energy_j": joule, "power_w": 500.0}
        for name, joule in (("a", 9.0), ("b", 9.0), ("c", NAN))
    ]
    polled = [
        *series("a", 520.0),
        *series("a", 90.0, inside=False),
        *series("b", 400.0),
        *series("c", 500.0),
    ]
    lines = list(validity.counter_as_power(rows, polled))
    assert verdicts(lines) == ["ok", "differs"]
    assert "500.0 W by the counter (used), 520.0 W polled" in lines[0].because
    assert verdicts(validity.counter_as_power(rows, polled[:5])) == ["not measurable"]


def test_two_clocks_agree_or_say_why_not(validity):
    cases = [
        {"case": "a", "events_s": 1.02e-3, "proton_s": 1e-3, "reason": ""},
        {"case": "b", "events_s": 1.05e-3, "proton_s": 1e-3, "reason": ""},
        {"case": "c", "events_s": None, "proton_s": None, "reason": "Proton saw no kernel"},
    ]
    assert verdicts(validity.clocks_agree(cases)) == ["ok", "differs", "not measurable"]
    assert verdicts(validity.clocks_agree([])) == ["not measurable"]


def test_protons_profile_is_summed_over_its_kernels(benchmark_scripts, capsys, tmp_path):
    second_clock = importlib.import_module("second_clock")
    kernels = [
        {"frame": {"name": name}, "metrics": {"time (ns)": ns, "count": 1}}
        for name, ns in (("a", 3e6), ("b", 2e6))
    ]
    tree = {
        "frame": {"name": "ROOT"},
        "metrics": {"count": 0},
        "children": [kernels[0], {"metrics": {}, "children": kernels[1:]}],
    }
    assert second_clock.kernel_seconds([tree, {"CUDA": {}}]) == 5e-3
    assert second_clock.kernel_seconds([{"metrics": {}, "children": []}]) is None
    if not torch.cuda.is_available():
        second_clock.main(["--size", "64", "--out", str(tmp_path / "clocks.json")])
        cases = json.loads((tmp_path / "clocks.json").read_text())
        assert len(cases) == len(second_clock.RUNGS)
        assert all(case["reason"] and case["events_s"] is None for case in cases)
