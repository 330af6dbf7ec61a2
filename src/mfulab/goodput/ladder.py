"""The ladder of a job from its processes' journals: wall time, devices held, in steps, steps kept, MFU, useful tokens.

All times are whole nanoseconds, so that shares add up to the wall time exactly.
"""

import bisect
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.mfu.utilization import percent, product, ratio, total

RUNGS = ("held", "in_steps", "kept", "mfu", "useful_mfu")
"""Shares of the wall time in percent, each part of the one before: of devices × wall time, and then of their peak."""

Line = Mapping[str, Any]


@dataclass
class Attempt:
    """One process of the job: its rank, when it began on the clock of its machine, and its lines.

    `clock` names that clock: a boot of a machine, within which no setting of the time moves `began`. Lines that could
    not be read are counted in `torn`.
    """

    file: Path
    rank: int
    world: int
    clock: str
    began: int
    lines: list[Line]
    torn: int = 0

    @property
    def ended(self) -> int:
        """Its last sign of life."""
        return self.began + (self.lines[-1]["ns"] if self.lines else 0)

    @property
    def first(self) -> int | None:
        """Steps of the job that were done before its own; None if it came to no step."""
        stepped = [bool({"first_step", "step"} & line["spans"].keys()) for line in self.lines]
        return self.lines[stepped.index(True) - 1]["step"] if True in stepped else None


@dataclass(frozen=True)
class Stretch:
    """Time of a rank from `began`, by what it went to; `down` is where no process of the rank was alive."""

    rank: int
    began: int
    spans: Mapping[str, int]


@dataclass
class Job:
    """A job's wall time in nanoseconds, and where it went: `spans` over all ranks sum to ranks × wall.

    `lost` is the time of steps that were run again, `step` that of those that were kept; `unknown` what no line says.
    `timed` holds each rank's kept steps and their nanoseconds, without the first of a process.
    """

    folder: str
    wall: int
    ranks: list[int]
    world: int
    attempts: int
    stretches: list[Stretch]
    kept_steps: int
    lost_steps: int
    timed: dict[int, list[int]] = field(default_factory=dict)
    beside: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    mfu: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def spans(self) -> Counter[str]:
        """Nanoseconds of all ranks together by what they went to."""
        found: Counter[str] = Counter()
        for stretch in self.stretches:
            found.update(stretch.spans)
        return found

    def row(self) -> dict[str, Any]:
        """What is known as columns: seconds are means over the ranks, `*_percent` are shares of wall time and peak."""
        spans, whole = self.spans, self.wall * len(self.ranks)
        held, kept = whole - spans["down"], spans["step"]
        shares = {"held": held, "in_steps": kept + spans["lost"], "kept": kept}
        found = {f"{name}_percent": percent(part, whole) for name, part in shares.items()}
        of_wall = ratio(kept, whole)
        return {
            "job": self.folder,
            "ranks": len(self.ranks),
            "attempts": self.attempts,
            "wall_s": self.wall / 1e9,
            **found,
            "mfu_percent": product(of_wall, self.mfu.get("steps")),
            "useful_mfu_percent": product(of_wall, self.mfu.get("steps"), self.mfu.get("useful")),
            "mfu_of_steps_percent": self.mfu.get("steps"),
            "kept_steps": self.kept_steps / len(self.ranks),
            "lost_steps": self.lost_steps / len(self.ranks),
            **{f"{name}_s": part / 1e9 / len(self.ranks) for name, part in spans.most_common()},
            **{f"beside_{name}_s": part / 1e9 / len(self.ranks) for name, part in self.beside.items()},
        }


def job_of(folder: Path) -> Job:
    """The ladder of the job whose processes wrote into `folder`.

    Raises ConfigurationError if there is no journal, or if two processes were the same rank at the same time.
    """
    attempts = [found for file in sorted(folder.glob("*.jsonl")) if (found := read(file))]
    if not attempts:
        raise ConfigurationError(f"{folder}: holds no journal; give mfulab.measure or a callback job={folder}")
    _one_clock(attempts)
    ranks = sorted({each.rank for each in attempts})
    job = Job(folder.name, 0, ranks, max(each.world for each in attempts), 0, [], 0, 0)
    for rank in ranks:
        own = sorted((each for each in attempts if each.rank == rank), key=lambda each: each.began)
        job.attempts = max(job.attempts, len(own))
        for before, after in itertools.pairwise(own):
            if after.began < before.ended:
                if after.clock == before.clock:
                    raise ConfigurationError(
                        f"{folder}: rank {rank} ran twice at once, in {before.file.name} and {after.file.name}:"
                        " two jobs wrote here; give each a folder of its own"
                    )
                job.notes.append(("clock", {"rank": rank, "seconds": (before.ended - after.began) / 1e9}))
                after.began = before.ended
    began, ended = min(each.began for each in attempts), max(each.ended for each in attempts)
    job.wall = ended - began
    for rank in ranks:
        _account(job, sorted((each for each in attempts if each.rank == rank), key=lambda e: e.began), began, ended)
    job.mfu = _mfu(attempts, job)
    if torn := sum(each.torn for each in attempts):
        job.notes.append(("torn", {"count": torn}))
    if job.world > len(ranks):
        job.notes.append(("ranks", {"count": len(ranks), "world": job.world}))
    return job


def read(file: Path) -> Attempt | None:
    """A process's journal; None if its first line cannot be read, so that nothing says whose it is."""
    lines = file.read_bytes().split(b"\n")
    try:
        head = dict(json.loads(lines[0]))
        rank, world, began = int(head["rank"]), int(head["world"]), int(head["unix_ns"])
        boot = head.get("boot")
        clock = f"{head['host']} {boot}" if boot else str(head["host"])
        found = Attempt(file, rank, world, clock, began, [])
        # Kept apart until all attempts are known: within a boot its own clock is exact, and the wall clock may be set.
        found.lines.append({"ns": 0, "spans": {}, "step": 0, "boot_ns": int(head["boot_ns"]) if boot else None})
    except (ValueError, KeyError, TypeError):
        return None
    for text in filter(None, lines[1:]):
        try:
            line = dict(json.loads(text))
            passed = int(line["ns"]) - found.lines[-1]["ns"]
            spans = {str(name): int(part) for name, part in dict(line.setdefault("spans", {})).items()}
            if "beside" not in line and (passed < sum(spans.values()) or min(spans.values(), default=0) < 0):
                raise ValueError
            line["step"] = int(line.get("step", found.lines[-1]["step"]))
            {str(name): int(part) for name, part in dict(line.get("beside", {})).items()}
        except (ValueError, KeyError, TypeError):
            found.torn += 1
            continue
        found.rank, found.world = line.get("rank", found.rank), line.get("world", found.world)
        found.lines.append({**line, "spans": spans, "ns": found.lines[-1]["ns"] if "beside" in line else line["ns"]})
    return found


def _one_clock(attempts: Sequence[Attempt]) -> None:
    """Sets all attempts to one clock: the boot's where there is one, and machines together by the steps that they share.

    Ranks of a job end a step together, so that a clock is off by the median difference of steps' ends. Of several
    attempts those count whose difference is least.
    """
    clocks: dict[str, list[Attempt]] = {}
    for each in attempts:
        clocks.setdefault(each.clock, []).append(each)
    for own in clocks.values():
        anchor = min(own, key=lambda each: each.lines[0]["boot_ns"] or each.began)
        for each in own:
            if each.lines[0]["boot_ns"] is not None:
                each.began = anchor.began + each.lines[0]["boot_ns"] - anchor.lines[0]["boot_ns"]
    reference, *others = sorted(clocks.values(), key=lambda own: min(each.rank for each in own))
    for own in others:
        pairs = itertools.product(own, reference)
        apart = [gap for one, other in pairs if one.rank != other.rank and (gap := _apart(one, other)) is not None]
        for each in own:
            each.began -= min(apart, key=abs, default=0)


def _apart(one: Attempt, other: Attempt) -> int | None:
    """Nanoseconds by which the clock of `one` is ahead of the other's, by steps that both ended; None without any."""
    points = {line["step"]: other.began + line["ns"] for line in other.lines if "step" in line["spans"]}
    steps = sorted(points)
    gaps = []
    for line in one.lines:
        place = bisect.bisect_left(steps, line["step"])
        if "step" in line["spans"] and place < len(steps) and (place or steps[0] == line["step"]):
            below, above = steps[max(0, place - (steps[place] != line["step"]))], steps[place]
            along = (line["step"] - below) / ((above - below) or 1)
            there = points[below] + along * (points[above] - points[below])
            gaps.append(round(one.began + line["ns"] - there))
    return round(statistics.median(gaps)) if gaps else None


def _account(job: Job, attempts: Sequence[Attempt], began: int, ended: int) -> None:
    """Adds where a rank's wall time went: its attempts, in order, and the gaps between them."""
    now, timed = began, job.timed.setdefault(attempts[0].rank, [0, 0])
    for place, attempt in enumerate(attempts):
        if attempt.began > now:
            job.stretches.append(Stretch(attempt.rank, now, {"down": attempt.began - now}))
        # A step that a later attempt began again is lost, whoever ran it.
        limit = min((each.first for each in attempts[place + 1 :] if each.first is not None), default=None)
        for before, line in itertools.pairwise(attempt.lines):
            spans = Counter(line["spans"])
            spans["unknown"] = line["ns"] - before["ns"] - sum(spans.values())
            job.beside.update(line.get("beside", {}))
            if spans["step"] or spans["first_step"]:
                steps = max(0, line["step"] - before["step"])
                lost = 0 if limit is None else min(steps, max(0, line["step"] - limit))
                spans["lost"] = spans["step"] * lost // steps if steps else 0
                spans["step"] -= spans["lost"]
                job.lost_steps, job.kept_steps = job.lost_steps + lost, job.kept_steps + steps - lost
                if not spans["first_step"]:
                    timed[0], timed[1] = timed[0] + steps - lost, timed[1] + spans["step"]
            job.stretches.append(Stretch(attempt.rank, attempt.began + before["ns"], +spans))
        now = attempt.ended
    if ended > now:
        job.stretches.append(Stretch(attempts[0].rank, now, {"down": ended - now}))


def _mfu(attempts: Iterable[Attempt], job: Job) -> dict[str, float | None]:
    """MFU of the steps that were kept, over all ranks, and the share of useful tokens; None if a rank's is unknown."""
    sums: dict[str, list[float | None]] = {"flops": [], "peak_tflop_s": [], "useful": []}
    for rank in job.ranks:
        facts = [line for each in attempts if each.rank == rank for line in each.lines if line.get("flops")]
        weights = [line.get("steps") or 1 for line in facts]
        times = {"flops": job.timed[rank][0], "peak_tflop_s": job.timed[rank][1] / 1e9, "useful": 1 / len(job.ranks)}
        for name, factor in times.items():
            parts = (product(line.get(name), weight) for line, weight in zip(facts, weights, strict=True))
            sums[name].append(product(ratio(total(*parts), sum(weights)), factor))
    needed, offered, useful = (total(*each) for each in sums.values())
    return {"steps": percent(needed, product(offered, 1e12)), "useful": useful}
