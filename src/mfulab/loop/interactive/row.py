"""Row of a window: its steps cut from marks, their work, times and shares of the peak, and several
laps merged into one."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import torch

from mfulab.core.parts import drop_none
from mfulab.core.said import Said, joined, packed_all
from mfulab.device.compute import allowed_precision
from mfulab.device.gpu import restriction_of
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.samplers.selection import sources_answered
from mfulab.loop.interactive.batches import UNKNOWN, samples_of
from mfulab.loop.interactive.costs import Flops, Phase, PhaseCost, cost_of, cost_of_all
from mfulab.loop.interactive.peaks import WeightedPeaks, attainable_s
from mfulab.loop.interactive.phases import Phases
from mfulab.loop.interactive.structure import Modules
from mfulab.loop.interactive.unwatched import UnwatchedSteps
from mfulab.mfu.account import Account, account
from mfulab.mfu.step import (
    Cell,
    Counters,
    Shares,
    StepFacts,
    StepPeaks,
    StepTime,
    StepWork,
    group,
    number,
    traced,
    without_hidden_matmuls,
)
from mfulab.mfu.utilization import percent, product, ratio, total
from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, median_interval

# Number of stretches of steps for the confidence interval.
_STRETCHES = 5
# Steps whose hooks take more than this share are not timed, if there are enough without hooks.
HEAVY = 0.002
# A mean that differs from the median by this share is explained by steps this many times as slow;
# at most this many of them are named.
MEAN_APART = 0.05
SLOW = 1.5
SHOWN = 8
# Readings that are summed over laps, and those of which the largest counts; others are averaged.
_SUMMED = frozenset({"window_energy_j"})
_LARGEST = frozenset({"memory_bytes", "other_processes"})
HOW_TO_GIVE = Said("how_to_give_flops")

What = Literal[
    "begin", "forward", "optimizer", "step", "skip", "unwatched", "end", "phase", "phase end"
]
# Marks that bound steps: the loop's own ends of steps, else forward passes, else optimiser's steps.
_BOUNDS: tuple[tuple[What, tuple[What, ...]], ...] = (
    ("step", ("begin", "step", "skip")),
    ("forward", ("forward", "end", "skip")),
    ("optimizer", ("begin", "optimizer", "skip")),
)


class Mark(NamedTuple):
    """A moment: how many phases and compilations were over by then. `unwatched` holds the unwatched
    steps whose moments it stands for. `name` is that of a named phase that begins or ends."""

    what: What
    phases: int
    compiled: int = 0
    unwatched: UnwatchedSteps | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One step: seconds, FLOPs and samples if known, and whether it was `counted`, `compiled` in
    part, or `watched`."""

    seconds: float
    cost: PhaseCost | None
    samples: int | None
    counted: bool
    compiled: bool = False
    watched: bool = True

    @property
    def is_plain(self) -> bool:
        """True if neither the counter nor a compilation slowed it."""
        return not (self.counted or self.compiled)


@dataclass(frozen=True)
class WindowWork:
    """Total cost of the steps whose FLOPs are known, their number and their seconds. `reading` is
    the source, or the reason if there are none."""

    total: PhaseCost | None
    steps: int
    seconds: float
    reading: Reading

    @property
    def mean_s(self) -> float | None:
        """Seconds of the mean step; None if no work is known."""
        if self.total is not None:
            return ratio(self.seconds, self.steps)
        return None


class Cut(NamedTuple):
    """A step: its seconds, and the marks around it."""

    seconds: float
    before: Mark
    after: Mark


def stretches(marks: Sequence[Mark], intervals: Iterable[float]) -> list[Cut]:
    """Seconds of each step and the marks around it, from the seconds between moments. For an
    unwatched step, both marks are its own."""
    cutter = _Cutter(_bounds(marks))
    for mark, ends in _timed(marks, intervals):
        for size, moment in ends:
            if mark.unwatched is not None:
                cutter.end_unwatched(mark, mark.unwatched.of_forwards, size, moment)
            elif mark.what in cutter.bounds:
                cutter.end(mark, moment)
    return cutter.cuts


def _bounds(marks: Sequence[Mark]) -> tuple[What, ...]:
    """Kinds of marks that bound the steps of a window."""
    kinds: set[What] = set()
    for mark in marks:
        if mark.unwatched is None:
            kinds.add(mark.what)
        else:
            kinds.add("forward" if mark.unwatched.of_forwards else "step")
    for what, bounds in _BOUNDS:
        if what in kinds:
            return bounds
    return ()


class _Cutter:
    """Cuts a window into steps, from one mark that bounds them to the next."""

    def __init__(self, bounds: tuple[What, ...]) -> None:
        self.bounds = bounds
        self.cuts: list[Cut] = []
        self._of_forwards = "forward" in bounds
        self._before: tuple[Mark, float] | None = None

    def end_unwatched(self, mark: Mark, of_forwards: bool, size: int, moment: float) -> None:
        """Ends `size` steps that nothing watched."""
        if of_forwards != self._of_forwards:
            self._before = None
            return
        if self._before is not None:
            seconds = (moment - self._before[1]) / size
            self.cuts += [Cut(seconds, mark, mark)] * size
        self._before = mark, moment

    def end(self, mark: Mark, moment: float) -> None:
        """Ends a step, or work that is left out."""
        is_left_out = mark.what == "skip"
        if self._before is not None and not is_left_out:
            before, since = self._before
            # What follows the last unwatched forward pass is of no known kind.
            if before.unwatched is None or mark.what != "end":
                self.cuts.append(Cut(moment - since, before, mark))
        self._before = mark, moment
        # What lies between left-out work and the next forward pass is no step either.
        if is_left_out and self._of_forwards:
            self._before = None


def _timed(
    marks: Sequence[Mark], intervals: Iterable[float]
) -> Iterator[tuple[Mark, list[tuple[int, float]]]]:
    """Yields each mark with its moments, and the number of steps that end at each. Unwatched steps
    have several moments, other marks one."""
    moments = itertools.accumulate(intervals, initial=0.0)
    for mark in marks:
        sizes = mark.unwatched.sizes() if mark.unwatched else [1]
        yield mark, list(zip(sizes, moments, strict=False))


def steps_of(
    marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]
) -> list[LoopStep]:
    """Steps of a window, from its marks and the phases that are over (`done`)."""
    steps: list[LoopStep] = []
    for mark, cuts in itertools.groupby(stretches(marks, intervals), _shared_mark):
        if mark is not None and mark.unwatched is not None:
            steps += _unwatched_steps(mark.unwatched, [cut.seconds for cut in cuts])
        else:
            steps += [_watched(cut, phases, done) for cut in cuts]
    return steps


def _shared_mark(cut: Cut) -> Mark | None:
    """Mark of an unwatched step, which stands on both sides of it; None for other steps."""
    if cut.before is cut.after:
        return cut.before
    return None


def _watched(cut: Cut, phases: Phases, done: Sequence[Phase]) -> LoopStep:
    """Step between two marks, from the phases that were over in between."""
    inside = done[cut.before.phases : cut.after.phases]
    counted = any(phase.counted for phase in inside)
    compiled = cut.before.compiled != cut.after.compiled
    return LoopStep(cut.seconds, phases.cost(inside), samples_of(inside), counted, compiled)


def named_stretches(
    marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]
) -> Iterator[tuple[str, LoopStep]]:
    """Yields the name and the stretch of each named phase that ended. A phase inside another is
    part of both."""
    begun: list[tuple[Mark, float]] = []
    for mark, ends in _timed(marks, intervals):
        if mark.unwatched is not None:
            begun = []
        elif mark.what == "phase":
            begun.append((mark, ends[0][1]))
        elif mark.what == "phase end" and begun:
            before, since = begun.pop()
            cut = Cut(ends[0][1] - since, before, mark)
            yield mark.name, _watched(cut, phases, done)


def _unwatched_steps(unwatched: UnwatchedSteps, seconds: Sequence[float]) -> list[LoopStep]:
    """Steps that nothing watched. Cost and samples are None where they are in doubt."""
    assumed = unwatched.assumed
    cost = assumed.sure_cost
    steps = [
        LoopStep(step_s, cost, assumed.samples, counted=False, watched=False) for step_s in seconds
    ]
    last = unwatched.sizes()[-1]
    if unwatched.odd:  # it is unknown which of the steps that share a mark
        steps[-last:] = [replace(step, cost=None, samples=None) for step in steps[-last:]]
    first = unwatched.ticks - len(steps)
    for compiled in assumed.compiled:
        begin = compiled // unwatched.group * unwatched.group - first
        for index in range(max(0, begin), min(len(steps), begin + unwatched.group)):
            steps[index] = replace(steps[index], compiled=True)
    return steps


def steady(steps: Sequence[LoopStep], watch_s: float) -> Sequence[LoopStep]:
    """Steps whose times count: not counted, not compiled, nor slowed by hooks, which take `watch_s`
    seconds of a step. If there are none, the least disturbed ones."""
    plain = [step for step in steps if step.is_plain]
    unwatched = [step for step in plain if not step.watched]
    if len(unwatched) >= FEWEST_WINDOWS:
        median_s = Stats([step.seconds for step in unwatched]).median
        if watch_s > HEAVY * median_s:
            return unwatched
    return plain or [step for step in steps if not step.counted] or steps


def measuring_percent(steps: Sequence[LoopStep], watch_s: float, tick_s: float) -> float | None:
    """Share of these steps' host time that measuring took: hooks where they were on, else the mark
    alone. None for steps under the counter, which hides it."""
    if steps[0].counted:
        return None
    spent_s = 0.0
    for step in steps:
        if step.watched:
            spent_s += min(watch_s, step.seconds)
        else:
            spent_s += tick_s
    total_s = sum(step.seconds for step in steps)
    return 100 * spent_s / (total_s or 1.0)


def left_out(steps: Sequence[LoopStep], chosen: Sequence[LoopStep]) -> dict[str, Cell]:
    """Columns of the steps that are not timed, with the reasons, and of slow steps among the timed
    ones."""
    compiled = []
    for index, step in enumerate(steps, 1):
        if step.compiled and not step.counted:
            compiled.append(index)
    timed = set(map(id, chosen))
    counted = sum(step.counted for step in steps)
    untimed = [step for step in steps if id(step) not in timed]
    return {
        "counted_steps": counted,
        "only_counted": len(steps) if counted == len(steps) else 0,
        "compiled_steps": len(compiled),
        "compiled_places": _places(compiled),
        "slow_places": _places(_slow(steps, chosen)),
        "watched_steps": sum(step.is_plain for step in untimed),
        "mean_of_all_s": _mean_s(steps),
    }


def _slow(steps: Sequence[LoopStep], chosen: Sequence[LoopStep]) -> list[int]:
    """Numbers of the slow steps among the chosen ones; empty if they hardly affect the mean."""
    middle = Stats([step.seconds for step in chosen]).median
    if abs(_mean_s(chosen) - middle) <= MEAN_APART * middle:
        return []
    slow = {id(step) for step in chosen if step.seconds > SLOW * middle}
    return [number for number, step in enumerate(steps, 1) if id(step) in slow]


def _mean_s(steps: Sequence[LoopStep]) -> float:
    return sum(step.seconds for step in steps) / len(steps)


def _places(numbers: Sequence[int]) -> str | None:
    """Formats numbers for a cell, only the first if there are many; None if there are none."""
    shown = list(map(str, numbers[:SHOWN]))
    if len(numbers) > SHOWN:
        shown.append("…")
    return ", ".join(shown) or None


def work_of_batch(steps: Sequence[LoopStep], models: Modules, batch: object) -> WindowWork:
    """Work of steps that each compute `batch`, counted on tensors without data."""
    from mfulab.flops.count import CountError
    from mfulab.loop.interactive.without_data import count_call

    if not models:
        return _unknown(Said("batch_needs_model"))
    try:
        cost = cost_of(count_call(models[0], batch, backward=models[0].training).operations)
    except CountError as error:
        return _unknown(joined([error.said, Said("give_flops_per_step")]))
    reading = Reading(cost.model, "", "counted of `batch` on tensors without data")
    return same_work(steps, cost, reading)


def same_work(steps: Sequence[LoopStep], cost: PhaseCost, reading: Reading) -> WindowWork:
    """Work of steps that all cost the same."""
    count = len(steps)
    seconds = sum(step.seconds for step in steps)
    return WindowWork(cost_of_all([(cost, count)]), count, seconds, reading)


def counted_work(steps: Sequence[LoopStep], phases: Phases) -> WindowWork:
    """Work of steps, from the counts of their phases."""
    known = [step for step in steps if step.cost is not None]
    if phases.failure or not known:
        return _unknown(joined([_why_uncounted(phases), HOW_TO_GIVE]))
    costs = dict[int, PhaseCost]()
    counts = Counter[int]()
    for cost in drop_none(step.cost for step in known):
        costs[id(cost)] = cost
        counts[id(cost)] += 1
    total = cost_of_all([(cost, counts[key]) for key, cost in costs.items()])
    if not total.model:
        return _unknown(joined([Said("no_operator_with_formula"), HOW_TO_GIVE]))
    source = _source(phases, len(steps), len(known))
    seconds = sum(step.seconds for step in known)
    reading = Reading(total.model / len(known), "", source)
    return WindowWork(total, len(known), seconds, reading)


def _why_uncounted(phases: Phases) -> Said:
    """Reason why no step has a cost."""
    if phases.failure:
        return Said("counter_gave_up", failure=phases.failure)
    return phases.costs.differing or Said("no_counted_kind")


def _source(phases: Phases, steps: int, known: int) -> str:
    """Describes where the FLOPs of the `known` ones of some steps come from."""
    counted, derived = phases.costs.numbers
    parts = [f"operators of {counted} kinds of phases, each counted once"]
    if derived:
        parts.append(f"{derived} kinds cost what counted ones of as many elements cost")
    if phases.unused:
        parts.append(f"did not run and cost nothing: {', '.join(phases.unused)}")
    if known < steps:
        left_out = f"{steps - known} of {steps} steps"
        parts.append(f"{left_out} are of kinds that were not counted and left out of MFU")
    return "; ".join(parts)


def _unknown(reason: Said | None) -> WindowWork:
    return WindowWork(None, 0, 0.0, Reading(None, "", "counted", reason=reason))


def samples_reading(steps: Sequence[LoopStep]) -> Readings:
    """Reason why the samples of some steps are unknown; empty if all are known."""
    if all(step.samples is not None for step in steps):
        return {}
    return {"samples_per_s": Reading(None, "1/s", "batches of the models", reason=UNKNOWN)}


def times(
    steps: Sequence[LoopStep], readings: Readings, device: torch.device
) -> dict[str, float | str | None]:
    """Columns of the steps' times, and of the sources of their readings."""
    seconds = [step.seconds for step in steps]
    samples = [step.samples for step in steps]
    size = max(1, len(seconds) // _STRETCHES)
    starts = range(0, size * min(_STRETCHES, len(seconds)), size)
    medians = [Stats(seconds[start : start + size]).median for start in starts]
    interval = median_interval(medians) or (None, None)
    stats = Stats(seconds)
    batches = drop_none(samples)
    samples_per_s = None
    if len(batches) == len(steps) and any(batches):
        samples_per_s = sum(batches) / sum(seconds)
    return {
        "steps": len(steps),
        "window_s": sum(seconds),
        "time_s": stats.median,
        "time_p5_s": stats.percentile(5),
        "time_p95_s": stats.percentile(95),
        "time_ci_low_s": interval[0],
        "time_ci_high_s": interval[1],
        "samples_per_s": samples_per_s,
        "ladder": sources_answered(readings),
        "restriction": restriction_of(device) or None,
    }


@dataclass(frozen=True)
class Site:
    """Model, devices and peaks of a window's steps. `dtype` is that of the model's parameters,
    which lie on the devices `lies_on`. `peaks` returns the peaks for needed and executed FLOPs by
    format."""

    dtype: torch.dtype
    device: torch.device
    lies_on: Sequence[torch.device]
    peaks: Callable[[Flops, Flops], WeightedPeaks]

    def peaks_of(self, cost: PhaseCost | None) -> WeightedPeaks:
        """Peaks for the work of a window; without work, only the format is known."""
        if cost is None:
            precision = allowed_precision(self.dtype, self.device, convolutions=False)
            return WeightedPeaks(StepPeaks(effective_precision=precision))
        return self.peaks(cost.formats, cost.executed_formats)

    @property
    def why_no_mfu(self) -> Said | None:
        """Reason why no peak applies to the model, which lies on several devices; None if one
        does."""
        if len(self.lies_on) < 2:
            return None
        return Said("lies_on_several", places=", ".join(map(str, self.lies_on)))


@dataclass(frozen=True)
class AccountedWindow:
    """Account of a window's mean step, its columns, and the reasons why some of them are empty."""

    account: Account
    columns: dict[str, Cell]
    readings: Readings


def accounted(work: WindowWork, site: Site, seen: Mapping[str, Cell]) -> AccountedWindow:
    """Accounts for the mean step, not the median, since all FLOPs count. `seen` holds columns of
    times, counters and a trace; its `mean_s` is the step's time if its work is unknown."""
    weighted = site.peaks_of(work.total)
    facts = StepFacts(
        time=_step_time(work, seen),
        work=_step_work(work, seen),
        peaks=_without_peak(weighted.step) if site.why_no_mfu else weighted.step,
        counters=group(Counters, seen),
        traced=without_hidden_matmuls(traced(seen)),
    )
    step = account(facts)
    readings = {"flops": work.reading}
    if work.total is None:
        shares: dict[str, Cell] = {
            "effective_precision": weighted.step.effective_precision,
            "flops": None,
        }
        for name in _SHARES:
            shares[name] = getattr(step.shares, name)
        return AccountedWindow(step, shares, readings)
    if weighted.reason:
        readings["peak_tflop_s"] = Reading(None, "TFLOP/s", "computed peak", reason=weighted.reason)
    if site.why_no_mfu:
        readings["mfu_percent"] = Reading(None, "%", "counted", reason=site.why_no_mfu)
    attainable = _attainable(step, work, weighted, site.device)
    readings["attainable_mfu_percent"] = attainable
    columns: dict[str, Cell] = {
        "attainable_mfu_percent": attainable.value,
        "uncounted_operators": ", ".join(sorted(work.total.uncounted)) or None,
        "unshown_flops": work.total.unshown / work.steps or None,
        "flops": facts.work.flops,
        "executed_flops": facts.work.executed_flops,
        "bytes_moved": facts.work.bytes_moved,
        "effective_precision": weighted.step.effective_precision,
        "peak_precision": weighted.step.peak_precision,
        "peak_tflop_s": weighted.step.peak_tflop_s,
        "peak_clock_mhz": weighted.step.peak_clock_mhz,
        "peak_weights": weighted.weights,
        "ceiling_tflop_s": weighted.step.ceiling_tflop_s,
        "ceiling_other_processes_percent": weighted.step.ceiling_other_processes_percent,
        **{name: getattr(step.shares, name) for name in (*_SHARES, "useful_mfu_percent")},
    }
    return AccountedWindow(step, columns, readings)


_OF_OFU = ("expected_mfu_percent", "ofu_percent")
_OF_TRACE = ("executed_percent", "issued_percent")
_APART = (*_OF_OFU, *_OF_TRACE, "useful_mfu_percent")
_SHARES = tuple(share.name for share in fields(Shares) if share.name not in _APART)


def _step_time(work: WindowWork, seen: Mapping[str, Cell]) -> StepTime:
    """Time of the mean step, without the confidence interval, which is that of the median step."""
    mean_s = work.mean_s or number(seen.get("mean_s"))
    time = group(StepTime, seen)
    return replace(time, time_s=mean_s, time_ci_low_s=None, time_ci_high_s=None)


def _step_work(work: WindowWork, seen: Mapping[str, Cell]) -> StepWork:
    """The work of a mean step."""
    if work.total is None:
        return StepWork()
    return StepWork(
        flops=work.total.model / work.steps,
        executed_flops=work.total.executed / work.steps,
        useful_ratio=ratio(work.total.useful, work.total.model),
        bytes_moved=work.total.moved_bytes / work.steps or None,
        executed_ratio=number(seen.get("executed_ratio")),
        issued_ratio=number(seen.get("issued_ratio")),
    )


def _without_peak(peaks: StepPeaks) -> StepPeaks:
    """Keeps only the formats, for a model on several devices, which no peak covers."""
    return StepPeaks(
        effective_precision=peaks.effective_precision,
        peak_precision=peaks.peak_precision,
        peak_clock_mhz=peaks.peak_clock_mhz,
    )


def _attainable(
    step: Account, work: WindowWork, weighted: WeightedPeaks, device: torch.device
) -> Reading:
    """MFU in percent of a step in which each product runs on its own roofline, or the reason why it
    is unknown."""
    mfu = step.shares.mfu_percent
    assert work.total is not None
    best_s, why = attainable_s(work.total, weighted, device, work.steps)
    value = product(mfu, ratio(work.mean_s, best_s))
    if mfu is None:
        why = Said("mfu_unknown")
    elif value is not None and value < mfu:
        value = None
        why = Said("above_roofline")
    return Reading(value, "%", "roofline of each product", reason=why)


def named_row(
    stretches: Sequence[LoopStep],
    steps: Sequence[LoopStep],
    phases: Phases,
    site: Site,
    clock_mhz: float | None,
) -> dict[str, Cell]:
    """Row of a named phase: number of calls; times, FLOPs and shares of a call; share of the steps'
    time. Stretches under the counter are timed only if there are no others."""
    timed = [stretch for stretch in stretches if stretch.is_plain] or stretches
    window = accounted(counted_work(timed, phases), site, {"clock_mhz": clock_mhz})
    mean_s = _mean_s(timed)
    step_s = None
    if steps:
        undisturbed = steady(steps, 0.0)
        step_s = len(steps) * sum(step.seconds for step in undisturbed) / len(undisturbed)
    reasons = (reading.reason for reading in window.readings.values() if reading.reason)
    return {
        "calls": len(stretches),
        "only_counted": all(stretch.counted for stretch in stretches),
        "time_s": Stats([stretch.seconds for stretch in timed]).median,
        "mean_s": mean_s,
        "step_percent": percent(mean_s * len(stretches), step_s),
        "reason": packed_all(itertools.islice(reasons, 1)),
        **window.columns,
    }


def merged(laps: Sequence[tuple[float, Readings]]) -> Readings:
    """Merges the readings of laps: means weighted by the laps' seconds, sums, and largest
    values."""
    if len(laps) == 1:
        return laps[0][1]
    joined: Readings = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(readings for _, readings in laps)):
        of_laps = [(seconds, readings[name]) for seconds, readings in laps if name in readings]
        joined[name] = of_laps[0][1]
        measured = [lap for lap in of_laps if lap[1].value is not None]
        if measured:
            joined[name] = _merged(name, measured)
    return joined


def _merged(name: str, laps: Sequence[tuple[float, Reading]]) -> Reading:
    """Merges one reading of several laps, all of them measured."""
    values = drop_none(reading.value for _, reading in laps)
    if name in _SUMMED:
        value = sum(values)
    elif name in _LARGEST:
        value = max(values)
    else:
        weights = [seconds for seconds, _ in laps]
        weighted = (weight * value for weight, value in zip(weights, values, strict=True))
        value = sum(weighted) / sum(weights)
    window_s = total(*(reading.window_s for _, reading in laps))
    return replace(laps[-1][1], value=value, window_s=window_s)
