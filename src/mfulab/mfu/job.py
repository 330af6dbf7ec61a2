"""Ranks of a job joined: MFU = FLOPs of all ÷ (slowest step × sum of peaks), and the rank that others wait for."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any, TypeVar

from mfulab.core.columns import Rank
from mfulab.core.files import parse_json
from mfulab.mfu.utilization import of_peak, percent, total

COLUMNS = ("job_ranks", "job_time_s", "job_mfu_percent", "job_slowest_rank", "transfer_percent", "waiting_percent")
# Bytes that cross a link ÷ bytes of the collective among n processes: nccl-tests, doc/PERFORMANCE.md.
BUS: Mapping[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("allgather", "reducescatter", "alltoall"), lambda n: (n - 1) / n),
}
MOST = 20  # kinds and sizes of collectives
Row = Mapping[str, Any]
Place = TypeVar("Place")  # a rank, or a device of one


def joined(rows: Sequence[dict[str, Any]]) -> None:
    """Fills the job's columns of rows read from traces; None for a row of no job, or without another rank beside it."""
    for row in rows:
        row |= dict.fromkeys(COLUMNS)
        row["collective_bandwidth"] = bandwidths([row])
    for ranks in _jobs(rows):
        slowest = max(ranks, key=lambda row: row["time_s"])
        peaks = total(*(row.get("peak_tflop_s") if row.get("mfu_percent") is not None else None for row in ranks))
        flops = total(*(row.get("flops") for row in ranks))
        values = len(ranks), slowest["time_s"], of_peak(flops, slowest["time_s"], peaks), slowest["rank"]
        columns = dict(zip(COLUMNS, values, strict=False)) | {"collective_bandwidth": bandwidths(ranks)}
        if waited := waits({_place(row): collectives(row) for row in ranks}):
            columns["job_slowest_rank"] = min(waited, key=lambda place: waited[place][1])[0]
        for row in ranks:
            row |= columns
            if waited and row["window_s"]:
                transfer, waiting = waited[_place(row)]
                row["transfer_percent"] = percent(transfer / 1e9, row["window_s"])
                row["waiting_percent"] = percent(waiting / 1e9, row["window_s"])


def bandwidths(ranks: Sequence[Row]) -> str | None:
    """JSON: bandwidth of each kind and size of collective in GB/s by its median time; None where sizes are not told.
    Algorithm bandwidth = bytes ÷ time, bus bandwidth = that × `BUS`. The time is the shortest among all ranks;
    `wait_ms`, what the one that waits most adds in the mean, is None where a rank is alone."""
    told = [{tuple(what): times for *what, times in json.loads(row.get("collective_sizes") or "[]")} for row in ranks]
    kinds = []
    for (kind, size, processes), own in told[0].items():
        several = [times for calls in told if len(times := calls.get((kind, size, processes), ())) == len(own)]
        shared = several if len(several) == len(told) else [own]
        shortest = [min(times) for times in zip(*shared, strict=True)]
        factor = next((of(processes) for name, of in BUS.items() if name in kind and processes), 1.0)
        speed = size / median(shortest) if median(shortest) else None
        waits = [mean(time - least for time, least in zip(times, shortest, strict=True)) for times in shared]
        kinds.append(
            {"kind": kind, "bytes": size, "processes": processes, "calls": len(own), "ms": median(shortest) / 1e6}
            | {"algorithm_gb_s": speed, "bus_gb_s": speed and factor * speed}
            | {"wait_ms": max(waits) / 1e6 if len(shared) > 1 else None}
        )
    return json.dumps(sorted(kinds, key=lambda kind: -kind["ms"] * kind["calls"])[:MOST]) if kinds else None


RANK = tuple(Rank.model_fields)


def rank_rows(row: Row) -> list[dict[str, Any]]:
    """A row a rank of a profiled job, with MFU under its own peak; none for one process. Raises ValueError for NaN."""
    told: list[dict[str, Any]] = parse_json(row.get("ranks") or "[]")
    mfu, slowest_s = row.get("mfu_percent"), row.get("time_s")
    for rank in told:
        is_timed = mfu is not None and slowest_s and rank["time_ms"]
        rank["mfu_percent"] = mfu * 1e3 * slowest_s / rank["time_ms"] if is_timed else None  # type: ignore[operator]
    return [{name: rank.get(name) for name in RANK} for rank in told]


def collectives(row: Row) -> Mapping[str, Sequence[int]]:
    """Nanoseconds of a rank's collectives in order, by name. Raises ValueError or TypeError for cells of none."""
    cell = json.loads(row.get("collectives") or "{}")
    return {str(name): [int(time) for time in times] for name, times in dict(cell).items()}


def _jobs(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows that share a job and its steps, each of another rank, two or more."""
    jobs = defaultdict[Any, dict[Any, dict[str, Any]]](dict)
    for row in rows:
        if row.get("status") == "ok" and row.get("job") and row.get("time_s") and row.get("rank") is not None:
            jobs[row.get("recorded"), row["job"], row["first_step"], row["last_step"]].setdefault(_place(row), row)
    return [[ranks[place] for place in sorted(ranks)] for ranks in jobs.values() if len(ranks) > 1]


def _place(row: Row) -> tuple[int, int]:
    """Rank and device: a rank may drive several."""
    return row["rank"], row.get("device_index") or 0


def waits(calls: Mapping[Place, Mapping[str, Sequence[int]]]) -> dict[Place, tuple[int, int]]:
    """Transfer, the shortest, and waiting of each rank, ns, over collectives that all ranks recorded equally often."""
    first, *others = calls.values()
    shared = [name for name in first if all(len(other.get(name, ())) == len(first[name]) for other in others)]
    sums = dict.fromkeys(calls, (0, 0))
    for name in shared:
        for times in zip(*(calls[rank][name] for rank in calls), strict=True):
            transfer = min(times)
            for rank, time in zip(calls, times, strict=True):
                sums[rank] = (sums[rank][0] + transfer, sums[rank][1] + time - transfer)
    return sums if shared else {}
