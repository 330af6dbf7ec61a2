"""Finds the time window over which a trace is read: its marked steps, else what repeats in it, else
all that the device did."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from mfulab.core.said import Said
from mfulab.flops.registry.step import step_work
from mfulab.tracing.intervals import clip, length, union
from mfulab.tracing.trace import (
    COMPUTE,
    COPY,
    UPDATE,
    Activities,
    Chosen,
    Indices,
    Times,
    Trace,
    TraceError,
    launch_of,
    places_of,
)

# The annotation around steps that mfulab traces itself; their number follows.
STEPS = "mfulab traced steps"
_STEP = re.compile(r"ProfilerStep#(\d+)")
# Steps of serving engines: vLLM's name the numbers of prefilled and decoding requests, SGLang's the
# kind of batch.
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)\(.*\)")
_SGLANG = re.compile(r"(?:step\[(\w+)|(prefill|decode)\[)[ b].*\]")
_KINDS = {"EXTEND": "prefill", "DECODE": "decoding", "decode": "decoding"}
_HOST_COPY = re.compile(
    r"h(?:ost)?[-_ ]?(?:to|2)[-_ ]?d|d(?:evice)?[-_ ]?(?:to|2)[-_ ]?h", re.IGNORECASE
)
_TORCH_RANGES = (UPDATE, "enumerate(DataLoader)#")  # begin ranges that torch writes once per step
LEAST_REPEATS = 3  # occurrences of a kernel or range that divides steps
MOST_UNLINKED = 0.01  # of the steps' own activities: with more, the trace lacks launches
STUB = 0.05  # of a step's work: a mark with less was opened by the profiler as the loop ended
LEAST_OF_TIME = 0.5  # of the device's time: a repeating pattern that holds less is no step
LEAST_OUTSIDE = 0.01  # of the work: a smaller share outside of the window is not mentioned
UNSEEN_NS = 1_000_000  # no launch takes longer: such work waited for work that was not recorded
MOST_LETTERS = 40  # of a kernel's name in a sentence
WARM_UP = 1.5  # a first step longer than this times the median of those after it was warm-up
SELDOM = 0.125  # of later steps: if a larger share takes as long, long steps are no warm-up
MOST_WINDOWS = 100  # of a trace: each takes a pass over all of it
MOST_TRIED = 500  # kernels that are tried to divide steps: each takes a pass too


@dataclass(frozen=True)
class StepMark:
    """One step as the host marked it: its number, and its begin and end in ns."""

    number: int
    begin: int
    end: int

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.begin


@dataclass(frozen=True)
class Range:
    """One annotation of the host that has a kind, with begin and end in ns."""

    begin: int
    end: int
    kind: str


@dataclass(frozen=True)
class Window:
    """Time [begin, end) in ns of the trace's clock that contains `steps` steps; `source` says how
    it was found."""

    begin: int
    end: int
    steps: int
    source: tuple[Said, ...]
    first_step: int | None = None
    last_step: int | None = None
    # ns between which the host called the operators of these steps; None if in all of the trace
    host_begin: int | None = None
    host_end: int | None = None
    lengths: tuple[int, ...] = ()  # of each step on the host, ns; empty if not marked one by one
    phase: str | None = None  # kind of an engine's steps: prefill, decoding, mixed or another

    def called(self, begin: Times) -> Chosen:
        """Mask of the host calls that begin in these steps; all of them if that is unknown."""
        if self.host_begin is None or self.host_end is None:
            return np.ones(len(begin), bool)
        return (begin >= self.host_begin) & (begin < self.host_end)

    def executed(self, activities: Activities) -> Indices:
        """Indices of the activities that overlap the window."""
        inside = (activities.end > self.begin) & (activities.begin < self.end)
        return np.flatnonzero(inside)

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end in ns."""
        return self.begin, self.end

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.begin


def annotation(steps: int) -> str:
    """Name of the annotation around `steps` steps."""
    return f"{STEPS}: {steps}"


def windows(trace: Trace, steps: int | None = None) -> list[Window]:
    """Finds one window per run of consecutive steps. If no steps are found, returns one window of
    `steps` steps (default 1) over the whole trace. With `steps`, only marked steps are sought.
    Raises TraceError if a window has no steps or spans no time."""
    found = _annotated(trace) or _engine_steps(trace) or _profiler_steps(trace)
    if not found and steps is None:
        found = _by_torch(trace) or _repeating(trace)
    if not found:
        return [_whole_trace(trace, steps)]
    for window in found:
        if window.steps < 1 or window.length <= 0:
            raise TraceError(
                trace.path, Said("no_whole_step", steps=window.steps, ns=window.length)
            )
    return [_with_outside(trace, window) for window in found]


def _whole_trace(trace: Trace, steps: int | None) -> Window:
    """Window of all that the device did (the host, if there is no device), as `steps` steps."""
    span = None
    if len(trace.activities):
        span = trace.span
    if span is None:
        operators = ~trace.of_module
        host = trace.host
        begin = int(host.begin[operators].min(initial=1 << 62))
        span = begin, int(host.end[operators].max(initial=0))
    begin, end = span
    if begin >= end:
        raise TraceError(trace.path, Said("no_time_spanned"))
    source = [Said("from_operators")]
    if len(trace.activities):
        source = [Said("from_activities")]
    if not steps:
        source.append(Said("taken_for_one"))
    return Window(begin, end, steps or 1, tuple(source))


def _with_outside(trace: Trace, window: Window) -> Window:
    """Adds to the window's source the share of the file's work that lies outside."""
    work = trace.activities.where()
    if not len(trace.activities):
        work = union(trace.host.where(~trace.host.annotation))
    total = length(work)
    outside = total - length(clip(work, *window.span))
    if outside < LEAST_OUTSIDE * total or not outside:
        return window
    share = Said("outside_window", percent=100 * outside / total)
    return replace(window, source=(*window.source, share))


def _annotated(trace: Trace) -> list[Window]:
    """Window of the steps that mfulab itself traced; empty if there is none."""
    host = trace.host
    is_annotated = trace.named(lambda name: name.startswith(STEPS))[host.name]
    for index in np.flatnonzero(is_annotated & host.annotation):
        name = trace.names[host.name[index]]
        steps = 1
        if ":" in name:
            steps = int(name.rpartition(":")[2])
        span = int(host.begin[index]), int(host.end[index])
        source = (Said("annotated_steps"),)
        return [Window(*span, steps, source, host_begin=span[0], host_end=span[1])]
    return []


def _profiler_steps(trace: Trace) -> list[Window]:
    """Windows of the steps that torch.profiler numbered, one per run of consecutive numbers."""
    numbers = [_step_number(name) for name in trace.names]
    ranges = _ranges(trace, numbers)
    marks = {StepMark(int(found.kind), found.begin, found.end) for found in ranges}
    ordered = sorted(marks, key=lambda mark: (mark.number, mark.begin, mark.end))
    runs = list[list[StepMark]]()
    for mark in ordered:
        if runs and mark.number == runs[-1][-1].number + 1:
            runs[-1].append(mark)
        else:
            runs.append([mark])
    kept = _longest(runs)
    found = [_stretch(trace, run, Said("profiler_steps")) for run in kept]
    return _with_dropped(found, len(runs) - len(kept))


def _step_number(name: str) -> str | None:
    """Number in torch.profiler's mark of a step; None for other names."""
    match = _STEP.fullmatch(name)
    if match:
        return match[1]
    return None


def _longest(runs: Sequence[list[StepMark]]) -> list[list[StepMark]]:
    """The longest runs, at most `MOST_WINDOWS`, in their order; of equally long ones the first."""
    by_length = sorted(range(len(runs)), key=lambda index: -len(runs[index]))
    return [runs[index] for index in sorted(by_length[:MOST_WINDOWS])]


def _with_dropped(windows: list[Window], count: int) -> list[Window]:
    """Adds to each window's source how many other windows are left out."""
    if not count:
        return windows
    dropped = Said("windows_left_out", count=count, most=MOST_WINDOWS)
    return [replace(window, source=(*window.source, dropped)) for window in windows]


def phase_of(name: str) -> str | None:
    """Kind of an engine's step (such as prefill, decoding, mixed), by the range that vLLM, SGLang
    or ATOM writes around it; None for other ranges."""
    vllm = _VLLM.fullmatch(name)
    if vllm:
        prefilled, decoding = map(int, vllm.groups())
        if prefilled:
            if decoding:
                return "mixed"
            return "prefill"
        if decoding:
            return "decoding"
        return None
    sglang = _SGLANG.fullmatch(name)
    if sglang is None:
        return None
    kind = sglang[1] or sglang[2]
    return _KINDS.get(kind, kind.lower())


def is_step(name: str) -> bool:
    """True if a range marks a step of torch.profiler or of an engine."""
    return _STEP.fullmatch(name) is not None or phase_of(name) is not None


def _phases(names: Sequence[str]) -> list[str | None]:
    """Kinds of engines' steps by name of range, None for other ranges. If some names contain
    lengths, only these count: plainer ranges are written around the same steps."""
    phases = list(map(phase_of, names))
    detailed = [
        phase if step_work(name) else None for name, phase in zip(names, phases, strict=True)
    ]
    if any(detailed):
        return detailed
    return phases


def _ranges(trace: Trace, kinds: Sequence[str | None]) -> list[Range]:
    """Annotations of the host whose name has a kind, in order of begin."""
    host = trace.host
    has_kind = np.array([kind is not None for kind in kinds], bool)
    ranges = list[Range]()
    for index in np.flatnonzero(host.annotation & has_kind[host.name]):
        kind = kinds[host.name[index]]
        if kind:
            ranges.append(Range(int(host.begin[index]), int(host.end[index]), kind))
    return sorted(ranges, key=lambda found: (found.begin, found.end, found.kind))


def _engine_steps(trace: Trace) -> list[Window]:
    """Windows of the longest run of consecutive engine steps, per kind (prefill, decoding,
    mixed)."""
    longest = dict[str, list[StepMark]]()
    counts = Counter[str]()
    ranges = _ranges(trace, _phases(trace.names))
    numbered = [StepMark(number, found.begin, found.end) for number, found in enumerate(ranges)]
    for kind, several in groupby(numbered, lambda mark: ranges[mark.number].kind):
        run = list(several)
        counts[kind] += len(run)
        longest[kind] = max(run, longest.get(kind, []), key=len)
    found = list[Window]()
    kept = _longest(list(longest.values()))
    for run in kept:
        kind = ranges[run[0].number].kind
        how = Said("engine_steps", kind=kind, count=counts[kind])
        found.append(replace(_stretch(trace, run, how), phase=kind))
    return _with_dropped(found, len(longest) - len(kept))


def _by_torch(trace: Trace) -> list[Window]:
    """Window of the steps between ranges that torch writes once per step: those of the optimiser
    that steps least often, else of batches."""
    for prefix in _TORCH_RANGES:
        times = _least_often(trace, prefix)
        if len(times) >= LEAST_REPEATS:
            spans = enumerate(pairwise(times), start=1)
            run = [StepMark(number, begin, end) for number, (begin, end) in spans]
            how = Said("between_ranges", {"name": prefix.strip("#")})
            return [_stretch(trace, run, how)]
    return []


def _least_often(trace: Trace, prefix: str) -> list[int]:
    """Times (ns) of the rarest range whose name begins with a prefix: ends for optimisers, begins
    for others."""
    kinds = [name if name.startswith(prefix) else None for name in trace.names]
    times = defaultdict[str, list[int]](list)
    for found in _ranges(trace, kinds):
        time = found.end if prefix == UPDATE else found.begin
        times[found.kind].append(time)
    return min(times.values(), key=len, default=[])


def _streams(activities: Activities) -> Indices:
    """Number of each activity's stream, distinct across devices."""
    pairs = np.stack((activities.device, activities.stream))
    return np.unique(pairs, axis=1, return_inverse=True)[1].ravel()


class _MainStream:
    """Activities of the stream with most compute time, in order of begin."""

    def __init__(self, trace: Trace) -> None:
        activities = trace.activities
        stream = _streams(activities)
        busy = np.bincount(stream, np.where(activities.kind == COMPUTE, activities.lengths, 0))
        indices = np.flatnonzero(stream == busy.argmax())
        self.indices = indices[np.argsort(activities.begin[indices], kind="stable")]
        self.names = activities.name[self.indices]
        self.copies = trace.named(_HOST_COPY.search)[self.names]  # from or to the host
        kernels, inverse, counts = np.unique(self.names, return_inverse=True, return_counts=True)
        self.counts = counts[inverse]  # how often each activity's kernel occurs
        by_count = np.argsort(counts, kind="stable")
        self.repeated = kernels[by_count][counts[by_count] >= LEAST_REPEATS]  # the rarest first


@dataclass(frozen=True)
class _Repeats:
    """Equal steps on the main stream, and the positions at which the first begins and the last
    ends."""

    first: int
    last: int
    steps: int


def _repeating(trace: Trace) -> list[Window]:
    """Window of the longest run of equal steps on the main stream, divided by a kernel that occurs
    once in each."""
    if not len(trace.activities):
        return []
    main = _MainStream(trace)
    for name in main.repeated[:MOST_TRIED]:
        found = _divided_by(name, main, trace.activities)
        if found is None:
            continue
        called = _called_between(trace, main.indices, found.first, found.last)
        if called is None:
            return []
        ends = main.indices[[found.first, found.last]]
        begin, end = trace.activities.begin[ends].tolist()
        how = Said("repeating", name=trace.names[name][:MOST_LETTERS])
        return [Window(begin, end, found.steps, (how,), host_begin=called[0], host_end=called[1])]
    return []


def _divided_by(name: int, main: _MainStream, activities: Activities) -> _Repeats | None:
    """The longest run of equal parts between occurrences of a kernel, if they are steps. Layers
    repeat too: a step must contain a copy from or to the host, or no kernel from its begin on may
    be rarer. The steps must hold most of the device's time."""
    places = np.flatnonzero(main.names == name)
    run = _longest_run(main.names, places)
    if len(run) < LEAST_REPEATS - 1:
        return None
    first, second = places[run[0]], places[run[0] + 1]
    last = places[run[-1] + 1]
    period = (last - first) // len(run)
    if not _is_most(activities, main.indices[first : last + period]):
        return None
    has_copy = main.copies[first:second].any()
    is_rarest = (main.counts[first:] >= len(places)).all()
    if has_copy or is_rarest:
        return _Repeats(first, last, len(run))
    return None


def _longest_run(names: Indices, places: Indices) -> list[int]:
    """Indices of the longest run of equal parts, where a part reaches from one of `places` to the
    next."""
    parts = [names[begin:end].tobytes() for begin, end in pairwise(places)]
    runs = [list(run) for _, run in groupby(range(len(parts)), parts.__getitem__)]
    return max(runs, key=len)


def _is_most(activities: Activities, chosen: Indices) -> bool:
    """True if most kernel time lies between the first and last of the chosen activities."""
    begin = int(activities.begin[chosen[0]])
    end = int(activities.end[chosen].max())
    kernels = activities.kind != COPY
    work = activities.where(kernels)
    inside = length(clip(work, begin, end))
    return inside > 0 and inside >= LEAST_OF_TIME * length(work)


def _called_between(trace: Trace, main: Indices, first: int, last: int) -> tuple[int, int] | None:
    """Host times (ns) between which the activities `first` to `last` of the main stream were
    called: by their launches, else by their operators. Falls back to device times if no shapes were
    recorded; else None."""
    activities = trace.activities
    ends = np.append(trace.launches.end, -1)[launch_of(trace)][main]
    since = 0
    if first:
        since = int(ends[:first].max(initial=-1))
    until = int(ends[:last].max())
    if until > since >= 0:
        return since, until
    # A correlation that serves as an external id names no operator.
    named = activities.external != activities.correlation
    owner = np.where(named, places_of(activities.external, trace.host.external), -1)
    begins = np.append(trace.host.begin, -1)
    since, until = begins[owner[main[[first, last]]]].tolist()
    if until > since >= 0:
        return since, until
    if any(call.shapes for call in trace.host.calls.values()):
        return None
    return int(activities.begin[main[first]]), int(activities.begin[main[last]])


def _work(trace: Trace, run: Sequence[StepMark]) -> Times:
    """Nanoseconds of work of each mark: device time of its launches; if launches are missing, of
    what begins in it; without a device, time of host operators."""
    activities = trace.activities
    launch = launch_of(trace)
    linked = launch >= 0
    if not len(activities):
        operators = ~trace.host.annotation
        begin = trace.host.begin[operators]
        times = trace.host.end[operators] - begin
    elif 2 * np.count_nonzero(linked) >= len(linked):
        begin = trace.launches.begin[launch[linked]]
        times = activities.lengths[linked]
    else:
        begin = activities.begin
        times = activities.lengths
    order = np.argsort(begin, kind="stable")
    before = np.concatenate(([0], np.cumsum(times[order])))
    since = np.searchsorted(begin[order], [mark.begin for mark in run])
    until = np.searchsorted(begin[order], [mark.end for mark in run])
    return before[until] - before[since]


def _without_stubs(trace: Trace, run: list[StepMark]) -> list[StepMark]:
    """Drops a mark with next to no work at either end, which the loop's end left. Joins marks
    without work to the step before them."""
    work = _work(trace, run)
    if len(run) < 2 or not work.any():
        return run
    usual = work.max()
    if len(run) > 2:
        usual = work[1:-1].min()
    least = STUB * usual
    first = int(work[0] <= least)
    last = len(run) - int(work[-1] <= least)
    empty = work == 0
    if (empty[1:] & empty[:-1]).any():  # the trace lacks work
        return run
    if empty[1:-1].any():  # the loop marks steps twice: marks without work are no stubs
        first = int(empty[0])
        last = len(run)
    steps = list[StepMark]()
    for mark, work_ns in zip(run[first:last], work[first:last].tolist(), strict=True):
        if work_ns or not steps:
            steps.append(mark)
        else:
            steps[-1] = replace(steps[-1], end=mark.end)
    return steps


def _without_warm_up(run: list[StepMark]) -> list[StepMark]:
    """Drops first steps that took so much longer than nearly all later ones that they were warm-up.
    Keeps steps that are long and short in turn."""
    others = sorted(mark.length for mark in run)  # lengths of the steps after `first`
    first = 0
    while len(run) - first >= 3:
        length = run[first].length
        del others[bisect_left(others, length)]
        middle = len(others) // 2
        median = (others[middle] + others[-1 - middle]) / 2
        as_long = len(others) - bisect_left(others, length / WARM_UP)
        if length <= WARM_UP * median or as_long >= SELDOM * len(others):
            break
        first += 1
    return run[first:]


def _stretch(trace: Trace, marks: list[StepMark], how: Said) -> Window:
    """Window of one run's steps, without stubs and warm-up. It reaches from the end of earlier work
    on the device to the end of the steps' own work: a period is the time between two completions,
    which the host's marks do not show."""
    steps = _without_stubs(trace, marks)
    run = _without_warm_up(steps)
    begin = run[0].begin
    end = run[-1].end
    first, last = _on_device(trace, begin, end)
    source = [how]
    if first > begin:
        source.append(Said("earlier_work_left_out", ms=(first - begin) / 1e6))
    if last > end:
        source.append(Said("launched_later", ms=(last - end) / 1e6))
    if len(run) < len(steps):
        source.append(Said("warm_up_left_out", count=len(steps) - len(run)))
    if len(steps) < len(marks):
        source.append(Said("stubs_left_out", count=len(marks) - len(steps)))
    return Window(
        begin=first,
        end=max(end, last),
        steps=len(run),
        source=tuple(source),
        first_step=run[0].number,
        last_step=run[-1].number,
        host_begin=begin,
        host_end=end,
        lengths=tuple(mark.length for mark in run),
    )


def _on_device(trace: Trace, begin: int, end: int) -> tuple[int, int]:
    """Times (ns) at which the main stream completed earlier work, and the work of the steps marked
    from `begin` to `end`."""
    activities = trace.activities
    launch = launch_of(trace)
    is_linked = launch >= 0
    launched = np.append(trace.launches.begin, end)[launch]
    own = is_linked & (launched >= begin) & (launched < end)
    if not own.any():
        return begin, end
    stream = _streams(activities)
    busy = np.bincount(stream[own], activities.lengths[own])
    main = stream == busy.argmax()
    mine = np.flatnonzero(own & main)
    first = mine[activities.begin[mine].argmin()]
    started = int(activities.begin[first])
    is_before = activities.begin < started
    unlinked = main & ~is_linked
    if np.count_nonzero(unlinked & ~is_before) > MOST_UNLINKED * len(mine):
        return begin, end  # work without a launch need not be of earlier steps
    first_launched = int(launched[first])
    earlier = main & is_linked & (launched < begin)
    earlier |= _of_earlier_steps(activities, unlinked & is_before, begin, first_launched)
    if earlier.any():
        completed = int(activities.end[earlier].max())
    elif _waited_ns(activities, first_launched, started) > UNSEEN_NS:
        # Work that waited this long on an idle device waited for work that was not recorded.
        completed = started
    else:
        completed = begin
    return max(begin, min(completed, started)), int(activities.end[mine].max())


def _of_earlier_steps(
    activities: Activities, unlinked: Chosen, begin: int, launched: int
) -> Chosen:
    """Mask of the work without a launch that earlier steps left on the device. `unlinked` is such
    work before the first of these steps' own work, which was launched at `launched`."""
    # A profiler that starts with these steps records what earlier steps left on the device, without
    # its launches. That was under way at the start, or these steps' own work queued behind it.
    if not unlinked.any():
        return unlinked
    was_under_way = activities.begin[unlinked].min() <= begin
    was_queued_behind = activities.end[unlinked].max() >= launched
    if was_under_way or was_queued_behind:
        return unlinked
    return np.zeros_like(unlinked)


def _waited_ns(activities: Activities, launched: int, began: int) -> int:
    """Nanoseconds between a launch and its work in which the device was idle."""
    work = activities.where()
    return began - launched - length(union(clip(work, launched, began)))
