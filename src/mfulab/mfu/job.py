"""Joins the ranks of a job: MFU = FLOPs of all ranks ÷ (slowest step × sum of peaks), and the rank
that others wait for."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, TypeVar

from mfulab.core.columns import Rank
from mfulab.core.files import parse_json
from mfulab.core.parts import Record, Row
from mfulab.mfu.step import Known, group
from mfulab.mfu.utilization import of_peak, percent, tflop_s, total

COLUMNS = (
    "job_ranks",
    "job_time_s",
    "job_mfu_percent",
    "job_slowest_rank",
    "transfer_percent",
    "waiting_percent",
)
# Bytes that cross a link ÷ bytes of the collective, among n processes. Source: nccl-tests,
# doc/PERFORMANCE.md.
BUS: Mapping[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("allgather", "reducescatter", "alltoall"), lambda n: (n - 1) / n),
}
MOST_COLLECTIVES = 20  # kinds and sizes of collectives in one cell
Place = TypeVar("Place")  # a rank, or a device of one
Collective = tuple[str, int, int | None]  # kind, bytes and processes


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of one kind and size of collective, and its number of calls."""

    kind: str
    bytes: int
    processes: int | None
    calls: int
    ms: float
    algorithm_gb_s: Known
    bus_gb_s: Known
    wait_ms: Known


@dataclass(frozen=True)
class LinkUse:
    """Bytes that the collectives of one step send over a link of their process, their number, and
    their time."""

    bytes: float
    calls: float
    busy_s: float  # of their kernels


@dataclass(frozen=True)
class RankShare:
    """Contribution of one rank to a step of its job."""

    time_s: Known = None
    flops: Known = None
    executed_flops: Known = None
    mfu_percent: Known = None
    peak_tflop_s: Known = None  # under its MFU


@dataclass(frozen=True)
class JobShares:
    """One step of a job, which takes as long as its slowest rank."""

    slowest: int  # index of the slowest rank
    time_s: Known
    tflop_s: Known
    mfu_percent: Known
    hfu_percent: Known


def shares_of(ranks: Sequence[RankShare]) -> JobShares:
    """MFU of a job: FLOPs of all ranks ÷ (the slowest step × the sum of peaks). A value that one
    rank does not know is None for the job."""
    slowest = max(range(len(ranks)), key=lambda index: ranks[index].time_s or 0.0)
    time_s = ranks[slowest].time_s
    flops = total(*(rank.flops for rank in ranks))
    executed = total(*(rank.executed_flops for rank in ranks))
    peak = total(*(None if rank.mfu_percent is None else rank.peak_tflop_s for rank in ranks))
    return JobShares(
        slowest=slowest,
        time_s=time_s,
        tflop_s=tflop_s(flops, time_s),
        mfu_percent=of_peak(flops, time_s, peak),
        hfu_percent=of_peak(executed, time_s, peak),
    )


def joined(rows: Sequence[Record]) -> None:
    """Fills in the job's columns, except its verdict, in rows read from traces. They are None in a
    row without a job, or without another rank of it."""
    for row in rows:
        row |= dict.fromkeys(COLUMNS)
        row["collective_bandwidth"] = bandwidths([row])
        row["link_bytes"] = link_bytes(row)
    for ranks in rows_of_jobs(rows):
        shares = shares_of([group(RankShare, row) for row in ranks])
        columns = {
            "job_ranks": len(ranks),
            "job_time_s": shares.time_s,
            "job_mfu_percent": shares.mfu_percent,
            "job_slowest_rank": ranks[shares.slowest]["rank"],
            "collective_bandwidth": bandwidths(ranks),
        }
        waited = waits({_place(row): collectives(row) for row in ranks})
        if waited:
            columns["job_slowest_rank"] = min(waited, key=lambda place: waited[place][1])[0]
        for row in ranks:
            row |= columns
            if waited and row["window_s"]:
                transfer, waiting = waited[_place(row)]
                row["transfer_percent"] = percent(transfer / 1e9, row["window_s"])
                row["waiting_percent"] = percent(waiting / 1e9, row["window_s"])


def bandwidths(ranks: Sequence[Row]) -> str | None:
    """JSON of the bandwidth of each kind and size of collective in GB/s, by its median time; None
    if sizes are unknown. Algorithm bandwidth = bytes ÷ time, bus bandwidth = that × `BUS`. The time
    of a call is the shortest among all ranks. `wait_ms` is what the rank that waits most adds on
    average; None for a single rank."""
    by_rank = list(map(_times_by_collective, ranks))
    found = list[Bandwidth]()
    for collective, times in by_rank[0].items():
        of_ranks = [calls.get(collective, ()) for calls in by_rank]
        # a rank that called it less often, or was cut short, cannot be compared call by call
        is_comparable = all(len(others) == len(times) for others in of_ranks)
        found.append(_bandwidth(collective, of_ranks if is_comparable else [times]))
    if not found:
        return None
    found.sort(key=lambda bandwidth: -bandwidth.ms * bandwidth.calls)
    return json.dumps(list(map(vars, found[:MOST_COLLECTIVES])))


def link_bytes(row: Row) -> Known:
    """Bytes that the collectives of a step send over a link of their process; None if sizes are
    unknown."""
    use = link_use(row)
    if use:
        return use.bytes
    return None


def link_use(row: Row) -> LinkUse | None:
    """Bytes that the collectives of a step send, whatever the algorithm (bytes of each × `BUS`),
    their calls and their time. None if sizes are unknown."""
    by_collective = _times_by_collective(row)
    if not by_collective or not row["steps"]:
        return None
    sent = 0.0
    calls = 0
    busy_ns = 0.0
    for (kind, size, processes), times in by_collective.items():
        sent += len(times) * size * bus_factor(kind, processes)
        calls += len(times)
        busy_ns += sum(times)
    steps = row["steps"]
    return LinkUse(bytes=sent / steps, calls=calls / steps, busy_s=busy_ns / 1e9 / steps)


def _times_by_collective(row: Row) -> dict[Collective, Sequence[float]]:
    """Durations of calls in ns, per kind, bytes and processes."""
    sizes = parse_json(row.get("collective_sizes") or "[]")
    return {(kind, size, processes): times for kind, size, processes, times in sizes}


def _bandwidth(collective: Collective, of_ranks: Sequence[Sequence[float]]) -> Bandwidth:
    """Bandwidth of one collective, from the times of its ranks, which are equally many."""
    kind, size, processes = collective
    shortest = list(map(min, zip(*of_ranks, strict=True)))
    middle = median(shortest)
    algorithm = None
    if middle:
        algorithm = size / middle
    bus = None
    if algorithm is not None:
        bus = bus_factor(kind, processes) * algorithm
    wait_ms = None
    if len(of_ranks) > 1:
        wait_ms = max(_mean_wait(times, shortest) for times in of_ranks) / 1e6
    return Bandwidth(
        kind=kind,
        bytes=size,
        processes=processes,
        calls=len(shortest),
        ms=middle / 1e6,
        algorithm_gb_s=algorithm,
        bus_gb_s=bus,
        wait_ms=wait_ms,
    )


def bus_factor(kind: str, processes: int | None) -> float:
    """Bus bandwidth ÷ algorithm bandwidth; 1 if the kind or the number of processes is unknown."""
    for name, factor_of in BUS.items():
        if name in kind and processes:
            return factor_of(processes)
    return 1.0


def _mean_wait(times: Sequence[float], shortest: Sequence[float]) -> float:
    """Mean of the differences to the shortest times."""
    return mean(time - least for time, least in zip(times, shortest, strict=True))


def as_job(ranks: Sequence[RankShare]) -> dict[str, object]:
    """Values of a loop's job, from its ranks' mean steps."""
    shares = shares_of(ranks)
    return {
        "ranks": len(ranks),
        "tflop_s": shares.tflop_s,
        "mfu_percent": shares.mfu_percent,
        "hfu_percent": shares.hfu_percent,
        "slowest_rank": shares.slowest,
        "rank_mfu_percent": [rank.mfu_percent for rank in ranks],
        "rank_step_s": [rank.time_s for rank in ranks],
    }


RANK = tuple(Rank.model_fields)


def rank_rows(row: Row) -> list[dict[str, Known]]:
    """Rows of a profiled job's ranks, with MFU by each rank's own time; empty for a single process.
    Raises ValueError for NaN."""
    rows: list[Record] = parse_json(row.get("ranks") or "[]")
    mfu = row.get("mfu_percent")
    slowest_s = row.get("time_s")
    for rank in rows:
        rank["mfu_percent"] = None
        if mfu is not None and slowest_s and rank["time_ms"]:
            rank["mfu_percent"] = mfu * 1e3 * slowest_s / rank["time_ms"]
    return [{name: rank.get(name) for name in RANK} for rank in rows]


def collectives(row: Row) -> Mapping[str, Sequence[int]]:
    """Durations (ns) of a rank's collectives in order, per name. Raises ValueError or TypeError if
    the cell holds anything else."""
    cell = parse_json(row.get("collectives") or "{}")
    return {str(name): list(map(int, times)) for name, times in dict(cell).items()}


def rows_of_jobs(rows: Iterable[Record]) -> list[list[Record]]:
    """Groups the rows that share a job and its steps, each of another rank; at least two per
    group."""
    jobs = defaultdict[Any, dict[Any, Record]](dict)
    for row in rows:
        is_read = row.get("status") == "ok" and row.get("time_s")
        if is_read and row.get("job") and row.get("rank") is not None:
            key = row.get("recorded"), row["job"], row["first_step"], row["last_step"]
            jobs[key].setdefault(_place(row), row)
    found = list[list[Record]]()
    for ranks in jobs.values():
        if len(ranks) > 1:
            found.append([ranks[rank] for rank in sorted(ranks)])
    return found


def _place(row: Row) -> tuple[int, int]:
    """Rank and device of a row: one rank may drive several devices."""
    return row["rank"], row.get("device_index") or 0


def waits(calls: Mapping[Place, Mapping[str, Sequence[int]]]) -> dict[Place, tuple[int, int]]:
    """Transfer time (the shortest) and waiting time of each rank in ns, over collectives that all
    ranks recorded equally often; empty if there are none."""
    first, *others = calls.values()
    shared = [
        name
        for name in first
        if all(len(other.get(name, ())) == len(first[name]) for other in others)
    ]
    sums = dict.fromkeys(calls, (0, 0))
    for name in shared:
        for times in zip(*(calls[rank][name] for rank in calls), strict=True):
            transfer = min(times)
            for rank, time in zip(calls, times, strict=True):
                sums[rank] = (sums[rank][0] + transfer, sums[rank][1] + time - transfer)
    if shared:
        return sums
    return {}
