"""Walks visit what they claim to visit, and their numbers follow from that."""

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cuda_runtime import Runtime
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.measurements.probe_memory import ProbeMemoryConfig
from mfulab.measurements.probe_memory.measure import level_of, measure, rates
from mfulab.measurements.probe_memory.memory_access import (
    FILES,
    LINE,
    Walk,
    by_rows,
    chase,
    cycle,
    file_walk,
    hand_walk,
    host_walk,
    in_order,
)

CPU = {"type": "cpu"}


@given(st.integers(1, 300), st.integers(1, 16), st.integers(0, 5))
def test_a_chase_visits_every_line_once_before_it_returns(places, spacing, seed):
    following = cycle(places, spacing, seed)
    seen, place = [], 0
    for _ in range(places):
        place = int(following[place])
        seen.append(place)
    assert sorted(seen) == [spacing * each for each in range(places)]


def test_walks_sum_what_they_visit():
    values = np.arange(64, dtype=np.int64)
    assert in_order(values, 1, 2) == 2 * values.sum()
    assert in_order(values, LINE, 1) == values[::LINE].sum()
    matrix = values.reshape(8, 8)
    assert by_rows(matrix, 1) == by_rows(matrix.T, 1) == values.sum()
    following, place = cycle(8, LINE, 3), np.zeros(1, np.int64)
    chase(following, place, 3)
    assert place[0] == following[following[following[0]]]
    chase(following, place, 5)  # it goes on from there
    assert place[0] == 0  # a whole cycle ends where it began


@pytest.mark.parametrize("pattern", ["sequential", "strided", "random", "rows", "columns"])
def test_a_row_follows_from_its_walk(tmp_path, pattern):
    row = measure(
        ProbeMemoryConfig(pattern=pattern, working_set_bytes=1 << 16, device=CPU), tmp_path
    ).row
    assert 0 < row.time_per_access_s < 1e-3
    lines = row.touched_gb_s / row.gb_s
    assert lines == pytest.approx(LINE if pattern in ("strided", "random") else 1)
    assert host_walk(pattern, 1 << 16).accesses == row.accesses


@pytest.mark.parametrize("pattern", ["page_cache", "disk"])
def test_a_walk_through_a_file_reads_whole_pages_and_leaves_no_file(tmp_path, pattern):
    row = measure(ProbeMemoryConfig(pattern=pattern, working_set_bytes=1 << 20), tmp_path).row
    assert (row.level, row.accesses) == (pattern, min(FILES[pattern], (1 << 20) // mmap.PAGESIZE))
    assert row.touched_gb_s == pytest.approx(mmap.PAGESIZE / row.time_per_access_s / 1e9)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_is_unsupported(tmp_path):
    with refused(
        UnsupportedError, "no_file_to_read", pattern="disk", folder=str(tmp_path / "none")
    ):
        file_walk("disk", 1 << 20, tmp_path / "none")


@pytest.mark.parametrize(("pattern", "copied"), [("cuda_malloc", []), ("cuda_memcpy", [1, 2])])
def test_memory_by_hand_is_taken_copied_there_and_back_and_freed(monkeypatch, pattern, copied):
    runtime = Runtime()
    monkeypatch.setattr("cuda.bindings.runtime", runtime)
    walk = hand_walk(pattern, 1 << 16)
    walk.call()
    assert (runtime.copied, runtime.held) == (2 * copied, {})  # once when it was made
    assert (walk.accesses, walk.touched_bytes) == (1 << 13, 1 << 16)


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaMemcpy", "cudaFree"])
def test_a_call_by_hand_that_fails_is_said_by_name_and_leaves_nothing(monkeypatch, call):
    runtime = Runtime(call)
    monkeypatch.setattr("cuda.bindings.runtime", runtime)
    with pytest.raises(
        UnsupportedError, match=r"cuda_memcpy: out of memory \(cudaErrorMemoryAllocation\)"
    ):
        hand_walk("cuda_memcpy", 4096)
    assert runtime.held == {}


@pytest.mark.parametrize("pattern", ["cuda_malloc", "cuda_memcpy"])
def test_memory_of_a_gpu_is_none_of_a_cpu(tmp_path, pattern):
    with refused(UnsupportedError, "pattern_of_gpu", pattern=pattern):
        measure(ProbeMemoryConfig(pattern=pattern, working_set_bytes=4096, device=CPU), tmp_path)


def test_a_copy_to_a_gpu_and_too_large_a_set_are_unsupported(tmp_path):
    with refused(UnsupportedError, "pattern_of_gpu", pattern="host"):
        measure(ProbeMemoryConfig(pattern="host", working_set_bytes=4096, device=CPU), tmp_path)
    with refused(UnsupportedError, "walk_needs_memory", size=str(1 << 36)):
        measure(ProbeMemoryConfig(pattern="rows", working_set_bytes=1 << 36, device=CPU), tmp_path)


@pytest.mark.parametrize(
    ("size", "level"), [(4096, "L1"), (48 << 10, "L1"), (49 << 10, "L2"), (1 << 30, "memory")]
)
def test_the_level_is_the_smallest_cache_that_holds_it(size, level):
    assert level_of(size, {"L1": 48 << 10, "L2": 1 << 20}) == level


def test_rates_without_a_clock_have_no_cycles():
    found = rates(Walk(int, 1000, 64_000), [2e-6, 1e-6, 4e-6], None)
    assert found.pop("cycles_per_access") is None
    assert found == pytest.approx({"time_per_access_s": 2e-9, "gb_s": 4, "touched_gb_s": 32})
    assert rates(Walk(int, 1000, 8000), [2e-6], 1500.0)["cycles_per_access"] == pytest.approx(3)


@pytest.mark.slow
def test_the_gpu_s_chase_ends_where_the_cpu_s_does():
    """In Numba's simulator, a process of its own."""
    code = """
import numpy as np
from numba import cuda
from mfulab.measurements.probe_memory.memory_access import chase, cycle
following, here, there = cycle(50, 8, 1), np.zeros(1, np.int64), np.zeros(1, np.int64)
for steps in (37, 12):
    cuda.jit(chase.py_func)[1, 1](following, here, steps)
    chase(following, there, steps)
    assert here[0] == there[0] != 0
"""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
