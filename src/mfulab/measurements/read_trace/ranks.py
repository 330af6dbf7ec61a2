"""Summarizes the traces of a job's ranks, and joins the summaries to the job."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mfulab.core.files import read_bytes, write_text
from mfulab.core.parts import drop_none
from mfulab.core.said import Said, packed_all
from mfulab.measurements.read_trace.reader import Read, read_file
from mfulab.mfu import job
from mfulab.mfu.three_lines import is_part
from mfulab.mfu.traced import trace_columns
from mfulab.tracing.ranks import Calls, Job, RankSummary, calls_of, join, summary_of
from mfulab.tracing.trace import TraceError, fault

SUMMARY = "rank.json"
MOST_BYTES = 100_000
CACHED_SUMMARIES = 8  # summaries cached in memory while following the critical path


def joined(rows: Sequence[dict[str, Any]]) -> None:
    """Fills the job's columns, including its verdict, in rows that were read from traces."""
    job.joined(rows)
    for row in rows:
        row["job_verdict"] = None
    for ranks in job.rows_of_jobs(rows):
        rank_summaries = [_of_row(row, _calls(row)) for row in ranks]
        if not any(summary.calls for summary in rank_summaries):
            continue  # without collectives no rank waits for another
        verdict = join(rank_summaries.__getitem__, len(rank_summaries)).verdict
        for row in ranks:
            row["job_verdict"] = packed_all([verdict])


def _calls(row: Mapping[str, Any]) -> list[Calls]:
    """Collectives of a row, by name. A row does not keep when they began, so all begins are 0."""
    calls = []
    for name, times in job.collectives(row).items():
        begins = [0] * len(times)
        calls.append(Calls(name, "", 0, len(times), begins, times))
    return calls


def summary(read: Read) -> RankSummary | None:
    """Summary of one row. None if the row failed or has no analysis."""
    analysis = read.analysis
    row = read.row.model_dump()
    if analysis is None or not row["window_s"] or not row["steps"]:
        return None
    calls = calls_of(analysis.held, analysis.device)
    return _of_row(row | trace_columns(row), calls)


def _of_row(row: Mapping[str, Any], calls: Sequence[Calls]) -> RankSummary:
    """Summary of a joined row."""
    per_percent = 1e7 * row["window_s"] / row["steps"]
    rank = "0" if row["rank"] is None else str(row["rank"])
    if row["device_index"] is not None and row["device_index"] != row["rank"]:
        rank = f"{rank}, device {row['device_index']}"
    return RankSummary(
        file=row["trace"],
        job=row["job"] or row["trace"],
        rank=rank,
        steps=row["steps"],
        first_step=row["first_step"],
        last_step=row["last_step"],
        window_ns=round(1e9 * row["window_s"]),
        compute_ns=per_percent * (row["compute_busy_percent"] or 0),
        copy_ns=per_percent * (row["copy_percent"] or 0),
        idle_ns=per_percent * (row["idle_percent"] or 0),
        device=row["device"],
        world_size=row["world_size"],
        flops=row["flops"],
        peak_tflop_s=_number(row["peak_tflop_s"]),
        mfu_percent=_number(row["mfu_percent"]),
        is_part=is_part(row),
        calls=calls,
    )


def _number(cell: object) -> float | None:
    return float(cell) if isinstance(cell, int | float) else None


def summaries(path: Path, **options: Any) -> list[RankSummary]:
    """Summaries of a trace; or the one in a summary file that a sweep wrote, if `path` has its
    name. Raises TraceError."""
    if path.name == SUMMARY:
        try:
            return [summary_of(read_bytes(path, MOST_BYTES, follow=True))]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TraceError(path, Said("no_rank_summary", error=fault(error))) from None
    return drop_none(summary(read) for read in read_file(path, **options))


@dataclass(frozen=True)
class SummaryFile:
    """File with a rank's summary, and the job and steps that decide which other ranks it is joined
    with."""

    file: Path
    job: str
    steps: tuple[int | None, int | None]
    rank: str

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: the numbers in the rank's name."""
        return tuple(int(number) for number in re.findall(r"\d+", self.rank))


def keep(path: Path, folder: Path, **options: Any) -> list[SummaryFile]:
    """Writes the summaries of a trace to a folder. Raises TraceError."""
    written = list[SummaryFile]()
    for number, rank in enumerate(summaries(path, **options)):
        file = folder / f"{number}.json"
        write_text(file, rank.text())
        steps = (rank.first_step, rank.last_step)
        written.append(SummaryFile(file, rank.job, steps, rank.rank))
    return written


def jobs(summary_files: Sequence[SummaryFile]) -> list[Job]:
    """Groups ranks into jobs by name and steps. Each rank counts once, and ranks are in order."""
    by_job = dict[Any, dict[str, SummaryFile]]()
    for of_rank in summary_files:
        by_rank = by_job.setdefault((of_rank.job, of_rank.steps), {})
        by_rank.setdefault(of_rank.rank, of_rank)
    found = list[Job]()
    for by_rank in by_job.values():
        in_order = sorted(by_rank.values(), key=lambda of_rank: of_rank.order)
        files = [of_rank.file for of_rank in in_order]

        @lru_cache(CACHED_SUMMARIES)
        def read(number: int, files: Sequence[Path] = tuple(files)) -> RankSummary:
            return summary_of(files[number].read_bytes())

        found.append(join(read, len(files)))
    return found
