"""One real training and inference step on the CPU, in every mode of execution."""

import csv
import ctypes
import gzip
import json
import resource
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import psutil
import pytest
import torch
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_json
from mfulab.core.groups import ExecutionConfig
from mfulab.core.language import verdicts
from mfulab.device.identity import hardware_slug
from mfulab.device.samplers.memory import ResidentMemory
from mfulab.lab.runtime import run
from mfulab.lab.tables.records import read_row
from mfulab.measurements.profile_step import ProfileStepConfig, process
from mfulab.measurements.profile_step import measure as profile_step
from mfulab.measurements.read_trace import ReadTraceConfig
from mfulab.measurements.read_trace import measure as read_trace
from mfulab.models.step import make


def config(**changes) -> ProfileStepConfig:
    values = {
        "model": {"name": "linear", "_target_": "torch.nn.Linear", "arguments": {"in_features": 16, "out_features": 4},
                  "input_shape": [16]},
        "batch_size": 8,
        "workload": {"name": "training"},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "eager"},
        "device": {"type": "cpu", "threads": 1},
        "timing": {"windows": 3, "window_time_s": 0.01, "warm_up_time_s": 0.05},
    }  # fmt: skip
    return ProfileStepConfig.model_validate({**values, **changes})


def test_training(tmp_path):
    measured = profile_step.measure(config(), tmp_path)
    row = measured.row
    assert row.status == "ok"
    assert row.time_p5_s <= row.time_s <= row.time_p95_s
    assert (row.windows, row.effective_precision) == (3, "fp32")
    assert row.window_s > 0
    assert row.loss > 0
    assert row.utilization_percent > 0
    assert "÷" in row.utilization_source
    assert row.energy_j is None
    assert {sample["window"] for sample in measured.samples} == {0, 1, 2}


def measured_in_a_process_of_its_own(step: ProfileStepConfig, folder):
    """The row of one step, where no other test's freed memory serves a block without a fault."""
    clean = get_context("forkserver")  # which imports once for all that ask
    clean.set_forkserver_preload([profile_step.__name__])
    with ProcessPoolExecutor(1, mp_context=clean) as fresh:
        return fresh.submit(profile_step.measure, step, folder).result().row


@pytest.mark.slow
def test_building_a_model_in_fp32_is_not_in_the_peak_of_its_step_in_16_bits(tmp_path):
    """151 MB of weights in fp32 are built and cast to 75: the step never holds both."""
    wide = {"name": "wide", "_target_": "torch.nn.Linear", "input_shape": [6144]}
    wide["arguments"] = {"in_features": 6144, "out_features": 6144}
    step = config(model=wide, workload={"name": "inference", "mode": "inference"}, batch_size=1)
    step.precision = step.precision.model_copy(update={"name": "bf16", "dtype": "bfloat16"})
    row = measured_in_a_process_of_its_own(step, tmp_path)
    assert row.memory_bytes < 4 * 6144**2, row.memory_source


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="the C library maps large blocks by other rules",
)
def test_blocks_beyond_the_largest_threshold_are_new_pages_in_each_step(tmp_path):
    # 40 MB at batch 4. What the faults cost is not asked: a busy machine hides it.
    relu = {"name": "relu", "_target_": "torch.nn.ReLU", "input_shape": [2_500_000]}
    step = config(model=relu, batch_size=4, workload={"name": "inference", "mode": "inference"})
    row = measured_in_a_process_of_its_own(step, tmp_path)
    assert min(row.default_state_page_faults, row.page_faults_per_s * row.time_s) > 1000


@pytest.mark.skipif(
    sys.platform != "linux", reason="macOS does not enforce a limit of address space"
)
def test_a_batch_beyond_the_memory_limit_is_a_row_and_a_smaller_one_is_measured(tmp_path):
    rows = {}
    own, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (512 << 20), hard))
    try:
        for batch_size in (1 << 24, 8):  # 1 GB of inputs, and a few bytes
            folder = tmp_path / hardware_slug("cpu") / "profile_step" / f"batch_size={batch_size}"
            write_json(
                folder / "config.json",
                json.loads(config(batch_size=batch_size).model_dump_json(by_alias=True)),
            )
            rows[batch_size] = run.measure("profile_step", folder / "config.json")
            assert read_row(folder, "profile_step")["status"] == rows[batch_size].status
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (own, hard))
    assert [row.status for row in rows.values()] == ["out_of_memory", "ok"]
    assert "can't allocate memory: you tried to allocate 1073741824 bytes" in verdicts.message(
        rows[1 << 24].message
    )
    assert (rows[1 << 24].batch_size, rows[1 << 24].time_s) == (1 << 24, None)


def test_a_process_has_no_interval_of_its_own_and_a_later_one_is_not_traced(tmp_path):
    row = profile_step.measure(config(replicate=2), tmp_path).row
    assert (row.time_ci_low_s, row.replicates) == (None, None)
    assert row.within_spread_percent >= 0
    assert not (tmp_path / "operators.csv").exists()


def test_input_from_the_host_is_waited_for_and_new_each_time(tmp_path, monkeypatch):
    seen = []

    def forward(self, inputs):
        seen.append(inputs.clone())
        return torch.nn.functional.linear(inputs, self.weight, self.bias)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    row = profile_step.measure(config(workload={"name": "loaded", "input": "host"}), tmp_path).row
    assert 0 < row.input_wait_percent < 100
    assert len({float(inputs.sum()) for inputs in seen}) == len(seen) > 3


def test_input_that_lies_on_the_device_is_not_waited_for(tmp_path):
    row = profile_step.measure(config(), tmp_path).row
    assert row.input_wait_percent is None
    assert json.loads(row.reasons)["input_wait_percent"] == {"no_loader": {}}


def test_operator_table(tmp_path):
    profile_step.measure(config(), tmp_path)
    with (tmp_path / "operators.csv").open() as file:
        rows = list(csv.DictReader(file))
    product = next(row for row in rows if row["operator"] == "aten::addmm")
    assert int(product["flops"]) == 2 * 8 * 16 * 4 * int(product["calls"])
    assert float(product["self_cpu_time_s"]) > 0


def test_a_trace_on_request_reads_back_as_the_same_shares(tmp_path):
    row = profile_step.measure(config(profile={"operators": False, "trace": True}), tmp_path).row
    read = {"trace": {"name": "t", "path": str(tmp_path / "trace.json.gz"), "digest": ""}}
    (tmp_path / "read").mkdir()
    back = read_trace.measure(ReadTraceConfig.model_validate(read), tmp_path / "read").row
    assert back.flops == 2 * 2 * 8 * 16 * 4, "forward and weight gradient: the input needs none"
    assert back.mode == "training"
    for name in ("matmul_percent", "other_operators_percent"):
        assert getattr(back, name) == pytest.approx(getattr(row, name), abs=1), "points"
    spent, again = json.loads(row.spent), json.loads(back.spent)
    for kind, nanoseconds in again.items():
        found = nanoseconds / sum(again.values())
        assert found == pytest.approx(spent[kind] / sum(spent.values()), abs=0.01)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"]
    assert not (tmp_path / "operators.csv").exists()


def test_training_changes_the_weights_and_inference_does_not():
    for mode, learns in (("training", True), ("inference", False)):
        torch.manual_seed(0)
        step = make(config(workload={"name": mode, "mode": mode}), torch.device("cpu"))
        losses = [step.loss(step.call()) for _ in range(20)]
        assert (losses[-1] < losses[0]) is learns


def test_gradient_accumulation_takes_the_same_step_as_one_batch():
    losses = []
    for accumulation in (1, 4):
        torch.manual_seed(0)
        workload = {
            "name": "t",
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "gradient_accumulation": accumulation,
        }
        step = make(config(workload=workload), torch.device("cpu"))
        losses.append([step.loss(step.call()) for _ in range(3)][-1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_phases_of_training_are_measured_and_those_of_inference_are_one(tmp_path):
    trained = profile_step.measure(config(), tmp_path).row
    phases = [trained.forward_ms, trained.backward_ms, trained.optimiser_ms, trained.other_ms]
    assert all(phase > 0 for phase in phases)
    assert "host clock" in json.loads(trained.sources)["optimiser_ms"]
    inferred = profile_step.measure(
        config(workload={"name": "inference", "mode": "inference"}), tmp_path
    ).row
    assert 0 <= trained.second_moment_zeros_percent <= 100
    assert "optimiser" in json.loads(trained.sources)["second_moment_zeros_percent"]
    assert inferred.second_moment_zeros_percent is None
    assert inferred.forward_ms is None
    assert json.loads(inferred.reasons)["forward_ms"] == {"one_phase": {}}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_an_optimiser_s_implementations_take_the_same_step(optimizer):
    losses = []
    for implementation in ("for_loop", "foreach", "fused"):
        torch.manual_seed(0)
        workload = {"name": "t", "optimizer": optimizer, "optimizer_implementation": implementation}
        step = make(config(workload=workload), torch.device("cpu"))
        losses.append([step.loss(step.call()) for _ in range(5)][-1])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)


def test_a_schedule_lowers_the_learning_rate(monkeypatch):
    rates, update = [], torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD,
        "step",
        lambda self: rates.append(self.param_groups[0]["lr"]) or update(self),
    )
    workload = {"name": "t", "optimizer": "sgd", "learning_rate_schedule": "cosine"}
    step = make(config(workload=workload), torch.device("cpu"))
    for _ in range(3):
        step.call()
    assert rates[0] > rates[1] > rates[2] > 0


def test_clipping_bounds_the_step():
    torch.manual_seed(0)
    workload = {"name": "t", "optimizer": "sgd", "learning_rate": 1.0, "gradient_clipping": 1e-6}
    step = make(config(workload=workload), torch.device("cpu"))
    first, second = (step.loss(step.call()) for _ in range(2))
    assert second == pytest.approx(first, abs=1e-4)


@pytest.mark.parametrize("mode", ["trace", "script"])
def test_torchscript(mode, tmp_path):
    row = profile_step.measure(config(execution={"name": mode, "mode": mode}), tmp_path).row
    assert row.status == "ok"
    assert row.compile_s >= 0


def test_building_the_model_is_no_part_of_compiling_it(tmp_path, monkeypatch):
    from mfulab.models import step

    skipped_s, build = [0.0], step.make_model

    def slow(*given):
        skipped_s[0] += 1e4
        return build(*given)

    monkeypatch.setattr(step, "make_model", slow)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + skipped_s[0])
    monkeypatch.setattr(process, "time", clock)
    found = profile_step.measure(
        config(execution={"name": "trace", "mode": "trace"}), tmp_path
    ).row.compile_s
    assert found < 1e4


@pytest.mark.parametrize("replays", [False, True])
def test_the_peak_of_memory_is_that_of_later_steps_but_for_graphs_which_then_allocate_nothing(
    replays, tmp_path, monkeypatch
):
    events, forward = [], torch.nn.Linear.forward
    monkeypatch.setattr(
        torch.nn.Linear, "forward", lambda *given: events.append("step") or forward(*given)
    )
    monkeypatch.setattr(ResidentMemory, "forget", lambda _: events.append("forget"))
    monkeypatch.setattr(ExecutionConfig, "replays", replays)
    profile_step.measure(config(), tmp_path)
    forgotten = [events[:at].count("step") for at, event in enumerate(events) if event == "forget"]
    assert forgotten[:2] == [0, 0]
    assert [steps > 1 for steps in forgotten[2:]] == [True] * (not replays)
    assert events[-1] == "step"


def test_modes_that_replay_graphs():
    asked = [
        ("eager", "default"),
        ("compile", "default"),
        ("compile", "reduce-overhead"),
        ("compile", "max-autotune"),
    ]
    modes = [ExecutionConfig(name="e", mode=mode, compile_mode=options) for mode, options in asked]
    assert [mode.replays for mode in modes] == [False, False, True, True]
    assert ExecutionConfig(name="e", mode="cuda_graph").replays


def test_autocast_keeps_float32_parameters(tmp_path):
    precision = {"name": "amp_bf16", "dtype": "bfloat16", "autocast": True}
    found = profile_step.measure(config(precision=precision), tmp_path).row.effective_precision
    assert found == "bf16"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"precision": {"name": "tf32", "dtype": "float32", "tf32": True}},
            "compute capability 8.0",
        ),
        ({"precision": {"name": "fp8", "dtype": "float8_e4m3fn"}}, "16 bits or more"),
        ({"execution": {"name": "graph", "mode": "cuda_graph"}}, "NVIDIA GPU"),
        ({"execution": {"name": "last", "channels_last": True}}, "channels"),
        ({"workload": {"name": "again", "checkpointing": True}}, "no ModuleList or Sequential"),
    ],
)
def test_what_a_cpu_cannot_do(changes, reason, tmp_path):
    with pytest.raises(UnsupportedError, match=reason):
        profile_step.measure(config(**changes), tmp_path)


def test_a_loss_that_is_not_finite_is_incorrect(tmp_path):
    workload = {"name": "t", "optimizer": "adam", "learning_rate": 1e37}
    row = profile_step.measure(config(workload=workload), tmp_path).row
    assert (row.status, row.loss) == ("incorrect", None)
    assert "not finite" in verdicts.message(row.message)


@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("c++")), reason="no C++ compiler for torch.compile"
)
@pytest.mark.parametrize("mode", few(["default", "reduce-overhead", "max-autotune"]))
def test_compilation_stands_apart_from_the_step(tmp_path, mode):
    torch.compiler.reset()
    execution = {"name": "compile", "mode": "compile", "compile_mode": mode}
    asked = config(execution=execution, workload={"name": "inference", "mode": "inference"})
    row = profile_step.measure(asked, tmp_path).row
    assert row.status == "ok"
    assert row.compile_s > 10 * row.time_s
