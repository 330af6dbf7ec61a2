"""The work of reading a trace grows with the trace, whatever it holds many of; counted as elements
of columns that are touched and calls that are made, not as seconds."""

import json
import sys

import numpy as np
import pytest
from support.slow import few
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.measurements.read_trace import reader
from mfulab.tracing import window

SHAPES = [[64, 64], [64, 64]]
UNALIGNED = "cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_align1"
# Work of so many times as much ÷ as many: what is quadratic takes up to that many times more.
MOST = 1.1


class Counted(np.ndarray):
    """A column that counts the elements which numpy reads of it and of what is made of it."""

    touched = 0

    def __array_ufunc__(self, function, method, *given, **named):
        return self._run(getattr(function, method), given, named)

    def __array_function__(self, function, types, given, named):
        return self._run(function, given, named)

    def __getitem__(self, key):
        Counted.touched += np.size(key)
        return super().__getitem__(plain(key))

    def tolist(self):
        Counted.touched += self.size
        return super().tolist()

    @staticmethod
    def _run(function, given, named):
        plain_given = plain(list(given))
        Counted.touched += sum(each.size for each in arrays(plain_given))
        named = {key: plain(value) for key, value in named.items()}
        return counted(function(*plain_given, **named))


def plain(value):
    """A value, its arrays of numpy's own type."""
    if isinstance(value, Counted):
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)(plain(each) for each in value)
    return value


def arrays(value):
    """Arrays in a value and in the lists of it."""
    if isinstance(value, np.ndarray):
        return [value]
    found = []
    if isinstance(value, list | tuple):
        for each in value:
            found += arrays(each)
    return found


def counted(value):
    """A result, its arrays counted from now on."""
    if type(value) is np.ndarray:
        return value.view(Counted)
    if type(value) in (list, tuple):
        return type(value)(counted(each) for each in value)
    return value


def of_devices(count):
    """A matmul on each of many devices."""
    found = []
    for number in range(1, count + 1):
        work = product(number, number)
        work[-1]["args"]["device"] = work[-1]["pid"] = number
        found += work
    return [*steps((1_000_000, 1_001_000)), *found]


def of_streams(count):
    """A matmul on each of many streams of one device."""
    found = []
    for number in range(1, count + 1):
        work = product(number, number)
        work[-1]["args"]["stream"] = work[-1]["tid"] = number
        found += work
    return [*steps((1_000_000, 1_001_000)), *found]


def of_threads(count):
    """A matmul called by each of many threads."""
    found = []
    for number in range(1, count + 1):
        work = product(number, number)
        for each in work[:-1]:
            each["tid"] = 100 + number
        found += work
    return [*steps((1_000_000, 1_001_000)), *found]


def of_shapes(count):
    """A matmul of each of many shapes, whose sides are no whole bytes of a load."""
    found = []
    for number in range(1, count + 1):
        found += product(number, number, [[64, 2 * number + 1], [2 * number + 1, 64]])
    return [*steps((1_000_000, 1_001_000)), *found]


def of_collectives(count):
    """A collective, as torch describes it, on each of many devices."""
    told = {"Collective name": "allreduce", "dtype": "Float", "Group size": 8}
    told |= {"In msg nelems": 64, "Out msg nelems": 64}
    found = []
    for number in range(1, count + 1):
        one = event("kernel", "ncclDevKernel", 1_000_500, 10, 9, device=number, stream=9, **told)
        found.append(one | {"pid": number})
    return [*steps((1_000_000, 1_001_000)), *found]


def of_windows(count):
    """A matmul in each of many runs of steps, between which numbers are missing."""
    found = []
    for number in range(1, count + 1):
        place = 1000 * number
        found += steps((1_000_000 + place, 1_000_900 + place), first=2 * number)
        found += product(number, place + 10)
    return found


def of_kinds(count):
    """A matmul in a step of each of many kinds that an engine names."""
    found = []
    for number in range(1, count + 1):
        place = 1000 * number
        name = f"step[KIND{number} bs=1]"
        found.append(event("user_annotation", name, 1_000_000 + place, 900, 1))
        found += product(number, place + 10)
    return found


def of_names(count):
    """Kernels of many names, each of which comes three times and in another order each."""
    found = []
    for turn, factor in enumerate((1, 7, 11)):
        for number in range(count):
            name = f"kernel{factor * number % count}"
            at = 1_000_000 + 2 * (turn * count + number)
            found.append(event("kernel", name, at, 1, device=0, stream=7))
    return found


def of_warm_up(count):
    """Steps of which the first are long, as many as are taken for warm-up."""
    found = []
    at = 1_000_000
    for number in range(count):
        length = 90_000 if number < count // 10 else 900
        found += steps((at, at + length), first=number)
        found += product(number + 1, at + 10 - 1_000_000)
        at += length
    return found


def product(number, place, shapes=SHAPES):
    """The events of one matmul: the operator, its launch and its kernel."""
    at = 1_000_000 + place
    external = {"External id": number}
    called = operator("aten::mm", at, 0.8, shapes, "c10::BFloat16", **external)
    work = launched(UNALIGNED, at + 0.1, at + 400, 0.5, number, grid=[1, 1, 1])
    work[0]["dur"] = 0.1
    return [called, *work]


def work_of(content, path, monkeypatch):
    """Elements touched and calls made while a trace becomes rows."""
    write(path, json.dumps(content).encode())
    read = reader.read

    def read_counted(*given):
        traces = read(*given)
        for one in traces:
            for columns in (one.activities, one.host, one.launches):
                for name, column in vars(columns).items():
                    setattr(columns, name, counted(column))
        return traces

    calls = 0

    def note(frame, happened, _):
        nonlocal calls
        calls += happened in ("call", "c_call")

    Counted.touched = 0
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", read_counted)
        sys.setprofile(note)
        try:
            rows = reader.read_file(path)
        finally:
            sys.setprofile(None)
    assert rows
    return Counted.touched, calls


# Bounds of a test's trace: a hundred windows take seconds, beyond which nothing grows.
MOST_WINDOWS = 10
MOST_TRIED = 60
# Of each kind how many, and how many times as many. A device takes a row, which is work enough.
KINDS = {
    of_streams: (200, 8),
    of_shapes: (200, 8),
    of_windows: (MOST_WINDOWS, 4),
    of_kinds: (MOST_WINDOWS, 4),
    of_names: (MOST_TRIED, 4),
    of_devices: (20, 4),
    of_collectives: (20, 4),
    of_threads: (200, 8),
    of_warm_up: (300, 12),
}


@pytest.mark.parametrize("events", few(KINDS, 2))
def test_work_grows_as_the_trace_does(events, tmp_path, monkeypatch):
    monkeypatch.setattr(window, "MOST_WINDOWS", MOST_WINDOWS)
    monkeypatch.setattr(window, "MOST_TRIED", MOST_TRIED)
    few, times = KINDS[events]
    found = []
    for count in (few, few * times):
        about = [{"id": number, "name": "NVIDIA H100"} for number in range(count)]
        whole = trace(*events(count), deviceProperties=about)
        found.append(work_of(whole, tmp_path / f"{count}.json", monkeypatch))
    for less, more in zip(*found, strict=True):
        assert more <= MOST * times * less, found
