"""Examples that are run or read alone: memory by hand, and a model in six forms."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cuda_runtime import Runtime
from support.processes import HANGS_S

ROOT = Path(__file__).parents[1]


def load(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_matrix_comes_back_and_its_memory_is_freed(monkeypatch):
    example, runtime = load("memory_by_hand"), Runtime()
    monkeypatch.setattr(example, "runtime", runtime)
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)
    received = example.there_and_back(sent)
    assert np.array_equal(sent, received)
    assert received.ctypes.data != sent.ctypes.data
    assert runtime.held == {}


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaMemcpy", "cudaFree"])
def test_each_code_is_looked_at_and_what_was_allocated_is_freed(monkeypatch, call):
    example, runtime = load("memory_by_hand"), Runtime(call)
    monkeypatch.setattr(example, "runtime", runtime)
    with pytest.raises(example.CudaError, match="cudaErrorMemoryAllocation: out of memory"):
        example.there_and_back(np.ones(4))
    assert runtime.held == {}


def test_a_code_that_is_not_looked_at_says_nothing(monkeypatch):
    example = load("memory_by_hand")
    monkeypatch.setattr(example, "runtime", Runtime("cudaMalloc"))
    assert example.unlooked_at() is None


@pytest.mark.slow
def test_a_model_gives_the_same_in_each_form(capsys):
    found = load("exported_model").main()
    seen = [*found]
    assert seen == [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert {"eager", "torch.compile", "torch.export", "AOTInductor"} <= found.keys()
    assert all(seconds > 0 and difference < 1e-5 for seconds, difference in found.values())


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_layers_on_two_ranks_are_counted_by_hand():
    """Rank 0 of a pipeline: its input needs no gradient; of tensor parallelism: half of every
    matrix."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, "examples/layers_on_two_ranks.py", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    flops = 2 * 1024 * 768 * 768 * (4 + 4 + 3)
    seen = [(row["micro_batches"], row["flops"], row["formula"]) for row in found["pipeline"]]
    assert seen == [(count, flops, pytest.approx(1 / (count + 1))) for count in (1, 2, 4, 8)]
    assert all(row["bubble"] < 1 for row in found["pipeline"])
    assert found["tensor_parallel"]["share"] == 0.5


class Recorded:
    """A tracker's run or writer that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.closed = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps[step] = values

    def close(self) -> None:
        self.closed = True


def test_numbers_of_each_epoch_reach_every_tracker(monkeypatch, tmp_path):
    example = load("trackers")
    kept = [Recorded(), Recorded()]
    logs = {str(place): (each.log, each.close) for place, each in enumerate(kept)}
    monkeypatch.setattr(example, "trackers", lambda folder: logs)
    logged = example.main(tmp_path / "runs")
    for each in kept:
        assert [*each.steps] == [8, 16, 24]
        assert each.steps[24] == logged
        assert each.closed
    assert logged["mfulab/flops"] == 3 * 2 * 64 * 512 * 266 - 2 * 64 * 512 * 256
    assert logged["mfulab/time_s"] > 0


def test_texts_truths_and_empty_cells_are_no_numbers():
    row = {"flops": 3, "model": "mlp", "steady": True, "energy_j": None, "mfu_percent": 1.5}
    assert load("trackers").numbers(row) == {"mfulab/flops": 3, "mfulab/mfu_percent": 1.5}


@pytest.mark.slow
def test_tensorboard_reads_back_what_was_written(tmp_path):
    """TensorBoard is no package of the project: the night's test installs it beside."""
    place = tmp_path / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", place, "tensorboard"]
    installed = subprocess.run(command, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    read_back = """
import sys
sys.path.insert(0, sys.argv[1])
import trackers
from pathlib import Path
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder = Path(sys.argv[2])
log, close = trackers.trackers(folder)["TensorBoard"]
log({"mfulab/mfu_percent": 12.5}, 7)
close()
[scalar] = EventAccumulator(str(folder)).Reload().Scalars("mfulab/mfu_percent")
print(scalar.step, scalar.value)

import torch
from torch.utils.tensorboard import SummaryWriter

with SummaryWriter(str(folder / "graph")) as writer:
    writer.add_graph(torch.nn.Linear(4, 2), torch.zeros(1, 4))
nodes = EventAccumulator(str(folder / "graph")).Reload().Graph().node
print(sum(node.op == "aten::linear" for node in nodes))
"""
    done = subprocess.run(
        [sys.executable, "-c", read_back, ROOT / "examples", tmp_path / "runs"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{place}:{ROOT / 'src'}"},
    )
    assert done.stdout == "7 12.5\n1\n", done.stderr
