"""`mfulab trace DIR --jobs N`: one verdict on all ranks of a job. Several processes reduce each
trace to a summary."""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mfulab.cli.trace_text import NAME, milliseconds, short, table
from mfulab.core.answer import Answer, Doubt, answered, unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity
from mfulab.core.parts import Record, leave_out
from mfulab.core.printing import say, say_json
from mfulab.core.said import Said, of_source
from mfulab.core.terminal import Terminal
from mfulab.core.terminal_language import error_in_words
from mfulab.device.system import end_with_parent, has_semaphores
from mfulab.measurements.read_trace.ranks import SUMMARY, SummaryFile, jobs, keep
from mfulab.measurements.read_trace.reader import files
from mfulab.mfu.utilization import of_peak
from mfulab.tracing.ranks import Job, Skew
from mfulab.tracing.trace import TraceError

SHOWN = 16  # ranks in a table; of more, only those waited for longest
LONGEST = 5


def run(words: Sequence[str], count: int, as_json: bool, language: str, **options: Any) -> int:
    """Reduces every trace to a summary in `count` processes, joins them and prints each job.
    Returns 1 if a file could not be read, else 0."""
    paths = _paths(words)
    with scratch() as folder:
        summaries = list[SummaryFile]()
        errors = list[str]()
        for found, error in _summaries(paths, count, folder, options):
            summaries += found
            if error:
                errors.append(error)
        for error in errors:
            say(f"mfulab trace: {error}", file=sys.stderr)
        found_jobs = jobs(summaries)
    for job in found_jobs:
        if as_json:
            say_json(_answer(job).line(_details(job, language)))
        else:
            _show(job, language)
    return int(bool(errors))


def _paths(words: Sequence[str]) -> list[Path]:
    """The files that the words mean; if a sweep left summaries among them, only these."""
    paths = files(words)
    summaries = [path for path in paths if path.name == SUMMARY]
    return summaries or paths


def _summaries(
    paths: Sequence[Path], count: int, folder: Path, options: Mapping[str, object]
) -> Iterator[tuple[list[SummaryFile], str]]:
    """Yields for each file its summaries, and "" or the reason why it could not be read. Raises
    ConfigurationError if a process is killed."""
    summarise = partial(_summarise, folder=folder, options=options)
    processes = min(count, len(paths))
    start_method = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool: AbstractContextManager[ProcessPoolExecutor | None] = nullcontext()
    if processes > 1 and has_semaphores():
        pool = ProcessPoolExecutor(processes, start_method, end_with_parent, (os.getpid(),))
    try:
        with pool as running:
            mapped = map if running is None else running.map
            yield from mapped(summarise, paths, range(len(paths)))
    except BrokenProcessPool:
        raise ConfigurationError(of_source(f"--jobs {count}", Said("reader_was_ended"))) from None


def _summarise(
    path: Path, number: int, *, folder: Path, options: Mapping[str, object]
) -> tuple[list[SummaryFile], str]:
    numbered = folder / str(number)
    numbered.mkdir()
    try:
        return keep(path, numbered, **options), ""
    except TraceError as error:
        return [], error_in_words(error)


def _step_ms(job: Job) -> float:
    return max(times.step_ms for times in job.ranks)


def _mfu(job: Job) -> float | None:
    return of_peak(job.flops, _step_ms(job) / 1e3, job.peak_tflop_s)


def _answer(job: Job) -> Answer:
    """MFU of the job, with a doubt if the FLOPs of only some matmuls are known. It has no value if
    FLOPs or peak are unknown."""
    mfu = _mfu(job)
    if mfu is None:
        key = "uncounted" if job.flops is None else "no_peak"
        return unanswered("%", Said(key))
    doubt: Doubt = {"least": {}} if job.is_part else {}
    peak = job.peak_tflop_s
    return answered(mfu, "%", "spec", denominator=peak, denominator_unit="TFLOP/s", doubt=doubt)


def path_sentence(job: Job, language: str) -> str:
    """Sentence about the critical path that determines a step's length; "" if there is none."""
    path = job.path
    if path is None or not path.own_ms:
        return ""
    text = Texts(language, "trace")
    (rank, own_ms), *others = path.own_ms.items()
    other_ranks = ""
    if others:
        time_ms = sum(time_ms for _, time_ms in others)
        other_ranks = text("path_others", count=len(others), time=time_ms)
    return text(
        "path",
        rank=rank,
        others=other_ranks,
        own=own_ms,
        length=path.length_ms,
        sending=path.sending_ms,
    )


def _details(job: Job, language: str) -> Record:
    """Fields of the line of JSON."""
    fields = leave_out(asdict(job), ("verdict", "path"))
    path = None
    if job.path:
        path = {**asdict(job.path), "length_ms": job.path.length_ms}
    return {
        **fields,
        "ranks_read": len(job.ranks),
        "step_ms": _step_ms(job),
        "mfu_percent": _mfu(job),
        "verdict": job.verdict.key,
        "verdict_numbers": job.verdict.numbers,
        "verdict_sentence": verdicts.say(job.verdict, language),
        "critical_path": path,
        "critical_path_sentence": path_sentence(job, language) or None,
    }


def _show(job: Job, language: str) -> None:
    console = Terminal()
    text = Texts(language, "trace")
    mfu = _mfu(job)
    shown = "—"
    if mfu is not None:
        shown = f"{'≥ ' if job.is_part else ''}{percent(mfu)} %"
    world = job.world_size or len(job.ranks)
    console.print(text("job", ranks=len(job.ranks), world=world, mfu=shown), style="bold")
    console.print(verdicts.say(job.verdict, language), style="yellow")
    critical_path = path_sentence(job, language)
    if critical_path:
        console.print(critical_path)
    _show_ranks(console, text, job)
    table(console, text, "collectives", map(_skew_line, job.skews[:LONGEST]))
    waits = [
        {"rank": wait.rank, "waits_for": wait.for_rank, "ms": milliseconds(wait.ms)}
        for wait in job.waits[:LONGEST]
    ]
    table(console, text, "waits", waits)
    if job.calls_left_out:
        console.print(text("calls_left_out", count=job.calls_left_out), style="dim")


def _skew_line(skew: Skew) -> dict[str, str]:
    size = ""
    if skew.bytes:
        size = f" {quantity(skew.bytes, 'B')}"
    return {
        "collective": short(skew.kind, NAME // 2) + size,
        "group": short(skew.group, 20),
        "ranks_in_group": f"{skew.ranks}",
        "calls": f"{skew.calls:.4g}",
        "sending": milliseconds(skew.sending_ms),
        "waiting": milliseconds(skew.waiting_ms),
        "longest_wait": milliseconds(skew.longest_wait_ms),
        "last": skew.last,
    }


def _show_ranks(console: Terminal, text: Texts, job: Job) -> None:
    ranks = job.ranks
    title = "ranks"
    if len(ranks) > SHOWN:
        ranks = sorted(ranks, key=lambda times: -times.waited_for_ms)[:LONGEST]
        title = "ranks_waited_for"
    lines = []
    for times in ranks:
        mark = " ←" if times.rank == job.slowest else ""
        line = {
            "rank": times.rank + mark,
            "step_time": quantity(times.step_ms / 1e3, "s"),
            "compute_column": milliseconds(times.compute_ms),
            "idle_column": milliseconds(times.idle_ms),
            "sending": milliseconds(times.sending_ms),
            "waiting": milliseconds(times.waiting_ms),
            "waited_for": milliseconds(times.waited_for_ms),
        }
        lines.append(line)
    table(console, text, title, lines)
