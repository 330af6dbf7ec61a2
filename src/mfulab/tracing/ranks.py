"""Compares the ranks of one job. Each trace becomes a summary of at most 100 kB. Joined summaries
show the slowest rank, who waits for whom, and the critical path. Only durations of kernels are
compared, so the ranks' clocks need not agree."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter

import numpy as np

from mfulab.core.json_text import parse_json
from mfulab.core.parts import drop_none
from mfulab.core.said import Numbers, Said
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.trace import COMMUNICATION, Floats, Indices, Times

MOST_CALLS = 3000  # calls of collectives that a summary keeps: some 60 kB
MOST_LETTERS = 120  # of a kernel's name
MOST_WAITS = 20
SENDING = -1  # key of the time on the critical path that is no rank's own
LEAST_WAITING = 0.01  # of a step: ranks that wait less than this are even
MOST_OF_WAITING = 0.5  # of all waiting: a rank that causes more than this is the slowest
NEARLY_ALL = 0.9  # of all waiting: the ranks that cause it together are listed
LEAST_CAUSE = 0.1  # of the time that others wait for a rank: a cause explains at least this much
Name = tuple[str, str, int]  # key of a collective on all ranks of its group: kind, group, bytes


@dataclass(frozen=True)
class Calls:
    """Calls of one collective on one rank, in order. Times are in ns; `begins` count from the begin
    of the window."""

    kind: str
    group: str  # the ranks that take part, as the profiler names them; "" if it does not
    bytes: int  # the larger of bytes sent and received; 0 if unknown
    count: int  # all calls in the window; only the first of them are kept
    begins: Sequence[int]
    lengths: Sequence[int]

    @property
    def key(self) -> Name:
        """Key of the collective, the same on all ranks of its group."""
        return self.kind, self.group, self.bytes


@dataclass(frozen=True)
class RankSummary:
    """Summary of one window of one rank: its length, the compute, copy and idle time of a step in
    ns, and its collectives."""

    file: str
    job: str
    rank: str
    steps: int
    first_step: int | None
    last_step: int | None
    window_ns: int
    compute_ns: float
    copy_ns: float
    idle_ns: float
    device: str | None = None
    world_size: int | None = None
    flops: float | None = None
    peak_tflop_s: float | None = None
    mfu_percent: float | None = None
    is_part: bool = False  # True if `flops` covers only a part of its matmuls
    calls: Sequence[Calls] = ()

    @property
    def step_ns(self) -> float:
        """Time of one step in ns."""
        return self.window_ns / self.steps

    def text(self) -> str:
        """Formats the summary as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


def summary_of(text: str | bytes) -> RankSummary:
    """Parses the output of `RankSummary.text`. Raises ValueError, TypeError or KeyError for other
    text."""
    fields = parse_json(text)
    calls = [Calls(**called) for called in fields.pop("calls")]
    return RankSummary(**fields, calls=calls)


def calls_of(facts: OfWindow, device: int | None) -> list[Calls]:
    """Collectives that a device executed in a window: as torch describes them, else communication
    kernels by name."""
    trace, window = facts.trace, facts.window
    spans = defaultdict[Name, list[tuple[int, int]]](list)
    described = facts.transfers(device)
    for transfer in described:
        if window.begin <= transfer.begin < window.end:
            collective = transfer.collective
            key = collective.kind, collective.group, collective.bytes
            spans[key].append((transfer.begin, transfer.end))
    if not described:
        activities = trace.activities
        for index in facts.executed(device).tolist():
            begin = int(activities.begin[index])
            if activities.kind[index] == COMMUNICATION and begin >= window.begin:
                name = trace.names[activities.name[index]][:MOST_LETTERS]
                spans[name, "", 0].append((begin, int(activities.end[index])))
    most = max(1, MOST_CALLS // max(1, len(spans)))
    found = list[Calls]()
    for key, all_calls in list(spans.items())[:MOST_CALLS]:
        kept = sorted(all_calls)[:most]
        begins = [begin - window.begin for begin, _ in kept]
        lengths = [end - begin for begin, end in kept]
        found.append(Calls(*key, len(all_calls), begins, lengths))
    return found


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank in a step, in ms. `waited_for_ms` is how long each other rank waited for it
    on average."""

    rank: str
    step_ms: float
    compute_ms: float
    copy_ms: float
    idle_ms: float
    sending_ms: float
    waiting_ms: float
    waited_for_ms: float


@dataclass(frozen=True)
class Skew:
    """One collective compared across its ranks, as the mean of a rank in ms per step. A rank waits
    until the last one arrives, and sends from then on."""

    kind: str
    group: str
    bytes: int
    ranks: int
    calls: float
    sending_ms: float
    waiting_ms: float
    longest_wait_ms: float  # of one call
    last: str  # the rank that the others waited for most


@dataclass(frozen=True)
class Wait:
    """Time that one rank waits for another, in ms per step."""

    rank: str
    for_rank: str
    ms: float


@dataclass(frozen=True)
class CriticalPath:
    """Parts that a step's length depends on, in ms: each rank's own work, longest first, and
    sending."""

    own_ms: dict[str, float]
    sending_ms: float

    @property
    def length_ms(self) -> float:
        """Milliseconds of a step that the path covers."""
        return sum(self.own_ms.values()) + self.sending_ms


@dataclass(frozen=True)
class Job:
    """Comparison of the ranks of a job."""

    name: str
    world_size: int | None
    ranks: list[RankTimes]
    skews: list[Skew]
    waits: list[Wait]
    path: CriticalPath | None
    verdict: Said
    slowest: str | None  # the rank that the others wait for; None if none stands out
    flops: float | None  # of a step on all ranks; None if unknown for a rank
    peak_tflop_s: float | None  # of all ranks together; None if unknown for a rank
    is_part: bool  # True if a rank's FLOPs cover only a part of its matmuls
    calls_left_out: int = 0


@dataclass
class _Shared:
    """Calls of one collective on all ranks that made them. Per call, holds the shortest duration,
    and the rank that had it, which arrived last."""

    count: int
    shortest: Times
    last: Indices
    ranks: int = 1
    alike: bool = True  # True if all ranks made equally many calls
    longest_wait: int = 0
    sending: int = 0
    waiting: int = 0
    caused: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def matched(self) -> bool:
        """True if several ranks made equally many calls."""
        return self.alike and self.ranks > 1

    @property
    def scale(self) -> float:
        """All calls ÷ the kept ones."""
        return self.count / max(1, len(self.shortest))


class _Joined:
    """Joins the ranks of a job, reading them one after another, twice. Memory holds one summary,
    and one duration per call of a collective."""

    def __init__(self, read: Callable[[int], RankSummary], count: int) -> None:
        self.read = read
        self.count = count
        self.shared = dict[Name, _Shared]()
        self.left_out = 0
        self.names = list[str]()
        for rank in range(count):
            summary = read(rank)
            self.names.append(summary.rank)
            for calls in summary.calls:
                self._add(rank, calls)

    def _add(self, rank: int, calls: Calls) -> None:
        lengths = np.array(calls.lengths, np.int64)
        shared = self.shared.get(calls.key)
        if shared is None:
            last = np.full(len(lengths), rank)
            self.shared[calls.key] = _Shared(calls.count, lengths, last)
            self.left_out += calls.count - len(lengths)
            return
        shared.ranks += 1
        shared.alike = shared.alike and shared.count == calls.count
        kept = min(len(lengths), len(shared.shortest))
        shorter = lengths[:kept] < shared.shortest[:kept]
        shared.shortest = np.where(shorter, lengths[:kept], shared.shortest[:kept])
        shared.last = np.where(shorter, rank, shared.last[:kept])

    def add_waits(self, summary: RankSummary) -> tuple[float, float, Floats]:
        """Returns the ns that a rank sent, waited in all, and waited for each rank. Adds them to
        the sums of each collective."""
        sending = 0.0
        waits = np.zeros(self.count)
        for calls in summary.calls:
            shared = self.shared[calls.key]
            if not shared.matched:
                continue
            kept = len(shared.shortest)
            wait = np.array(calls.lengths[:kept], np.int64) - shared.shortest
            shared.sending += int(shared.shortest.sum())
            shared.waiting += int(wait.sum())
            shared.longest_wait = max(shared.longest_wait, int(wait.max(initial=0)))
            sending += shared.scale * float(shared.shortest.sum())
            for_ranks = np.bincount(shared.last, wait, self.count)
            waits += shared.scale * for_ranks
            for last in np.flatnonzero(for_ranks).tolist():
                shared.caused[last] += int(for_ranks[last])
        return sending, float(waits.sum()), waits

    def path(self, start: int) -> dict[int, int] | None:
        """Nanoseconds of each rank's own work on the critical path, and of sending under SENDING.
        Follows the path back from the end of a rank, at each collective to the rank that arrived
        last. None if it meets no collective."""
        own = defaultdict[int, int](int)
        rank = start
        calls = _Timeline(self.read(rank), self.shared)
        time = calls.end if self.left_out else calls.window_ns
        for _ in range(sum(len(shared.shortest) for shared in self.shared.values()) + 1):
            previous = calls.last_until(time)
            if previous is None:
                own[rank] += time
                if len(own) > 1 or SENDING in own:
                    return dict(own)
                return None
            key, number, end = previous
            shared = self.shared[key]
            own[rank] += time - end
            own[SENDING] += int(shared.shortest[number])
            last = int(shared.last[number])
            if last != rank:
                rank = last
                calls = _Timeline(self.read(rank), self.shared)
            time = calls.begin_of(key, number)
        return None


class _Timeline:
    """Matched collectives of one rank, in order of end."""

    def __init__(self, summary: RankSummary, shared: dict[Name, _Shared]) -> None:
        self.window_ns = summary.window_ns
        self._begins = dict[Name, Sequence[int]]()
        self._calls = list[tuple[Name, int]]()
        ends = list[int]()
        for calls in summary.calls:
            if not shared[calls.key].matched:
                continue
            self._begins[calls.key] = calls.begins
            kept = len(shared[calls.key].shortest)
            pairs = zip(calls.begins[:kept], calls.lengths[:kept], strict=True)
            for number, (begin, length) in enumerate(pairs):
                self._calls.append((calls.key, number))
                ends.append(begin + length)
        self._ends = np.array(ends, np.int64)
        self._order = np.argsort(self._ends, kind="stable")

    @property
    def end(self) -> int:
        return int(self._ends.max(initial=0))

    def begin_of(self, key: Name, number: int) -> int:
        return self._begins[key][number]

    def last_until(self, time: int) -> tuple[Name, int, int] | None:
        """Key, index and end of the last call that ended by a time; None if there is none."""
        ends = self._ends[self._order]
        at = int(np.searchsorted(ends, time, side="right")) - 1
        if at < 0:
            return None
        return *self._calls[self._order[at]], int(ends[at])


def join(read: Callable[[int], RankSummary], count: int) -> Job:
    """Compares the ranks of one job. `read` returns the summaries of ranks 0 to `count` - 1, in
    order."""
    joined = _Joined(read, count)
    names = joined.names
    caused = np.zeros(count)
    waits = list[Wait]()
    ranks = list[RankTimes]()
    flops = list[float | None]()
    peaks = list[float | None]()
    is_part = False
    for rank in range(count):
        summary = read(rank)
        flops.append(summary.flops)
        peak = None
        if summary.mfu_percent is not None:
            peak = summary.peak_tflop_s
        peaks.append(peak)
        is_part = is_part or summary.is_part
        sending, waiting, for_ranks = joined.add_waits(summary)
        caused += for_ranks / summary.steps
        per_step = 1e-6 / summary.steps
        for last in np.argsort(-for_ranks)[:MOST_WAITS].tolist():
            if for_ranks[last] > 0:
                waits.append(Wait(names[rank], names[last], float(for_ranks[last] * per_step)))
        waits = sorted(waits, key=lambda wait: -wait.ms)[:MOST_WAITS]
        ranks.append(_times(summary, sending * per_step, waiting * per_step))
    ms_per_other = 1e-6 / max(1, count - 1)
    for rank, times in enumerate(ranks):
        ranks[rank] = replace(times, waited_for_ms=float(caused[rank] * ms_per_other))
    first = read(0)
    matched = any(shared.matched for shared in joined.shared.values())
    path = None
    if matched:
        path = _path(joined, ranks, first.steps)
    verdict, slowest = _verdict(ranks, caused, matched)
    return Job(
        name=first.job,
        world_size=first.world_size,
        ranks=ranks,
        skews=_skews(joined, first.steps),
        waits=waits,
        path=path,
        verdict=verdict,
        slowest=slowest,
        flops=_sum(flops),
        peak_tflop_s=_sum(peaks),
        is_part=is_part,
        calls_left_out=joined.left_out,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Sum of the values; None if one is unknown."""
    known = drop_none(values)
    if len(known) == len(values):
        return sum(known)
    return None


def _times(summary: RankSummary, sending_ms: float, waiting_ms: float) -> RankTimes:
    return RankTimes(
        rank=summary.rank,
        step_ms=summary.step_ns / 1e6,
        compute_ms=summary.compute_ns / 1e6,
        copy_ms=summary.copy_ns / 1e6,
        idle_ms=summary.idle_ns / 1e6,
        sending_ms=sending_ms,
        waiting_ms=waiting_ms,
        waited_for_ms=0.0,  # known once all ranks are compared
    )


def _path(joined: _Joined, ranks: list[RankTimes], steps: int) -> CriticalPath | None:
    start = max(range(len(ranks)), key=lambda index: (ranks[index].waited_for_ms, -index))
    found = joined.path(start)
    if found is None:
        return None
    sending = found.pop(SENDING, 0) / 1e6 / steps
    longest = sorted(found.items(), key=lambda item: -item[1])
    own = {joined.names[index]: time / 1e6 / steps for index, time in longest if time > 0}
    return CriticalPath(own, sending)


def _skews(joined: _Joined, steps: int) -> list[Skew]:
    skews = list[Skew]()
    for (kind, group, size), shared in joined.shared.items():
        if not shared.matched:
            continue
        per_step = 1e-6 * shared.scale / steps / shared.ranks
        last = max(shared.caused, key=lambda rank: shared.caused[rank], default=0)
        skews.append(
            Skew(
                kind=kind,
                group=group,
                bytes=size,
                ranks=shared.ranks,
                calls=shared.count / steps,
                sending_ms=shared.sending * per_step,
                waiting_ms=shared.waiting * per_step,
                longest_wait_ms=shared.longest_wait / 1e6,
                last=joined.names[last],
            )
        )
    return sorted(skews, key=lambda skew: -skew.sending_ms - skew.waiting_ms)


def _verdict(ranks: list[RankTimes], caused: Floats, matched: bool) -> tuple[Said, str | None]:
    """Sentence on the job, and the rank that the others wait for; None if none stands out."""
    if len(ranks) < 2:
        return Said("rank_alone", rank=ranks[0].rank), None
    if not matched:
        return Said("ranks_unmatched", count=len(ranks)), None
    step = float(np.median([times.step_ms for times in ranks]))
    waiting = float(np.mean([times.waiting_ms for times in ranks]))
    times_waited: Numbers = {"waiting_ms": waiting, "percent": 100 * waiting / step}
    if waiting < LEAST_WAITING * step:
        return Said("ranks_even", times_waited), None
    order = np.argsort(-caused, kind="stable")
    shares = caused[order] / caused.sum()
    slowest = ranks[int(order[0])]
    if shares[0] <= MOST_OF_WAITING:
        count = int(np.searchsorted(np.cumsum(shares), NEARLY_ALL)) + 1
        names = ", ".join(ranks[index].rank for index in sorted(order[:count][:8].tolist()))
        if count > 8:
            names += ", …"
        return Said("ranks_in_turn", **times_waited, count=count, ranks=names), None
    more = {}
    for name in ("compute", "copy", "idle"):
        own_ms = attrgetter(f"{name}_ms")
        more[name] = own_ms(slowest) - float(np.median(list(map(own_ms, ranks))))
    cause = max(more, key=lambda name: more[name])
    if more[cause] < LEAST_CAUSE * slowest.waited_for_ms:
        cause = "unknown"
    verdict = Said(
        f"rank_slowest_{cause}",
        **times_waited,
        rank=slowest.rank,
        waited_ms=slowest.waited_for_ms,
        share=100 * float(shares[0]),
        more_ms=more.get(cause, 0.0),
    )
    return verdict, slowest.rank
