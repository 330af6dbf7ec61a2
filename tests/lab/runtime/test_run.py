"""A run: what it lacks becomes a row that says so; its place in memory is left to chance."""

import errno
import json
import multiprocessing.synchronize  # before a test takes its semaphores away
import os
import signal
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.said import numbers

from mfulab.core.language import verdicts
from mfulab.core.measurement import Measured
from mfulab.device import identity, system
from mfulab.device.vendors import Gpu
from mfulab.lab.runtime import run
from mfulab.measurements.registry import MEASUREMENTS


def a_matmul(folder: Path, monkeypatch) -> Path:
    config = folder / "machine/bench_matmul/size=8/config.json"
    config.parent.mkdir(parents=True)
    kernel = {"name": "numpy", "_target_": "mfulab.kernels.cpu_numpy.NumPy"}
    config.write_text(
        json.dumps({"kernel": kernel, "size": 8, "precision": {"name": "fp32", "dtype": "float32"}})
    )
    monkeypatch.setattr(run, "check_device", lambda *_: "machine")
    return config


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_without_proc_the_row_says_what_to_do(tmp_path, monkeypatch):
    config = a_matmul(tmp_path, monkeypatch)
    monkeypatch.setattr(system, "ROOT", str(tmp_path))  # an empty /proc
    row = run.measure("bench_matmul", config)
    assert row.status == "unsupported"
    assert verdicts.message(row.message).startswith("/proc is not mounted")
    assert "Mount it" in verdicts.message(row.message)


def test_without_shared_memory_the_row_says_what_to_do(tmp_path, monkeypatch):
    """A DataLoader's workers need it; an error of a machine that has it is told alone."""

    def measure(config, folder):
        multiprocessing.get_context("fork").Queue()

    def no_semaphore(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def broken(config, folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    config = a_matmul(tmp_path, monkeypatch)
    module = SimpleNamespace(measure=broken)
    monkeypatch.setitem(sys.modules, "mfulab.measurements.bench_matmul.measure", module)
    assert "no_semaphores" not in run.measure("bench_matmul", config).message
    monkeypatch.setattr("_multiprocessing.SemLock", no_semaphore)
    module.measure = measure
    row = run.measure("bench_matmul", config)
    assert (row.status, "no_semaphores" in row.message) == ("failed", True)
    module.measure = lambda config, folder: (folder / "missing").read_text()
    assert "no_semaphores" not in run.measure("bench_matmul", config).message


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
    monkeypatch.setattr(
        run.importlib, "import_module", lambda name: SimpleNamespace(measure=measure)
    )
    assert run.measure("bench_matmul", a_matmul(tmp_path, monkeypatch)).status == "failed"
    assert kept == [True]
    assert taken[0]() is None


def test_a_run_that_was_stopped_meanwhile_says_so(tmp_path, monkeypatch):
    def measure(config, folder):
        os.kill(os.getpid(), signal.SIGCONT)
        time.sleep(0)  # where Python calls the handler
        return Measured(MEASUREMENTS["bench_matmul"].row.of(config))

    monkeypatch.setattr(
        run.importlib, "import_module", lambda name: SimpleNamespace(measure=measure)
    )
    row = run.measure("bench_matmul", a_matmul(tmp_path, monkeypatch))
    assert row.status == "ok"
    assert numbers(row.message, "stopped_meanwhile")["count"] == 1


@pytest.mark.parametrize("cards", [1, 2])
def test_a_row_names_the_gpus_that_its_run_sees(cards, monkeypatch):
    seen = [Gpu("NVIDIA H200", f"GPU-{place}") for place in range(cards)]
    monkeypatch.setattr(identity, "resolve", lambda kind: "cuda")
    monkeypatch.setattr(identity, "gpus", lambda kind: seen)
    config = SimpleNamespace(on_device=True, device=SimpleNamespace(type="cuda"))
    assert run.uuids(config) == " ".join(gpu.uuid for gpu in seen)


def test_a_cpu_s_row_and_a_count_name_no_gpu():
    config = SimpleNamespace(on_device=True, device=SimpleNamespace(type="cpu"))
    assert run.uuids(config) == run.uuids(SimpleNamespace(on_device=False)) == ""
