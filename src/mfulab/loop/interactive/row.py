"""Row of a window: its steps from marks, their work, times and shares of the peak, and several laps
or ranks as one."""

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
from mfulab.loop.interactive.costs import Cost, Flops, Phase, cost_of, cost_of_all
from mfulab.loop.interactive.peaks import WeightedPeaks, attainable_s
from mfulab.loop.interactive.phases import Phases
from mfulab.loop.interactive.rest import UnwatchedSteps
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

# Steps are cut into as many stretches for the confidence interval.
_STRETCHES = 5
# Hooks that take more than this share of a step have its time left out, where steps without them
# are enough.
HEAVY = 0.002
# A mean this much beside the median is explained: by steps so many times as slow, of which as many
# are named.
MEAN_APART = 0.05
SLOW = 1.5
SHOWN = 8
# Totals of a lap; everything else is a mean over it, and the peak of memory the largest.
_SUMMED = frozenset({"window_energy_j"})
_LARGEST = frozenset({"memory_bytes", "other_processes"})
HOW_TO_GIVE = Said("how_to_give_flops")

What = Literal["begin", "forward", "optimizer", "step", "skip", "rest", "end", "phase", "phase end"]
# What bounds steps: the loop's own word, else forward passes, else the optimiser's steps.
_BOUNDS: tuple[tuple[What, tuple[What, ...]], ...] = (
    ("step", ("begin", "step", "skip")),
    ("forward", ("forward", "end", "skip")),
    ("optimizer", ("begin", "optimizer", "skip")),
)


class Mark(NamedTuple):
    """A moment: how many phases and compilations were over by then; of a rest, the moments of its
    own steps. `name` is that of a named phase which begins or ends."""

    what: What
    phases: int
    compiled: int = 0
    rest: UnwatchedSteps | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One step: seconds, FLOPs and samples where known, whether it `counted`, was `compiled` in
    part, or `watched`."""

    seconds: float
    cost: Cost | None
    samples: int | None
    counted: bool
    compiled: bool = False
    watched: bool = True


@dataclass(frozen=True)
class WindowWork:
    """Cost of the steps whose FLOPs are known, their number and their seconds; `reading` says how,
    or why none are."""

    total: Cost | None
    steps: int
    seconds: float
    reading: Reading

    @property
    def mean_s(self) -> float | None:
        """Seconds of the mean step; None where no work is known."""
        if self.total is not None:
            return ratio(self.seconds, self.steps)
        return None


def stretches(marks: Sequence[Mark], intervals: Iterable[float]) -> list[tuple[float, Mark, Mark]]:
    """Seconds of each step and the marks around it, twice its own in a rest, from the seconds
    between moments."""
    cutter = _Cutter(_bounds(marks))
    for mark, ends in _timed(marks, intervals):
        for size, moment in ends:
            if mark.rest is not None:
                cutter.end_of_rest(mark, mark.rest.of_forwards, size, moment)
            elif mark.what in cutter.bounds:
                cutter.end(mark, moment)
    return cutter.cuts


def _bounds(marks: Sequence[Mark]) -> tuple[What, ...]:
    """Kinds of marks that bound the steps of a window."""
    kinds: set[What] = set()
    for mark in marks:
        if mark.rest is None:
            kinds.add(mark.what)
        else:
            kinds.add("forward" if mark.rest.of_forwards else "step")
    for what, bounds in _BOUNDS:
        if what in kinds:
            return bounds
    return ()


class _Cutter:
    """Cuts a window into steps, from one mark that bounds them to the next."""

    def __init__(self, bounds: tuple[What, ...]) -> None:
        self.bounds = bounds
        self.cuts: list[tuple[float, Mark, Mark]] = []
        self._of_forwards = "forward" in bounds
        self._before: tuple[Mark, float] | None = None

    def end_of_rest(self, mark: Mark, of_forwards: bool, size: int, moment: float) -> None:
        """Ends so many steps that nothing watched."""
        if of_forwards != self._of_forwards:
            self._before = None
            return
        if self._before is not None:
            self.cuts += [((moment - self._before[1]) / size, mark, mark)] * size
        self._before = mark, moment

    def end(self, mark: Mark, moment: float) -> None:
        """Ends a step, or work that is left out."""
        is_left_out = mark.what == "skip"
        if self._before is not None and not is_left_out:
            before, since = self._before
            # What follows the last forward pass that nothing watched is of no known kind.
            if before.rest is None or mark.what != "end":
                self.cuts.append((moment - since, before, mark))
        # What follows left-out work up to the next forward pass is no step either.
        self._before = None if is_left_out and self._of_forwards else (mark, moment)


def _timed(
    marks: Sequence[Mark], intervals: Iterable[float]
) -> Iterator[tuple[Mark, list[tuple[int, float]]]]:
    """Each mark with the steps that end at each of its moments: one moment, or in a rest as many as
    were marked."""
    moments = itertools.accumulate(intervals, initial=0.0)
    for mark in marks:
        yield mark, list(zip(mark.rest.sizes() if mark.rest else [1], moments, strict=False))


def steps_of(
    marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]
) -> list[LoopStep]:
    """Steps from their marks and the phases that are `done`."""
    steps: list[LoopStep] = []
    for mark, cut in itertools.groupby(
        stretches(marks, intervals), lambda cut: cut[1] if cut[1] is cut[2] else None
    ):
        if mark is not None and mark.rest is not None:
            steps += _rested(mark.rest, [seconds for seconds, _, _ in cut])
        else:
            for between in cut:
                steps.append(_watched(*between, phases, done))
    return steps


def _watched(
    seconds: float, before: Mark, after: Mark, phases: Phases, done: Sequence[Phase]
) -> LoopStep:
    inside = done[before.phases : after.phases]
    counted = any(phase.counted for phase in inside)
    compiled = before.compiled != after.compiled
    return LoopStep(seconds, phases.cost(inside), samples_of(inside), counted, compiled)


def named_stretches(
    marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]
) -> Iterator[tuple[str, LoopStep]]:
    """Gives the name of each named phase that ended, and its stretch; one inside another is part of
    both."""
    begun: list[tuple[Mark, float]] = []
    for mark, ends in _timed(marks, intervals):
        if mark.rest is not None:
            begun = []
        elif mark.what == "phase":
            begun.append((mark, ends[0][1]))
        elif mark.what == "phase end" and begun:
            before, since = begun.pop()
            yield mark.name, _watched(ends[0][1] - since, before, mark, phases, done)


def _rested(rest: UnwatchedSteps, seconds: Sequence[float]) -> list[LoopStep]:
    cost = None
    if not rest.doubtful:
        cost = rest.cost
    steps = [
        LoopStep(step_s, cost, rest.samples, counted=False, watched=False) for step_s in seconds
    ]
    last = rest.sizes()[-1]
    if rest.odd:  # which of those that share a mark is not known
        steps[-last:] = [replace(step, cost=None, samples=None) for step in steps[-last:]]
    first = rest.ticks - len(steps)
    for place in rest.compiled:
        begin = place // rest.group * rest.group
        for index in range(max(0, begin - first), min(len(steps), begin - first + rest.group)):
            steps[index] = replace(steps[index], compiled=True)
    return steps


def steady(steps: Sequence[LoopStep], watch_s: float) -> Sequence[LoopStep]:
    """Steps whose time is a measure: not counted, not compiled, nor slowed by hooks, which take
    `watch_s` of a step."""
    whole = []
    for step in steps:
        if not step.counted and not step.compiled:
            whole.append(step)
    alone = []
    for step in whole:
        if not step.watched:
            alone.append(step)
    if (
        len(alone) >= FEWEST_WINDOWS
        and watch_s > HEAVY * Stats([step.seconds for step in alone]).median
    ):
        return alone
    return whole or [step for step in steps if not step.counted] or steps


def measuring_percent(steps: Sequence[LoopStep], watch_s: float, tick_s: float) -> float | None:
    """Share of the host's time in these steps that went to measuring: hooks where they were on,
    else the mark alone; None for steps under the counter, which hides it."""
    spent = sum(min(watch_s, step.seconds) if step.watched else tick_s for step in steps)
    if steps[0].counted:
        return None
    return 100 * spent / (sum(step.seconds for step in steps) or 1.0)


def left_out(steps: Sequence[LoopStep], chosen: Sequence[LoopStep]) -> dict[str, Cell]:
    """Columns of the steps that are not timed, and why; and of those that are, which ones were
    slow."""
    compiled = []
    for index, step in enumerate(steps, 1):
        if step.compiled and not step.counted:
            compiled.append(index)
    timed = set(map(id, chosen))
    counted = sum(step.counted for step in steps)
    untimed = []
    for step in steps:
        if id(step) not in timed:
            untimed.append(step)
    return {
        "counted_steps": counted,
        "only_counted": len(steps) if counted == len(steps) else 0,
        "compiled_steps": len(compiled),
        "compiled_places": _places(compiled),
        "slow_places": _places(_slow(steps, chosen)),
        "watched_steps": sum(not (step.counted or step.compiled) for step in untimed),
        "mean_of_all_s": _mean_s(steps),
    }


def _slow(steps: Sequence[LoopStep], chosen: Sequence[LoopStep]) -> list[int]:
    """Places of the slow steps among the chosen; none where their mean shows no trace of them."""
    middle = Stats([step.seconds for step in chosen]).median
    if abs(_mean_s(chosen) - middle) <= MEAN_APART * middle:
        return []
    slow = set()
    for step in chosen:
        if step.seconds > SLOW * middle:
            slow.add(id(step))
    found = []
    for index, step in enumerate(steps, 1):
        if id(step) in slow:
            found.append(index)
    return found


def _mean_s(steps: Sequence[LoopStep]) -> float:
    return sum(step.seconds for step in steps) / len(steps)


def _places(numbers: Sequence[int]) -> str | None:
    """Numbers as a cell, of many the first; None for none."""
    shown = list(map(str, numbers[:SHOWN]))
    if len(numbers) > SHOWN:
        shown.append("…")
    return ", ".join(shown) or None


def work_of_batch(
    steps: Sequence[LoopStep], models: Sequence[torch.nn.Module], batch: object
) -> WindowWork:
    """Work of steps that each compute `batch`, counted on tensors without data."""
    from mfulab.flops.count import CountError
    from mfulab.loop.interactive.without_data import count_call

    if not models:
        return _unknown(Said("batch_needs_model"))
    try:
        cost = cost_of(count_call(models[0], batch, backward=models[0].training).operations)
    except CountError as error:
        return _unknown(joined([error.said, Said("give_flops_per_step")]))
    return same_work(
        steps, cost, Reading(cost.model, "", "counted of `batch` on tensors without data")
    )


def same_work(steps: Sequence[LoopStep], cost: Cost, reading: Reading) -> WindowWork:
    """Work of steps that all cost the same."""
    return WindowWork(
        cost_of_all([(cost, len(steps))]), len(steps), sum(step.seconds for step in steps), reading
    )


def counted_work(steps: Sequence[LoopStep], phases: Phases) -> WindowWork:
    """Work of steps as a counter saw it."""
    with_cost = []
    for step in steps:
        if step.cost is not None:
            with_cost.append(step)
    if phases.failure or not with_cost:
        why = Said("no_counted_kind")
        if phases.failure:
            why = Said("counter_gave_up", {"failure": phases.failure})
        elif phases.costs.differing:
            why = phases.costs.differing
        return _unknown(joined([why, HOW_TO_GIVE]))
    costs = {id(step.cost): step.cost for step in with_cost}
    counts = Counter(id(step.cost) for step in with_cost)
    total = cost_of_all(
        [(cost, counts[index]) for index, cost in costs.items() if cost is not None]
    )
    if not total.model:
        return _unknown(joined([Said("no_operator_with_formula"), HOW_TO_GIVE]))
    counted, derived = phases.costs.numbers
    left = len(steps) - len(with_cost)
    parts = (
        f"operators of {counted} kinds of phases, each counted once",
        f"{derived} kinds cost what counted ones of as many elements cost" * bool(derived),
        f"did not run and cost nothing: {', '.join(phases.unused)}" * bool(phases.unused),
        f"{left} of {len(steps)} steps are of kinds that were not counted and left out of MFU"
        * bool(left),
    )
    reading = Reading(total.model / len(with_cost), "", "; ".join(filter(None, parts)))
    return WindowWork(total, len(with_cost), sum(step.seconds for step in with_cost), reading)


def _unknown(reason: Said | None) -> WindowWork:
    return WindowWork(None, 0, 0.0, Reading(None, "", "counted", reason=reason))


def samples_reading(steps: Sequence[LoopStep]) -> Readings:
    """Reason for which some of these steps have no known samples; empty where all are."""
    if all(step.samples is not None for step in steps):
        return {}
    return {"samples_per_s": Reading(None, "1/s", "batches of the models", reason=UNKNOWN)}


def times(
    steps: Sequence[LoopStep], readings: Readings, device: torch.device
) -> dict[str, float | str | None]:
    """Columns of the steps' times, and of how closely they were watched."""
    seconds = [step.seconds for step in steps]
    samples = [step.samples for step in steps]
    size = max(1, len(seconds) // _STRETCHES)
    cut = [
        seconds[start : start + size]
        for start in range(0, size * min(_STRETCHES, len(seconds)), size)
    ]
    interval = median_interval([Stats(stretch).median for stretch in cut]) or (None, None)
    stats = Stats(seconds)
    batches = drop_none(samples)
    return {
        "steps": len(steps),
        "window_s": sum(seconds),
        "time_s": stats.median,
        "time_p5_s": stats.percentile(5),
        "time_p95_s": stats.percentile(95),
        "time_ci_low_s": interval[0],
        "time_ci_high_s": interval[1],
        "samples_per_s": sum(batches) / sum(seconds)
        if len(batches) == len(steps) and any(batches)
        else None,
        "ladder": sources_answered(readings),
        "restriction": restriction_of(device) or None,
    }


@dataclass(frozen=True)
class Site:
    """Model, devices and peaks under steps. `dtype` is that of the model's parameters, which
    `lies_on` hold; `peaks` gives the peaks of FLOPs by format, needed and executed."""

    dtype: torch.dtype
    device: torch.device
    lies_on: Sequence[torch.device]
    peaks: Callable[[Flops, Flops], WeightedPeaks]

    def peaks_of(self, cost: Cost | None) -> WeightedPeaks:
        """Peaks under the work of a window; without work its format alone is known."""
        if cost is None:
            precision = allowed_precision(self.dtype, self.device, convolutions=False)
            return WeightedPeaks(StepPeaks(effective_precision=precision))
        return self.peaks(cost.formats, cost.executed_formats)

    @property
    def why_no_mfu(self) -> Said | None:
        """Reason why no peak is that of the model; None where one is."""
        if len(self.lies_on) < 2:
            return None
        return Said("lies_on_several", {"places": ", ".join(map(str, self.lies_on))})


@dataclass(frozen=True)
class Window:
    """The account of a window's mean step, its columns, and why some of them are empty."""

    account: Account
    columns: dict[str, Cell]
    readings: Readings


def accounted(work: WindowWork, site: Site, seen: Mapping[str, Cell]) -> Window:
    """The account of the mean step, since all FLOPs count. `seen` are the columns of its times, its
    counters and of what a trace told; `mean_s` is the step where its work is not known."""
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
        return Window(step, shares, readings)
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
    return Window(step, columns, readings)


_OF_OFU = ("expected_mfu_percent", "ofu_percent")
_OF_TRACE = ("executed_percent", "issued_percent")
_SHARES = tuple(
    one.name
    for one in fields(Shares)
    if one.name not in (*_OF_OFU, *_OF_TRACE, "useful_mfu_percent")
)


def _step_time(work: WindowWork, seen: Mapping[str, Cell]) -> StepTime:
    """The mean step's time, without the interval, which is of the median step."""
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
    """Formats alone, where the peaks are not those of all devices that the model lies on."""
    return StepPeaks(
        effective_precision=peaks.effective_precision,
        peak_precision=peaks.peak_precision,
        peak_clock_mhz=peaks.peak_clock_mhz,
    )


def _attainable(
    step: Account, work: WindowWork, weighted: WeightedPeaks, device: torch.device
) -> Reading:
    """MFU in percent of a step in which each product runs on its own roofline, or why it is not
    known."""
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
    """Row of a named phase: calls, times, FLOPs and shares of a call, and the share of the steps'
    time. Stretches under the counter are timed only where there is no other."""
    timed = [one for one in stretches if not one.counted and not one.compiled] or stretches
    window = accounted(counted_work(timed, phases), site, {"clock_mhz": clock_mhz})
    mean_s = _mean_s(timed)
    step_s = None
    if steps:
        alone = steady(steps, 0.0)
        step_s = len(steps) * sum(step.seconds for step in alone) / len(alone)
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
    """Readings of laps as those of all: means weighted by the laps' seconds, sums and largest
    values."""
    if len(laps) == 1:
        return laps[0][1]
    joined: Readings = {}
    for name in dict.fromkeys(name for _, readings in laps for name in readings):
        of_all = []
        for seconds, readings in laps:
            if name in readings:
                of_all.append((seconds, readings[name]))
        measured = []
        for seconds, reading in of_all:
            if reading.value is not None:
                measured.append((seconds, reading, reading.value))
        joined[name] = of_all[0][1]
        if measured:
            weights, parts, values = zip(*measured, strict=True)
            mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(
                weights
            )
            if name in _SUMMED:
                value = sum(values)
            elif name in _LARGEST:
                value = max(values)
            else:
                value = mean
            joined[name] = replace(
                parts[-1], value=value, window_s=total(*(part.window_s for part in parts))
            )
    return joined
