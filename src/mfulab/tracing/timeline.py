"""Shows a window's time in order, in a short form."""

import json
from itertools import groupby

import numpy as np

from mfulab.tracing.device_time import DeviceTime
from mfulab.tracing.intervals import Intervals, exclusive, within

SLICES = 240  # of a step, in the short form


def pieces(device_time: DeviceTime) -> dict[str, Intervals]:
    """Splits the window by kind of time. Each kind has the intervals that no earlier kind covers;
    together they fill the window."""
    kinds = dict[str, Intervals]()
    for kind, chosen in device_time.layers.items():
        kinds[kind] = device_time.executed.where(chosen)
    kinds["input_wait"] = device_time.waits
    parts = exclusive(list(kinds.values()), *device_time.window.span)
    return dict(zip((*kinds, "idle"), parts, strict=True))


def short(device_time: DeviceTime) -> str:
    """JSON of the first step in `SLICES` equal parts: the kind that took most of each, as runs of
    [kind, number of parts]."""
    begin = device_time.window.begin
    step_ns = device_time.window.length / device_time.window.steps
    edges = np.linspace(begin, begin + step_ns, SLICES + 1).round().astype(np.int64)
    spans = pieces(device_time)
    shares = [within(intervals, edges[:-1], edges[1:]) for intervals in spans.values()]
    names = list(spans)
    longest_of_slices = np.argmax(shares, axis=0).tolist()
    runs = list[list[str | int]]()
    for longest, run in groupby(longest_of_slices):
        runs.append([names[longest], len(list(run))])
    return json.dumps(runs)
