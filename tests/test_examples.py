"""Examples that are run or read alone: memory by hand against a stand-in of the runtime, and a model in six forms."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cuda_runtime import Runtime

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
    assert [*found] == [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert {"eager", "torch.compile", "torch.export", "AOTInductor"} <= found.keys()
    assert all(seconds > 0 and difference < 1e-5 for seconds, difference in found.values())


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_layers_on_two_ranks_are_counted_by_hand():
    """Rank 0 of a pipeline: its input needs no gradient; of tensor parallelism: half of every matrix."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "examples/layers_on_two_ranks.py", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    flops = 2 * 1024 * 768 * 768 * (4 + 4 + 3)
    assert [(row["micro_batches"], row["flops"], row["formula"]) for row in found["pipeline"]] == [
        (count, flops, pytest.approx(1 / (count + 1))) for count in (1, 2, 4, 8)
    ]
    assert all(row["bubble"] < 1 for row in found["pipeline"])
    assert found["tensor_parallel"]["share"] == 0.5
