"""Row of a window: its steps from marks, their work, times and shares of the peak, and several laps or ranks as one."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from mfulab.device.compute import allowed_precision
from mfulab.device.gpu import restriction_of
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.samplers.selection import sources_answered
from mfulab.loop.interactive.costs import Cost, Flops, Phase, cost_of, cost_of_all
from mfulab.loop.interactive.peaks import WeightedPeaks, attainable_s
from mfulab.loop.interactive.phases import Phases
from mfulab.loop.interactive.rest import Rest
from mfulab.mfu.utilization import of_peak, percent, product, ratio, tflop_s, total, utilization
from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, median_interval

# Steps are cut into as many stretches for the confidence interval.
_STRETCHES = 5
# Hooks that take more than this share of a step have its time left out, where steps without them are enough.
HEAVY = 0.002
# A mean this much beside the median is explained: by steps so many times as slow, of which as many are named.
MEAN_APART, SLOW, SHOWN = 0.05, 1.5, 8
# Totals of a lap; everything else is a mean over it, and the peak of memory the largest.
_SUMMED, _LARGEST = frozenset({"window_energy_j"}), frozenset({"memory_bytes", "other_processes"})
HOW_TO_GIVE = (
    "give flops_per_step=, such as mfulab.flops_of(model, batch) of the model before it was wrapped"
    " (or batch=, the model's arguments, for a replayed CUDA graph)"
)

What = Literal["begin", "forward", "optimizer", "step", "skip", "rest", "end", "phase", "phase end"]
# What bounds steps: the loop's own word, else forward passes, else the optimiser's steps.
_BOUNDS: tuple[tuple[What, tuple[What, ...]], ...] = (
    ("step", ("begin", "step", "skip")),
    ("forward", ("forward", "end", "skip")),
    ("optimizer", ("begin", "optimizer", "skip")),
)


class Mark(NamedTuple):
    """A moment: how many phases and compilations were over by then; of a rest, the moments of its own steps. `name` is
    that of a named phase which begins or ends."""

    what: What
    phases: int
    compiled: int = 0
    rest: Rest | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: seconds, FLOPs and samples where known, whether it `counted`, was `compiled` in part, or `watched`."""

    seconds: float
    cost: Cost | None
    samples: int | None
    counted: bool
    compiled: bool = False
    watched: bool = True


@dataclass(frozen=True)
class Work:
    """Cost of the steps whose FLOPs are known, their number and their seconds; `reading` says how, or why none are."""

    total: Cost | None
    steps: int
    seconds: float
    reading: Reading


def stretches(marks: Sequence[Mark], intervals: Iterable[float]) -> list[tuple[float, Mark, Mark]]:
    """Seconds of each step and the marks around it, twice its own in a rest, from the seconds between moments."""
    kinds = {mark.what if mark.rest is None else "forward" if mark.rest.of_forwards else "step" for mark in marks}
    wanted, cuts = next((bounds for what, bounds in _BOUNDS if what in kinds), ()), []
    before: tuple[Mark, float] | None = None
    for mark, (size, moment) in ((mark, end) for mark, ends in _timed(marks, intervals) for end in ends):
        if mark.rest is not None:
            is_bound = mark.rest.of_forwards == ("forward" in wanted)
            if is_bound and before is not None:
                cuts += [((moment - before[1]) / size, mark, mark)] * size
            before = (mark, moment) if is_bound else None
        elif mark.what in wanted:
            # What follows the last forward pass that nothing watched is of no known kind.
            if before is not None and mark.what != "skip" and not (before[0].rest and mark.what == "end"):
                cuts.append((moment - before[1], before[0], mark))
            # What follows left-out work up to the next forward pass is no step either.
            before = None if mark.what == "skip" and "forward" in wanted else (mark, moment)
    return cuts


def _timed(marks: Sequence[Mark], intervals: Iterable[float]) -> Iterator[tuple[Mark, list[tuple[int, float]]]]:
    """Each mark with the steps that end at each of its moments: one moment, or in a rest as many as were marked."""
    moments = itertools.accumulate(intervals, initial=0.0)
    for mark in marks:
        yield mark, list(zip(mark.rest.sizes() if mark.rest else [1], moments, strict=False))


def steps_of(marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]) -> list[Step]:
    """Steps from their marks and the phases that are `done`."""
    steps: list[Step] = []
    for mark, cut in itertools.groupby(stretches(marks, intervals), lambda cut: cut[1] if cut[1] is cut[2] else None):
        if mark is not None and mark.rest is not None:
            steps += _rested(mark.rest, [seconds for seconds, _, _ in cut])
        else:
            steps += [_watched(*between, phases, done) for between in cut]
    return steps


def _watched(seconds: float, before: Mark, after: Mark, phases: Phases, done: Sequence[Phase]) -> Step:
    inside = done[before.phases : after.phases]
    counted, compiled = any(phase.counted for phase in inside), before.compiled != after.compiled
    return Step(seconds, phases.cost(inside), samples_of(inside), counted, compiled)


def named_stretches(
    marks: Sequence[Mark], intervals: Iterable[float], phases: Phases, done: Sequence[Phase]
) -> Iterator[tuple[str, Step]]:
    """Gives the name of each named phase that ended, and its stretch; one inside another is part of both."""
    begun: list[tuple[Mark, float]] = []
    for mark, ends in _timed(marks, intervals):
        if mark.rest is not None:
            begun = []
        elif mark.what == "phase":
            begun.append((mark, ends[0][1]))
        elif mark.what == "phase end" and begun:
            before, since = begun.pop()
            yield mark.name, _watched(ends[0][1] - since, before, mark, phases, done)


def _rested(rest: Rest, seconds: Sequence[float]) -> list[Step]:
    cost = None if rest.doubtful else rest.cost
    steps = [Step(step_s, cost, rest.samples, counted=False, watched=False) for step_s in seconds]
    last = rest.sizes()[-1]
    if rest.odd:  # which of those that share a mark is not known
        steps[-last:] = [replace(step, cost=None, samples=None) for step in steps[-last:]]
    first = rest.ticks - len(steps)
    for place in rest.compiled:
        begin = place // rest.group * rest.group
        for number in range(max(0, begin - first), min(len(steps), begin - first + rest.group)):
            steps[number] = replace(steps[number], compiled=True)
    return steps


def steady(steps: Sequence[Step], watch_s: float) -> Sequence[Step]:
    """Steps whose time is a measure: not counted, not compiled, nor slowed by hooks, which take `watch_s` of a step."""
    whole = [step for step in steps if not step.counted and not step.compiled]
    alone = [step for step in whole if not step.watched]
    if len(alone) >= FEWEST_WINDOWS and watch_s > HEAVY * Stats([step.seconds for step in alone]).median:
        return alone
    return whole or [step for step in steps if not step.counted] or steps


def measuring_percent(steps: Sequence[Step], watch_s: float, tick_s: float) -> float | None:
    """Share of the host's time in these steps that went to measuring: hooks where they were on, else the mark alone;
    None for steps under the counter, which hides it."""
    spent = sum(min(watch_s, step.seconds) if step.watched else tick_s for step in steps)
    return None if steps[0].counted else 100 * spent / (sum(step.seconds for step in steps) or 1.0)


def left_out(steps: Sequence[Step], chosen: Sequence[Step]) -> dict[str, Any]:
    """Columns of the steps that are not timed, and why; and of those that are, which ones were slow."""
    compiled = [place for place, step in enumerate(steps, 1) if step.compiled and not step.counted]
    timed, middle = set(map(id, chosen)), Stats([step.seconds for step in chosen]).median
    mean = sum(step.seconds for step in chosen) / len(chosen)
    slow = [place for place, step in enumerate(steps, 1) if id(step) in timed and step.seconds > SLOW * middle]
    return {
        "counted_steps": sum(step.counted for step in steps),
        "only_counted": len(steps) if all(step.counted for step in steps) else 0,
        "compiled_steps": len(compiled),
        "compiled_places": _places(compiled),
        "slow_places": _places(slow) if abs(mean - middle) > MEAN_APART * middle else None,
        "watched_steps": sum(not (step.counted or step.compiled or id(step) in timed) for step in steps),
        "mean_of_all_s": sum(step.seconds for step in steps) / len(steps),
    }


def _places(numbers: Sequence[int]) -> str | None:
    return ", ".join([*map(str, numbers[:SHOWN]), *["…"] * (len(numbers) > SHOWN)]) or None


def samples_of(phases: Sequence[Phase]) -> int | None:
    """Samples that went forward, each call's batch; None if a call has no tensor, or there was none."""
    sizes = [phase.samples for phase in phases if phase.entry.words[0] == "forward"]
    return None if None in sizes or not sizes else sum(size or 0 for size in sizes)


def work_of_batch(steps: Sequence[Step], models: Sequence[torch.nn.Module], batch: Any) -> Work:
    """Work of steps that each compute `batch`, counted on tensors without data."""
    from mfulab.flops.count import CountError
    from mfulab.loop.interactive.without_data import count_call

    if not models:
        return _unknown("batch= needs model= as well")
    try:
        cost = cost_of(count_call(models[0], batch, backward=models[0].training).operations)
    except CountError as error:
        return _unknown(f"{error}; give flops_per_step=")
    return same_work(steps, cost, Reading(cost.model, "", "counted of `batch` on tensors without data"))


def same_work(steps: Sequence[Step], cost: Cost, reading: Reading) -> Work:
    """Work of steps that all cost the same."""
    return Work(cost_of_all([(cost, len(steps))]), len(steps), sum(step.seconds for step in steps), reading)


def counted_work(steps: Sequence[Step], phases: Phases) -> Work:
    """Work of steps as a counter saw it."""
    with_cost = [step for step in steps if step.cost is not None]
    if phases.failure or not with_cost:
        why = f"the counter gave up ({phases.failure})" if phases.failure else phases.costs.differing
        return _unknown(f"{why or 'no step of a kind that was counted'}; {HOW_TO_GIVE}")
    costs = {id(step.cost): step.cost for step in with_cost}
    counts = Counter(id(step.cost) for step in with_cost)
    total = cost_of_all([(cost, counts[place]) for place, cost in costs.items() if cost is not None])
    if not total.model:
        return _unknown(f"no operator with a formula ran in the steps that were counted; {HOW_TO_GIVE}")
    counted, derived = phases.costs.numbers
    left = len(steps) - len(with_cost)
    parts = (
        f"operators of {counted} kinds of phases, each counted once",
        f"{derived} kinds cost what counted ones of as many elements cost" * bool(derived),
        f"did not run and cost nothing: {', '.join(phases.unused)}" * bool(phases.unused),
        f"{left} of {len(steps)} steps are of kinds that were not counted and left out of MFU" * bool(left),
    )
    reading = Reading(total.model / len(with_cost), "", "; ".join(filter(None, parts)))
    return Work(total, len(with_cost), sum(step.seconds for step in with_cost), reading)


def _unknown(reason: str) -> Work:
    return Work(None, 0, 0.0, Reading(None, "", "counted", reason=reason))


def times(steps: Sequence[Step], readings: Readings, device: torch.device) -> dict[str, float | str | None]:
    """Columns of the steps' times, and of how closely they were watched."""
    seconds, samples = [step.seconds for step in steps], [step.samples for step in steps]
    size = max(1, len(seconds) // _STRETCHES)
    cut = [seconds[place : place + size] for place in range(0, size * min(_STRETCHES, len(seconds)), size)]
    interval = median_interval([Stats(stretch).median for stretch in cut]) or (None, None)
    stats, batches = Stats(seconds), [batch for batch in samples if batch is not None]
    return {
        "steps": len(steps),
        "window_s": sum(seconds),
        "time_s": stats.median,
        "time_p5_s": stats.percentile(5),
        "time_p95_s": stats.percentile(95),
        "time_ci_low_s": interval[0],
        "time_ci_high_s": interval[1],
        "samples_per_s": sum(batches) / sum(seconds) if len(batches) == len(steps) and any(batches) else None,
        "ladder": sources_answered(readings),
        "restriction": restriction_of(device) or None,
    }


def shares(
    work: Work,
    dtype: torch.dtype,
    device: torch.device,
    lies_on: Sequence[torch.device],
    clock_mhz: float | None,
    peaks: Callable[[Flops, Flops], WeightedPeaks],
) -> tuple[dict[str, Any], Readings]:
    """Columns of FLOPs, MFU and HFU of the mean step, since all FLOPs count, and why some are missing. `dtype` is that
    of the model's parameters, which `lies_on` hold; `clock_mhz` is the mean clock, None if it is not reported; `peaks`
    gives the peaks of FLOPs by format, needed and executed."""
    readings = {"flops": work.reading}
    if work.total is None:
        precision = allowed_precision(dtype, device, convolutions=False)
        unknown = utilization(None, device=device.type, flops=None, compute={}, memory={})
        return {"effective_precision": precision, "flops": None, **unknown}, readings
    total, whole = work.total, len(lies_on) < 2
    weighted = peaks(total.formats, total.executed_formats)
    if weighted.reason:
        readings["peak_tflop_s"] = Reading(None, "TFLOP/s", "computed peak", reason=weighted.reason)
    if not whole:
        reason = f"the model lies on {', '.join(map(str, lies_on))}: MFU is of one device, and is not formed"
        readings["mfu_percent"] = Reading(None, "%", "counted", reason=reason)
    needed, executed = total.model / work.steps, total.executed / work.steps
    columns = utilization(
        work.seconds / work.steps,
        device=device.type,
        flops=needed,
        executed_flops=executed,
        clock_mhz=clock_mhz,
        compute=weighted.model if whole else {},
        executed_compute=weighted.executed if whole else {},
        memory={},
    )
    best_s, why = attainable_s(total, weighted, device, work.steps)
    mfu = columns["mfu_percent"]
    attainable = _attainable(mfu, ratio(work.seconds / work.steps, best_s), why)
    return {
        "attainable_mfu_percent": attainable.value,
        "uncounted_operators": ", ".join(sorted(total.uncounted)) or None,
        "flops": needed,
        "executed_flops": executed,
        "bytes_moved": total.moved_bytes / work.steps or None,
        **weighted.columns,
        **columns,
        "useful_mfu_percent": product(mfu, ratio(total.useful, total.model)),
    }, {**readings, "attainable_mfu_percent": attainable}


def _attainable(mfu: float | None, slower: float | None, why: str) -> Reading:
    """MFU in percent of a step on the roofline, which takes `slower` times as long; None with the reason `why`."""
    value = product(mfu, slower)
    if mfu is None:
        why = "MFU is not known"
    elif value is not None and value < mfu:
        value, why = None, "it ran above this roofline: a cache held operands, or a ceiling was disturbed"
    return Reading(value, "%", "roofline of each product", reason=why)


def named_row(
    stretches: Sequence[Step], steps: Sequence[Step], phases: Phases, about: tuple[Any, ...]
) -> dict[str, Any]:
    """Row of a named phase: calls, times, FLOPs and shares of a call, and the share of the steps' time. Stretches under
    the counter are timed only where there is no other; `about` is what else `shares` is given."""
    whole = [stretch for stretch in stretches if not stretch.counted and not stretch.compiled] or stretches
    shown, readings = shares(counted_work(whole, phases), *about)
    mean_s = sum(stretch.seconds for stretch in whole) / len(whole)
    timed = steady(steps, 0.0)
    step_s = len(steps) * sum(step.seconds for step in timed) / len(timed) if steps else None
    return {
        "calls": len(stretches),
        "only_counted": all(stretch.counted for stretch in stretches),
        "time_s": Stats([stretch.seconds for stretch in whole]).median,
        "mean_s": mean_s,
        "step_percent": percent(mean_s * len(stretches), step_s),
        "reason": next((reading.reason for reading in readings.values() if reading.reason), None),
        **shown,
    }


def merged(laps: Sequence[tuple[float, Readings]]) -> Readings:
    """Readings of laps as those of all: means weighted by the laps' seconds, sums and largest values."""
    if len(laps) == 1:
        return laps[0][1]
    joined: Readings = {}
    for name in dict.fromkeys(name for _, readings in laps for name in readings):
        of_all = [(seconds, readings[name]) for seconds, readings in laps if name in readings]
        measured = [(seconds, reading, reading.value) for seconds, reading in of_all if reading.value is not None]
        joined[name] = of_all[0][1]
        if measured:
            weights, parts, values = zip(*measured, strict=True)
            mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
            value = sum(values) if name in _SUMMED else max(values) if name in _LARGEST else mean
            joined[name] = replace(parts[-1], value=value, window_s=total(*(part.window_s for part in parts)))
    return joined


def as_job(ranks: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The job's values from those of its ranks' mean steps. What a rank does not know the job does not know either. A
    rank's peak follows from its own MFU."""
    seconds = [rank["seconds"] for rank in ranks]
    slowest = max(range(len(ranks)), key=lambda place: seconds[place] or 0.0)
    longest = seconds[slowest]
    flops, executed = (total(*(rank[name] for rank in ranks)) for name in ("flops", "executed_flops"))
    peak = total(*(ratio(product(100, rank["tflop_s"]), rank["mfu_percent"]) or None for rank in ranks))
    return {
        "ranks": len(ranks),
        "tflop_s": tflop_s(flops, longest),
        "mfu_percent": of_peak(flops, longest, peak),
        "hfu_percent": of_peak(executed, longest, peak),
        "slowest_rank": slowest,
        "rank_mfu_percent": [rank["mfu_percent"] for rank in ranks],
        "rank_step_s": seconds,
    }
