"""A run: what it lacks becomes a row that says so, and where it lies in memory is left to chance."""

import json
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from mfulab.device import system
from mfulab.lab.runtime import run


def a_matmul(folder: Path, monkeypatch) -> Path:
    config = folder / "machine/bench_matmul/size=8/config.json"
    config.parent.mkdir(parents=True)
    kernel = {"name": "numpy", "_target_": "mfulab.kernels.cpu_numpy.NumPy"}
    config.write_text(json.dumps({"kernel": kernel, "size": 8, "precision": {"name": "fp32", "dtype": "float32"}}))
    monkeypatch.setattr(run, "check_device", lambda *_: "machine")
    return config


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_without_proc_the_row_says_what_to_do(tmp_path, monkeypatch):
    config = a_matmul(tmp_path, monkeypatch)
    monkeypatch.setattr(system, "ROOT", str(tmp_path))  # an empty /proc
    row = run.measure("bench_matmul", config)
    assert row.status == "unsupported"
    assert row.message.startswith("/proc is not mounted")
    assert "Mount it" in row.message


def test_each_run_takes_memory_of_another_size():
    found = [run.elsewhere() for _ in range(8)]
    assert len({len(pages) for pages, _ in found}) > 1 < len({len(heap) for _, heap in found})
    assert max(len(pages) for pages, _ in found) <= 64 << 20


def test_that_memory_is_kept_while_the_run_is_measured_and_given_back(tmp_path, monkeypatch):
    taken, kept = [], []

    def elsewhere():
        taken.append(weakref.ref(memory := run.mmap.mmap(-1, 1)))
        return memory, bytearray()

    def measure(config, folder):
        kept.append(taken[0]() is not None)
        raise ValueError("measured enough")

    monkeypatch.setattr(run, "elsewhere", elsewhere)
    monkeypatch.setattr(run.importlib, "import_module", lambda name: SimpleNamespace(measure=measure))
    assert run.measure("bench_matmul", a_matmul(tmp_path, monkeypatch)).status == "failed"
    assert kept == [True]
    assert taken[0]() is None
