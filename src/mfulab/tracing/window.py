"""The time that a trace is read over: its annotated steps, else all that the device did."""

import re
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from mfulab.core.said import Said
from mfulab.tracing.intervals import Intervals, clip, length, union
from mfulab.tracing.trace import Activities, Indices, Times, Trace, TraceError, launch_of

# The annotation around steps that mfulab traces itself; their number follows.
STEPS = "mfulab traced steps"
_STEP = re.compile(r"ProfilerStep#(\d+)")
LOST = 0.01  # of a stream's own work as much again without a launch
UNSEEN_NS = 1_000_000  # no launch takes a millisecond
WARM_UP = 1.5  # a first step that takes so many times the median of those after it was warm-up


@dataclass(frozen=True)
class Window:
    """[begin, end) in ns of the trace's clock, with `steps` steps in it; `source` says how it was found."""

    begin: int
    end: int
    steps: int
    source: tuple[Said, ...]
    first_step: int | None = None
    last_step: int | None = None
    host_begin: int | None = None  # the host calls operators of these steps from here; all of the trace where None
    host_end: int | None = None  # and until here
    lengths: tuple[int, ...] = ()  # the steps' own on the host, ns, where they are marked one by one

    def called(self, begin: Times) -> npt.NDArray[np.bool_]:
        """Marks the host calls of these steps by when they begin."""
        if self.host_begin is None or self.host_end is None:
            return np.ones(len(begin), bool)
        return (begin >= self.host_begin) & (begin < self.host_end)

    def executed(self, activities: Activities, device: int | None = None) -> Indices:
        """Places of the activities that overlap the window, of one device or of all."""
        inside = (activities.end > self.begin) & (activities.begin < self.end)
        return np.flatnonzero(inside & ((device is None) | (activities.device == device)))

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end."""
        return self.begin, self.end

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.begin


def annotation(steps: int) -> str:
    """The name of the annotation around `steps` steps."""
    return f"{STEPS}: {steps}"


def windows(trace: Trace, steps: int | None = None) -> list[Window]:
    """One window for each run of consecutive steps, else one of `steps`. Raises TraceError: there is no time in it."""
    host, marks, found = trace.host, [], list[Window]()
    for index in np.flatnonzero(host.annotation):
        name = trace.names[host.name[index]]
        if name.startswith(STEPS):
            count = int(name.rpartition(":")[2]) if ":" in name else 1
            begin, end = int(host.begin[index]), int(host.end[index])
            found = [Window(begin, end, count, (Said("annotated_steps"),), host_begin=begin, host_end=end)]
            break
        if step := _STEP.fullmatch(name):
            marks.append((int(step[1]), int(host.begin[index]), int(host.end[index])))
    if marks and not found:
        numbered = groupby(enumerate(sorted(set(marks))), lambda one: one[1][0] - one[0])
        found = [_stretch(trace, [mark for _, mark in run]) for _, run in numbered]
    for one in found:
        if one.steps < 1 or one.length <= 0:
            raise TraceError(f"{trace.path}: {one.steps} steps of {one.length} ns: no step was recorded whole")
    if found:
        return found
    held = ~trace.of_module
    own = int(host.begin[held].min(initial=1 << 62)), int(host.end[held].max(initial=0))
    begin, end = (trace.span if len(trace.activities) else None) or own
    if begin >= end:
        raise TraceError(f"{trace.path}: the trace spans no time: every event has a duration of 0")
    source = Said("from_activities" if len(trace.activities) else "from_operators")
    return [Window(begin, end, steps or 1, (source,) if steps else (source, Said("taken_for_one")))]


def _stretch(trace: Trace, run: list[tuple[int, int, int]]) -> Window:
    """The steps of one run without warm-up, from the end of earlier work on the device to the end of their own: the
    time between two completions is their period, and the host's marks alone are not."""
    left_out = 0
    while len(run) >= 3:
        median = float(np.median([end - begin for _, begin, end in run[1:]]))
        if run[0][2] - run[0][1] <= WARM_UP * median:
            break
        run, left_out = run[1:], left_out + 1
    begin, end = run[0][1], run[-1][2]
    first, last = _on_device(trace, begin, end)
    source = (
        Said("profiler_steps"),
        Said("earlier_work_left_out", {"ms": (first - begin) / 1e6}) if first > begin else None,
        Said("launched_later", {"ms": (last - end) / 1e6}) if last > end else None,
        Said("warm_up_left_out", {"count": left_out}) if left_out else None,
    )
    lengths, said = tuple(until - since for _, since, until in run), tuple(filter(None, source))
    return Window(first, max(end, last), len(run), said, run[0][0], run[-1][0], begin, end, lengths)


def _on_device(trace: Trace, begin: int, end: int) -> tuple[int, int]:
    """Times between which the main stream completed earlier work and that of steps marked from `begin` to `end`."""
    activities, found = trace.activities, launch_of(trace)
    times = np.append(trace.launches.begin, end)[found]
    own = (times >= begin) & (times < end) & (found >= 0)
    if not own.any():
        return begin, end
    streams, place = np.unique(np.stack((activities.device, activities.stream)), axis=1, return_inverse=True)
    busy = np.bincount(place.ravel()[own], (activities.end - activities.begin)[own], streams.shape[1])
    main = place.ravel() == busy.argmax()
    mine, unlinked = np.flatnonzero(own & main), (found < 0) & main
    first = mine[activities.begin[mine].argmin()]
    before = activities.begin < activities.begin[first]
    if np.count_nonzero(unlinked & ~before) > LOST * len(mine):
        return begin, end  # the trace lacks launches: what has none tells nothing of earlier steps
    # A profiler that starts with these steps records what earlier ones left on the device, and not its launches. They
    # were under way at its start, or these steps' own work queued behind them.
    left = unlinked & before
    if left.any() and activities.begin[left].min() > begin and activities.end[left].max() < times[first]:
        left[:] = False
    left |= main & (found >= 0) & (times < begin)
    completed = int(activities.end[left].max()) if left.any() else begin
    if not left.any():
        # Own work that waited for so long, with nothing on the device, waited for work that was not recorded.
        waited = int(times[first]), int(activities.begin[first])
        held = union(clip(Intervals(activities.begin, activities.end), *waited))
        if waited[1] - waited[0] - length(held) > UNSEEN_NS:
            completed = waited[1]
    return max(begin, min(completed, int(activities.begin[first]))), int(activities.end[mine].max())
