"""Ranks of one job, or devices of one process, joined: MFU of all its devices, and the rank that the others wait for.

MFU of the job = FLOPs of all ranks ÷ (slowest step × sum of their peaks).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfulab.mfu.utilization import of_peak, total
from mfulab.tracing.ranks import waits

COLUMNS = ("job_ranks", "job_time_s", "job_mfu_percent", "job_slowest_rank", "transfer_percent", "waiting_percent")
Row = Mapping[str, Any]


def joined(rows: Sequence[dict[str, Any]]) -> None:
    """Fills the job's columns of rows read from traces; None for a row of no job, or without another rank beside it."""
    for row in rows:
        row |= dict.fromkeys(COLUMNS)
    for ranks in _jobs(rows):
        found = _of_job(ranks)
        waited = waits({_place(row): collectives(row) for row in ranks})
        last = min(waited, key=lambda place: waited[place][1]) if waited else None
        for row in ranks:
            row |= found
            if waited and row["window_s"]:
                transfer, waiting = waited[_place(row)]
                row["transfer_percent"] = 100 * transfer / 1e9 / row["window_s"]
                row["waiting_percent"] = 100 * waiting / 1e9 / row["window_s"]
            if last is not None:
                row["job_slowest_rank"] = last[0]


RANK = ("rank", "time_ms", "mfu_percent", "memory_bytes", "communication_ms", "exposed_ms", "transfer_ms", "waiting_ms")


def rank_rows(row: Row) -> list[dict[str, Any]]:
    """A row a rank of a profiled job: its step, communication and memory as reported, and MFU under its own peak.

    Ranks of a job share the work and the peaks equally. Empty for a run of one process.
    """
    told: list[dict[str, Any]] = json.loads(row.get("ranks") or "[]")
    mfu, slowest_s = row.get("mfu_percent"), row.get("time_s")
    for one in told:
        known = mfu is not None and slowest_s and one["time_ms"]
        one["mfu_percent"] = mfu * 1e3 * slowest_s / one["time_ms"] if known else None  # type: ignore[operator]
    return [{name: one.get(name) for name in RANK} for one in told]


def collectives(row: Row) -> Mapping[str, Sequence[int]]:
    """Nanoseconds of a rank's collectives in order, by name. Raises ValueError or TypeError for cells of none."""
    found = json.loads(row.get("collectives") or "{}")
    return {str(name): [int(each) for each in times] for name, times in dict(found).items()}


def _jobs(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of the same job and steps, each of another rank, two or more."""
    jobs: dict[Any, dict[Any, dict[str, Any]]] = {}
    for row in rows:
        if row.get("status") == "ok" and row.get("job") and row.get("time_s") and row.get("rank") is not None:
            key = (row.get("recorded"), row["job"], row["first_step"], row["last_step"])
            jobs.setdefault(key, {}).setdefault(_place(row), row)
    return [[ranks[place] for place in sorted(ranks)] for ranks in jobs.values() if len(ranks) > 1]


def _place(row: Row) -> tuple[int, int]:
    """Rank and device: a rank may drive several."""
    return row["rank"], row.get("device_index") or 0


def _of_job(ranks: Sequence[Row]) -> dict[str, Any]:
    slowest = max(ranks, key=lambda row: row["time_s"])
    peaks = [row.get("peak_tflop_s") if row.get("mfu_percent") is not None else None for row in ranks]
    flops = total(*(row.get("flops") for row in ranks))
    return {
        "job_ranks": len(ranks),
        "job_time_s": slowest["time_s"],
        "job_mfu_percent": of_peak(flops, slowest["time_s"], total(*peaks)),
        "job_slowest_rank": slowest["rank"],
    }
