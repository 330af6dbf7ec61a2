"""The time that a trace is read over: its annotated steps, else what repeats in it, else all that the device did."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from mfulab.core.said import Said
from mfulab.tracing.intervals import Intervals, clip, length, union
from mfulab.tracing.trace import COMPUTE, UPDATE, Activities, Indices, Times, Trace, TraceError, launch_of

# The annotation around steps that mfulab traces itself; their number follows.
STEPS = "mfulab traced steps"
_STEP = re.compile(r"ProfilerStep#(\d+)")
# Steps of serving engines: requests that are prefilled and that decode in vLLM's, the kind of batch in SGLang's.
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)\(.*\)")
_SGLANG = re.compile(r"(?:step\[(\w+)|(prefill|decode)\[)[ b].*\]")
_KINDS = {"EXTEND": "prefill", "DECODE": "decoding", "decode": "decoding"}
_HOST_COPY = re.compile(r"h(?:ost)?[-_ ]?(?:to|2)[-_ ]?d|d(?:evice)?[-_ ]?(?:to|2)[-_ ]?h", re.IGNORECASE)
_OWN = (UPDATE, "enumerate(DataLoader)#")  # begin ranges that torch itself writes once a step
FEWEST = 3  # times that a kernel comes before its coming again tells steps
LOST = 0.01  # of a stream's own work as much again without a launch
UNSEEN_NS = 1_000_000  # no launch takes a millisecond
MOST_LETTERS = 40  # of a kernel's name in a sentence
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
    phase: str | None = None  # prefill, decoding or another kind of an engine's steps

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
    host, marks, stretches = trace.host, [], list[Window]()
    for index in np.flatnonzero(host.annotation):
        name = trace.names[host.name[index]]
        if name.startswith(STEPS):
            count = int(name.rpartition(":")[2]) if ":" in name else 1
            begin, end = int(host.begin[index]), int(host.end[index])
            stretches = [Window(begin, end, count, (Said("annotated_steps"),), host_begin=begin, host_end=end)]
            break
        if step := _STEP.fullmatch(name):
            marks.append((int(step[1]), int(host.begin[index]), int(host.end[index])))
    if not stretches and (engine := _engine_steps(trace)):
        stretches = engine
    elif marks and not stretches:
        numbered = groupby(enumerate(sorted(set(marks))), lambda item: item[1][0] - item[0])
        stretches = [_stretch(trace, [mark for _, mark in run], Said("profiler_steps")) for _, run in numbered]
    elif not stretches and steps is None:
        stretches = _by_torch(trace) or _repeating(trace)
    for window in stretches:
        if window.steps < 1 or window.length <= 0:
            raise TraceError(f"{trace.path}: {window.steps} steps of {window.length} ns: no step was recorded whole")
    if stretches:
        return stretches
    held = ~trace.of_module
    own = int(host.begin[held].min(initial=1 << 62)), int(host.end[held].max(initial=0))
    begin, end = (trace.span if len(trace.activities) else None) or own
    if begin >= end:
        raise TraceError(f"{trace.path}: the trace spans no time: every event has a duration of 0")
    source = Said("from_activities" if len(trace.activities) else "from_operators")
    return [Window(begin, end, steps or 1, (source,) if steps else (source, Said("taken_for_one")))]


def phase_of(name: str) -> str | None:
    """Kind of an engine's step, by the range that vLLM, SGLang or ATOM writes around it; None for other ranges."""
    if vllm := _VLLM.fullmatch(name):
        prefilled, decoding = map(int, vllm.groups())
        return ("mixed" if decoding else "prefill") if prefilled else "decoding" if decoding else None
    kind = _SGLANG.fullmatch(name)
    return kind and _KINDS.get(kind[1] or kind[2], (kind[1] or kind[2]).lower())


def _ranges(trace: Trace, kinds: Sequence[str | None]) -> list[tuple[int, int, str]]:
    """Begin, end and kind of the host's ranges in order, of those names that have a kind."""
    host = trace.host
    told = [(host.begin[index], host.end[index], kinds[host.name[index]]) for index in np.flatnonzero(host.annotation)]
    return sorted((int(begin), int(end), kind) for begin, end, kind in told if kind)


def _engine_steps(trace: Trace) -> list[Window]:
    """The longest run of consecutive steps of each kind that an engine marked."""
    runs, counts = dict[str, list[tuple[int, int, int]]](), Counter[str]()
    for kind, several in groupby(enumerate(_ranges(trace, [*map(phase_of, trace.names)])), lambda item: item[1][2]):
        run = [(number, begin, end) for number, (begin, end, _) in several]
        counts[kind] += len(run)
        runs[kind] = max(run, runs.get(kind, []), key=len)
    return [
        replace(_stretch(trace, run, Said("engine_steps", {"kind": kind, "count": counts[kind]})), phase=kind)
        for kind, run in runs.items()
    ]


def _by_torch(trace: Trace) -> list[Window]:
    """The steps between ranges that torch writes once in each: of the optimiser that steps least often, or batches."""
    for prefix in _OWN:
        of_each, is_end = defaultdict[str, list[int]](list), prefix == UPDATE
        for begin, end, name in _ranges(trace, [name if name.startswith(prefix) else None for name in trace.names]):
            of_each[name].append(end if is_end else begin)
        times = min(of_each.values(), key=len, default=[])
        if len(times) >= FEWEST:
            run = [(number, *both) for number, both in enumerate(pairwise(times), start=1)]
            return [_stretch(trace, run, Said("between_ranges", {"name": prefix.strip("#")}))]
    return []


def _repeating(trace: Trace) -> list[Window]:
    """The longest run of equal steps on the main stream, divided by a kernel that comes once in each. Layers repeat
    too: steps are told by a copy from or to the host, or by no rarer kernel after the first of them."""
    activities = trace.activities
    place = np.unique(np.stack((activities.device, activities.stream)), axis=1, return_inverse=True)[1].ravel()
    busy = np.bincount(place, np.where(activities.kind == COMPUTE, activities.end - activities.begin, 0))
    main = np.flatnonzero(place == busy.argmax()) if len(busy) else place
    main = main[np.argsort(activities.begin[main], kind="stable")]
    names, copies = activities.name[main], trace.named(_HOST_COPY.search)[activities.name[main]]
    kernels, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    for name in kernels[np.argsort(counts, kind="stable")][np.sort(counts) >= FEWEST]:
        places = np.flatnonzero(names == name)
        parts = [names[begin:end].tobytes() for begin, end in pairwise(places)]
        run = max((list(run) for _, run in groupby(range(len(parts)), parts.__getitem__)), key=len)
        first, last = ends = places[run[0]], places[run[-1] + 1]
        if len(run) < FEWEST - 1 or last - first < len(names) / 2:
            continue
        if copies[first : places[run[0] + 1]].any() or not (counts[inverse[first:]] < len(places)).any():
            begin, end = activities.begin[main[list(ends)]].tolist()
            # What the host called between the launches that precede both ends belongs to these steps.
            launches = np.append(trace.launches.end, -1)[launch_of(trace)]
            since, until = (int(launches[main[at - 1]]) if at else 0 for at in ends)
            called = (since, until) if until > since >= 0 else (begin, end)
            said = Said("repeating", {"name": trace.names[name][:MOST_LETTERS]})
            return [Window(begin, end, len(run), (said,), host_begin=called[0], host_end=called[1])]
    return []


def _stretch(trace: Trace, run: list[tuple[int, int, int]], how: Said) -> Window:
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
        how,
        Said("earlier_work_left_out", {"ms": (first - begin) / 1e6}) if first > begin else None,
        Said("launched_later", {"ms": (last - end) / 1e6}) if last > end else None,
        Said("warm_up_left_out", {"count": left_out}) if left_out else None,
    )
    lengths, said = tuple(until - since for _, since, until in run), tuple(filter(None, source))
    return Window(first, max(end, last), len(run), said, run[0][0], run[-1][0], begin, end, lengths)


def _on_device(trace: Trace, begin: int, end: int) -> tuple[int, int]:
    """Times between which the main stream completed earlier work and that of steps marked from `begin` to `end`."""
    activities, launch = trace.activities, launch_of(trace)
    times = np.append(trace.launches.begin, end)[launch]
    own = (times >= begin) & (times < end) & (launch >= 0)
    if not own.any():
        return begin, end
    streams, place = np.unique(np.stack((activities.device, activities.stream)), axis=1, return_inverse=True)
    busy = np.bincount(place.ravel()[own], (activities.end - activities.begin)[own], streams.shape[1])
    main = place.ravel() == busy.argmax()
    mine, unlinked = np.flatnonzero(own & main), (launch < 0) & main
    first = mine[activities.begin[mine].argmin()]
    before = activities.begin < activities.begin[first]
    if np.count_nonzero(unlinked & ~before) > LOST * len(mine):
        return begin, end  # the trace lacks launches: what has none tells nothing of earlier steps
    # A profiler that starts with these steps records what earlier ones left on the device, and not its launches. They
    # were under way at its start, or these steps' own work queued behind them.
    left = unlinked & before
    if left.any() and activities.begin[left].min() > begin and activities.end[left].max() < times[first]:
        left[:] = False
    left |= main & (launch >= 0) & (times < begin)
    completed = int(activities.end[left].max()) if left.any() else begin
    if not left.any():
        # Own work that waited for so long, with nothing on the device, waited for work that was not recorded.
        waited = int(times[first]), int(activities.begin[first])
        held = union(clip(Intervals(activities.begin, activities.end), *waited))
        if waited[1] - waited[0] - length(held) > UNSEEN_NS:
            completed = waited[1]
    return max(begin, min(completed, int(activities.begin[first]))), int(activities.end[mine].max())
