"""The ladder of a job from its processes' journals: wall time, devices held, in steps, steps kept,
MFU, useful tokens. All times are whole nanoseconds, so that shares add up to the wall time
exactly."""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_bytes
from mfulab.core.parts import Record, drop_none
from mfulab.core.rows import LARGEST
from mfulab.core.said import Said, said_by
from mfulab.mfu.step import Known
from mfulab.mfu.utilization import of_peak, percent, product, ratio, total

# Shares in percent, each a part of the one before: of ranks × wall time; from `mfu` on, of the
# FLOPs that their peaks offer in it.
RUNGS = ("held", "in_steps", "kept", "mfu", "useful_mfu")
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Moment = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]  # a clock may be set to before 1970
Quantity = Annotated[float, Field(ge=0, le=LARGEST)]


class Head(BaseModel):
    """First line of a process's journal; `unix_ns` and `boot_ns` are the begin of the process on
    two clocks."""

    rank: Count
    world: Count = 1
    host: str
    unix_ns: Moment
    boot: str | None = None
    boot_ns: Moment | None = None


class JournalLine(BaseModel):
    """Any other line: what the time since the previous line was spent on, up to `ns` after the
    process began."""

    ns: Count
    spans: dict[str, Count] = {}
    step: Count | None = None
    beside: dict[str, Count] = {}
    rank: Count | None = None
    world: Count | None = None
    flops: Quantity | None = None
    peak_tflop_s: Quantity | None = None
    useful: Quantity | None = None
    steps: Count = 1

    @property
    def trains(self) -> bool:
        """True if steps ended in it."""
        return not {"first_step", "step"}.isdisjoint(self.spans)


@dataclass
class Attempt:
    """One process of the job: its clock, its begin on that clock, and its lines, the first of them
    empty. `boot_ns` is None if the clock may have been set meanwhile; `torn` counts unreadable
    lines."""

    name: str
    rank: int
    world: int
    clock: str
    began: int
    boot_ns: int | None
    lines: list[JournalLine]
    torn: int = 0

    @property
    def ended(self) -> int:
        """Time of the process's last line, in ns of its clock."""
        return self.began + self.lines[-1].ns

    @property
    def first(self) -> int | None:
        """Number of the job's steps done before the process's own first step; None if it finished
        none."""
        for before, line in itertools.pairwise(self.lines):
            if line.trains:
                return before.step
        return None


@dataclass(frozen=True)
class Stretch:
    """Nanoseconds of a rank from `began`, by what they were spent on; `down` while no process of
    the rank was alive."""

    rank: int
    began: int
    spans: Mapping[str, int]


@dataclass
class KeptSteps:
    """Number and ns of a rank's kept steps, without the first step of each process."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True)
class StepShares:
    """MFU of the kept steps in percent, and the useful share of their tokens; None if unknown."""

    mfu_percent: Known = None
    useful: Known = None


@dataclass
class JobTime:
    """Wall time of a job in ns, and its stretches, whose spans sum to ranks × wall. Of the spans,
    `step` is time of steps that were kept, `lost` of steps that were run again, and `unknown` what
    no line covers. `timed` holds the kept steps of each rank."""

    folder: str
    wall: int
    attempts: int
    timed: dict[int, KeptSteps] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    kept_steps: int = 0
    lost_steps: int = 0
    beside: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[str, Record]] = field(default_factory=list)
    of_steps: StepShares = StepShares()

    @property
    def spans(self) -> Counter[str]:
        """Nanoseconds of all ranks together, by what they were spent on."""
        spans: Counter[str] = Counter()
        for stretch in self.stretches:
            spans.update(stretch.spans)
        return spans

    def row(self) -> Record:
        """Columns of the job: seconds and steps as means over the ranks, percents as shares in
        RUNGS."""
        spans = self.spans
        ranks = len(self.timed)
        offered = self.wall * ranks
        mfu = product(ratio(spans["step"], offered), self.of_steps.mfu_percent)
        row: Record = {
            "job": self.folder,
            "ranks": ranks,
            "attempts": self.attempts,
            "wall_s": self.wall / 1e9,
            "held_percent": percent(offered - spans["down"], offered),
            "in_steps_percent": percent(spans["step"] + spans["lost"], offered),
            "kept_percent": percent(spans["step"], offered),
            "mfu_percent": mfu,
            "useful_mfu_percent": product(mfu, self.of_steps.useful),
            "mfu_of_steps_percent": self.of_steps.mfu_percent,
            "kept_steps": self.kept_steps / ranks,
            "lost_steps": self.lost_steps / ranks,
        }
        for name, span_ns in spans.most_common():
            row[f"{name}_s"] = span_ns / 1e9 / ranks
        for name, span_ns in self.beside.items():
            row[f"beside_{name}_s"] = span_ns / 1e9 / ranks
        return row


def job_of(folder: Path) -> JobTime:
    """Computes the ladder of the job whose journals are in `folder`. Raises ConfigurationError if
    there is no journal, or if a rank ran twice at once."""
    attempts, unread = _attempts(folder)
    _one_clock(attempts)
    attempts.sort(key=lambda attempt: (attempt.rank, attempt.began))
    ranks = dict[int, list[Attempt]]()
    for attempt in attempts:
        ranks.setdefault(attempt.rank, []).append(attempt)
    job = JobTime(folder=folder.name, wall=0, attempts=max(map(len, ranks.values())))
    for before, after in itertools.pairwise(attempts):
        if after.rank == before.rank and after.began < before.ended:
            _push_apart(folder, job, before, after)
    began = min(attempt.began for attempt in attempts)
    ended = max(attempt.ended for attempt in attempts)
    job.wall = ended - began
    for of_rank in ranks.values():
        _account(job, of_rank, began, ended)
    job.of_steps = _shares_of_steps(job, ranks)
    for reason in unread:
        job.notes.append(("unread", {"reason": reason}))
    torn = sum(attempt.torn for attempt in attempts)
    if torn:
        job.notes.append(("torn", {"count": torn}))
    world = max(attempt.world for attempt in attempts)
    if world > len(ranks):
        job.notes.append(("ranks", {"count": len(ranks), "world": world}))
    return job


def _attempts(folder: Path) -> tuple[list[Attempt], list[str]]:
    """Reads the journals in a folder. Returns them, and the reasons why others cannot be read.
    Raises ConfigurationError if there is none."""
    attempts = list[Attempt]()
    unread = list[Said]()
    for file in sorted(folder.glob("*.jsonl")):
        try:
            attempt = read(file)
        except (FileNotFoundError, UnreadableError) as error:
            unread.append(said_by(error))
            continue
        if attempt is not None:
            attempts.append(attempt)
    if not attempts:
        detail = Said("in_parentheses", words=unread[0]) if unread else ""
        raise ConfigurationError(Said("no_journal", folder=str(folder), detail=detail))
    return attempts, list(map(str, unread))


def _push_apart(folder: Path, job: JobTime, before: Attempt, after: Attempt) -> None:
    """Moves the begin of an attempt to the end of the one before, with a note that their clocks
    differ. Raises ConfigurationError if the same clock shows that both ran at once."""
    if after.clock == before.clock and after.boot_ns is not None:
        raise ConfigurationError(
            Said(
                "rank_ran_twice",
                folder=str(folder),
                rank=after.rank,
                first=before.name,
                second=after.name,
            )
        )
    seconds = (before.ended - after.began) / 1e9
    job.notes.append(("clock", {"rank": after.rank, "seconds": seconds}))
    after.began = before.ended


def read(file: Path) -> Attempt | None:
    """Reads a process's journal; None if its first line is invalid. Raises FileNotFoundError or
    UnreadableError."""
    first, *texts = read_bytes(file, follow=True).split(b"\n")
    try:
        head = Head.model_validate_json(first)
    except ValidationError:
        return None
    attempt = Attempt(
        name=file.name,
        rank=head.rank,
        world=head.world,
        clock=f"{head.host} {head.boot}",
        began=head.unix_ns,
        boot_ns=head.boot_ns if head.boot else None,
        lines=[JournalLine(ns=0, step=0)],
    )
    for text in filter(None, texts):
        last = attempt.lines[-1]
        try:
            line = JournalLine.model_validate_json(text)
        except ValidationError:
            attempt.torn += 1
            continue
        if line.beside:  # of another thread: ends no span
            line.ns = last.ns
            line.spans = {}
        if line.ns - last.ns < sum(line.spans.values()):
            attempt.torn += 1
            continue
        line.step = last.step if line.step is None else line.step
        attempt.rank = attempt.rank if line.rank is None else line.rank
        attempt.world = line.world or attempt.world
        attempt.lines.append(line)
    return attempt


def _one_clock(attempts: Sequence[Attempt]) -> None:
    """Sets all attempts to one clock: on one machine by its boot, between machines by the steps
    that they share. Ranks end a step together, so the smallest median difference between their ends
    of steps is that of the clocks."""
    clocks = dict[str, list[Attempt]]()
    for attempt in sorted(attempts, key=lambda attempt: (attempt.rank, attempt.boot_ns or 0)):
        clocks.setdefault(attempt.clock, []).append(attempt)
    reference, *others = clocks.values()
    for alike in clocks.values():
        anchor = alike[0].boot_ns
        start = alike[0].began
        for attempt in alike:
            if attempt.boot_ns is not None and anchor is not None:
                attempt.began = start + attempt.boot_ns - anchor
    for alike in others:
        apart = list[int | None]()
        for attempt, other in itertools.product(alike, reference):
            if attempt.rank != other.rank:
                apart.append(_apart(attempt, other))
        ahead = min(drop_none(apart), key=abs, default=0)
        for attempt in alike:
            attempt.began -= ahead


def _apart(attempt: Attempt, other: Attempt) -> int | None:
    """Nanoseconds by which the clock of `attempt` is ahead, by the steps that both recorded; None
    if there are none."""
    ends = _ends_of_steps(attempt)
    others = _ends_of_steps(other)
    gaps = [ends[step] - others[step] for step in ends.keys() & others.keys()]
    if gaps:
        return round(statistics.median(gaps))
    return None


def _ends_of_steps(attempt: Attempt) -> dict[int | None, int]:
    ends = dict[int | None, int]()
    for line in attempt.lines:
        if line.trains:
            ends[line.step] = attempt.began + line.ns
    return ends


def _account(job: JobTime, attempts: Sequence[Attempt], began: int, ended: int) -> None:
    """Adds the stretches of one rank's wall time: its attempts, in order, and the gaps between
    them."""
    rank = attempts[0].rank
    job.timed[rank] = KeptSteps()
    now = began
    for index, attempt in enumerate(attempts):
        job.stretches.append(Stretch(rank, now, {"down": attempt.began - now}))
        # A step that a later attempt runs again is lost, whichever attempt ran it.
        limit = min(drop_none(later.first for later in attempts[index + 1 :]), default=None)
        for before, line in itertools.pairwise(attempt.lines):
            spans = Counter(line.spans)
            spans["unknown"] = line.ns - before.ns - sum(spans.values())
            job.beside.update(line.beside)
            if line.trains:
                _part_steps(job, job.timed[rank], spans, before, line, limit)
            job.stretches.append(Stretch(rank, attempt.began + before.ns, +spans))
        now = attempt.ended
    job.stretches.append(Stretch(rank, now, {"down": ended - now}))


def _part_steps(
    job: JobTime,
    timed: KeptSteps,
    spans: Counter[str],
    before: JournalLine,
    line: JournalLine,
    limit: int | None,
) -> None:
    """Parts the steps that ended in a line, and their time in `spans`, into kept and lost ones:
    lost are those beyond step `limit`."""
    end = line.step or 0
    steps = max(0, end - (before.step or 0))
    lost = 0
    if limit is not None:
        lost = min(steps, max(0, end - limit))
    spans["lost"] = 0
    if steps:
        spans["lost"] = spans["step"] * lost // steps
    spans["step"] -= spans["lost"]
    job.lost_steps += lost
    job.kept_steps += steps - lost
    if not spans["first_step"]:
        timed.count += steps - lost
        timed.ns += spans["step"]


def _shares_of_steps(job: JobTime, ranks: Mapping[int, Sequence[Attempt]]) -> StepShares:
    """MFU of the kept steps over all ranks, and the share of useful tokens; None if a rank's is
    unknown."""
    flops: Known = 0.0
    offered_tflop: Known = 0.0  # by the peaks, in the time of the kept steps
    useful: Known = 0.0  # the sum over ranks
    seconds = 0.0
    for rank, attempts in ranks.items():
        lines = list[JournalLine]()
        for attempt in attempts:
            lines += [line for line in attempt.lines if line.flops]
        kept = job.timed[rank]
        kept_s = kept.ns / 1e9
        flops = total(flops, product(_per_step(lines, lambda line: line.flops), kept.count))
        peak_tflop_s = _per_step(lines, lambda line: line.peak_tflop_s)
        offered_tflop = total(offered_tflop, product(peak_tflop_s, kept_s))
        useful = total(useful, _per_step(lines, lambda line: line.useful))
        seconds += kept_s
    mean_peak_tflop_s = ratio(offered_tflop, seconds)
    return StepShares(of_peak(flops, seconds, mean_peak_tflop_s), ratio(useful, len(ranks)))


def _per_step(lines: Sequence[JournalLine], amount: Callable[[JournalLine], Known]) -> Known:
    """Mean of an amount over the steps of the lines; None if there are none, or one does not know
    it."""
    steps = 0
    whole: Known = 0.0
    for line in lines:
        steps += line.steps
        whole = total(whole, product(amount(line), line.steps))
    return ratio(whole, steps)
