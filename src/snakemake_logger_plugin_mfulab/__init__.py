"""Snakemake's output for a long sweep: with `--logger mfulab`, one line a run, at its end. Nothing
is redrawn, which costs cycles of a CPU that is measured; after ten seconds of silence a line names
what runs."""

import csv
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from mfulab.core.language import Texts, verdicts
from mfulab.core.rows import NOT_MEASURED
from mfulab.core.said import Said
from mfulab.core.terminal_language import in_words, terminal_texts, usual_language
from mfulab.lab.planning import snakemake_workarounds
from mfulab.lab.planning.naming import short
from mfulab.lab.planning.rules import UNCOUNTED, own_name
from mfulab.lab.runtime import budget, endings, lifetime
from snakemake_logger_plugin_mfulab import startup
from snakemake_logger_plugin_mfulab.dry_run import DryRun, name_of
from snakemake_logger_plugin_mfulab.snakemake_words import (
    is_of_an_end,
    is_routine,
    is_signalled,
    path_of_log,
)

__all__ = ["LogHandler"]

QUIET_EVENTS = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.JOB_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.PROGRESS,
}
RED = 31
GREEN = 32
YELLOW = 33
FAINT = 2
TAIL = 40  # lines of a failed run's log
SILENCE_S = 10.0  # after which a line says what runs
BAR = 20  # letters
NAMED = 2  # runs that were not measured and are named; of the others the number is told

snakemake_workarounds.name_missing_executor()
startup.take_dotted_keys()
startup.need_no_home()


def _is_interrupted(message: str) -> bool:
    """True once a signal ends the sweep; waits for it where a run that died of the same signal
    reports first."""
    if is_signalled(message):
        for _ in range(100):
            if lifetime.interrupted:
                break
            time.sleep(0.01)
    return lifetime.interrupted


@dataclass
class Run:
    """A job that was started: `started` by a clock that nobody sets."""

    rule: str
    name: str
    started: float
    output: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


def _folder(run: Run) -> str:
    """Folder of a run below the results; empty for a job that writes no row."""
    if run.output and run.output[0].endswith("/row.csv"):
        return run.output[0].removeprefix("results/").removesuffix("/row.csv")
    return ""


class LogHandler(LogHandlerBase):
    """Prints to standard error (a dry run: what Snakemake itself prints, to standard output)."""

    writes_to_stream = True
    writes_to_file = has_formatter = needs_rulegraph = False
    has_filter = False  # Snakemake's own: it knows --quiet, --verbose and --printshellcmds

    def __post_init__(self) -> None:
        self.stream: TextIO = sys.stderr
        if self.common_settings.stdout:
            self.stream = sys.stdout
        self.text = terminal_texts("sweep_log")
        self.finished, self.remaining = Counter[str](), Counter[str]()  # jobs by rule
        self.started = 0.0  # of the first job, by the same clock
        self.running: dict[int, Run] = {}
        self.budget: budget.Budget | None = None
        self.is_coloured = (
            not self.common_settings.nocolor
            and self.stream.isatty()
            and not os.environ.get("NO_COLOR")
        )
        self.dry_run = DryRun(self.text)
        self.figures: list[float] = []  # seconds of each that was drawn, and not told yet
        # Runs that were not measured, each with its outcome, and that are not told yet.
        self.skipped: list[tuple[Run, Remark]] = []
        self.told_at = time.monotonic()  # when something was printed
        self.turn = threading.Lock()
        if not self.common_settings.dryrun:
            threading.Thread(target=self._break_silence, daemon=True).start()

    def place(self, rule: str) -> str:
        """` 7/12 `: runs that were measured, of all that are planned; blank for a rule that
        measures nothing."""
        done = _measuring(self.finished)
        planned = done + _measuring(self.remaining)
        width = len(str(planned))
        if rule in UNCOUNTED:
            return " " * (2 * width + 2)
        return f"{done:>{width}}/{planned} "

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with self.turn:
                text = self._of_record(record)
                if text:
                    self._print(text)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def _of_record(self, record: logging.LogRecord) -> str:
        """Text for a record; empty for nothing."""
        if self.common_settings.dryrun:
            return self._of_dry_run(record)
        return self._of_sweep(record)

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)
        self.told_at = time.monotonic()

    def _break_silence(self) -> None:
        """Says what runs, whenever nothing was said for SILENCE_S."""
        while True:
            time.sleep(max(0.1, SILENCE_S - (time.monotonic() - self.told_at)))
            with self.turn:
                is_silent = time.monotonic() - self.told_at >= SILENCE_S
                if self.running and is_silent:
                    self._print(self._colour(FAINT, self._what_runs()))

    def _what_runs(self) -> str:
        """Names the run that started last, its time, and the last line of a log that is shown."""
        run = list(self.running.values())[-1]
        seconds = time.monotonic() - run.started
        parts = [f"{self.place('all')}… {run.rule}  {run.name}", self.text.duration(seconds)]
        if run.rule == "refine":
            for log in run.log:
                parts += _lines(log)[-1:]
        return " · ".join(parts)

    def _left_out(self) -> list[str]:
        """The line of the runs that were not measured since the last such line, if any."""
        skipped = self.skipped
        self.skipped = []
        if not skipped:
            return []
        run, remark = skipped[0]
        named = [f"{run.rule} {run.name}" for run, _ in skipped[:NAMED]]
        if len(skipped) > NAMED:
            named.append("…")
        why = remark.message
        if len(skipped) > 1:
            why = in_words(Said("several_left_out", endings.numbers_of(remark.ended_by)))
        words = self.text("not_measured", count=len(skipped), names=", ".join(named), why=why)
        return [self._colour(YELLOW, f"{self.place(run.rule)}{words}")]

    def _of_dry_run(self, record: logging.LogRecord) -> str:
        """Text for a record of a dry run: all at its end, besides warnings and what has no
        event."""
        event = getattr(record, "event", None)
        match event:
            case LogEvent.JOB_INFO:
                self.dry_run.add(record.__dict__)
                return ""
            case LogEvent.RUN_INFO:
                return self.dry_run.counted(record.__dict__["stats"])
        is_news = record.levelno > logging.INFO or event is None
        if event in QUIET_EVENTS or not is_news:
            return ""
        return self._message(record)

    def _of_sweep(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        message = record.getMessage()
        is_end = event is LogEvent.JOB_ERROR or is_of_an_end(message)
        if event in QUIET_EVENTS or (is_end and _is_interrupted(message)):
            return ""
        values: dict[str, Any] = record.__dict__
        match event:
            case LogEvent.RUN_INFO:
                return self._run_info(values["stats"])
            case LogEvent.JOB_INFO:
                self._job_info(values, time.monotonic())
                return ""
            case LogEvent.JOB_FINISHED:
                return self._finished(values["job_id"], time.monotonic())
            case LogEvent.JOB_ERROR:
                return self._job_error(values)
            case LogEvent.GROUP_ERROR:
                return self._colour(RED, self.format(record))
            case LogEvent.SHELLCMD:
                return values.get("shellcmd") or values.get("cmd") or ""
        return self._message(record)

    def _run_info(self, stats: Mapping[str, int]) -> str:
        self.budget = budget.read()
        self.remaining = Counter[str]()
        for rule, count in stats.items():
            if rule != "total":
                self.remaining[own_name(rule)] += count
        runs = _measuring(self.remaining)
        if not runs:
            return ""
        counts = []
        for rule, count in self.remaining.items():
            if rule not in UNCOUNTED:
                counts.append(f"{count} {rule}")
        return self.text("runs", count=runs, counts=", ".join(counts))

    def _job_info(self, job: Mapping[str, Any], now: float) -> None:
        measured = job["wildcards"].get("run")
        name = name_of(job)
        if measured:
            name = short(measured)
        self.started = self.started or now
        self.running[job["jobid"]] = Run(
            rule=own_name(job["rule_name"]),
            name=name or str(job["rule_msg"] or ""),
            started=now,
            output=tuple(job["output"]),
            log=tuple(job["log"] or ()),
        )

    def _finished(self, job_id: int, now: float) -> str:
        run = self.running.pop(job_id, None)
        if run is None:  # its start was not told: --quiet
            return ""
        self.finished[run.rule] += 1
        if self.remaining[run.rule] > 0:
            self.remaining[run.rule] -= 1
        remark = row_remark(run.output)
        if remark.status == NOT_MEASURED:
            self.skipped.append((run, remark))
            return ""
        if run.rule == "figure":  # a line for all, before the page's
            self.figures.append(now - run.started)
            return ""
        lines = []
        if run.rule in UNCOUNTED:
            lines += self._left_out()
        lines += self._drawn()
        line = self._measured(run, now)
        if remark.status:
            status = self.text.name("status", remark.status)
            lines.append(self._colour(YELLOW, f"{line}\n    {status}: {remark.message}"))
        else:
            lines.append(self._colour(GREEN, line))
        return "\n".join(lines)

    def _measured(self, run: Run, now: float) -> str:
        """The line of a run that ended: its time, and where the budget or the estimate stands."""
        seconds = now - run.started
        began = now - self.started  # seconds ago
        parts = [f"{self.place(run.rule)}{run.rule}  {run.name}".rstrip()]
        parts.append(self.text.duration(seconds))
        folder = _folder(run)
        if self.budget is not None:
            whole = 60 * self.budget.plan["budget_min"]
            parts.append(_bar(self.budget.elapsed_s(), whole, self.text))
        elif budget.rest is not None and folder in budget.rest.runs_s:
            left = budget.rest.after(folder, seconds, began)
            bar = _bar(began, began + left, self.text)
            parts.append(self.text("left", bar=bar, left=left))
        return " · ".join(parts)

    def _drawn(self) -> list[str]:
        """The line of the figures that were drawn since the last such line, if any."""
        if not self.figures:
            return []
        words = self.text("figures", count=len(self.figures), seconds=sum(self.figures))
        self.figures.clear()
        return [f"{self.place('figure')}{words}"]

    def _job_error(self, job: Mapping[str, Any]) -> str:
        run = self.running.pop(job["jobid"], None)  # Snakemake may start it again
        name = ", ".join(job["output"])
        if run:
            name = run.name
        lines = [self.text("failed", rule=job["rule_name"], name=name)]
        if job.get("rule_msg"):
            lines.append(f"    {job['rule_msg']}")
        for key, value in (job.get("aux") or {}).items():
            lines.append(f"    {key}: {value}")
        if job.get("shellcmd"):
            lines.append(f"    {self.text('command', command=job['shellcmd'].strip())}")
        for log in job["log"]:
            lines += tail(path_of_log(log), self.common_settings.show_failed_logs, self.text)
        return self._colour(RED, "\n".join(lines))

    def _message(self, record: logging.LogRecord) -> str:
        """Message of Snakemake that is no event; empty for one of every run."""
        text = record.getMessage().strip()
        if is_routine(text) or text in ("", "None"):
            return ""
        if record.levelno <= logging.INFO:
            return text
        if record.levelno >= logging.ERROR:
            return self._colour(RED, text)
        return self._colour(YELLOW, text)

    def _colour(self, code: int, text: str) -> str:
        if self.is_coloured:
            return f"\033[{code}m{text}\033[0m"
        return text


def _measuring(jobs: Mapping[str, int]) -> int:
    """Number of the jobs, by rule, that measure."""
    return sum(count for rule, count in jobs.items() if rule not in UNCOUNTED)


def tail(path: str, is_shown: bool, text: Texts) -> list[str]:
    """The path of a log and, where `is_shown`, its last lines, indented."""
    lines = _lines(path)
    if not lines:
        key = "log_absent"
        if os.access(path, os.R_OK):
            key = "log_empty"
        return [f"    {text(key, path=path)}"]
    shown = [f"    {text('log', path=path)}"]
    if not is_shown:
        return shown
    before = len(lines) - TAIL
    if before > 0:
        shown.append(f"    | {text('lines_before', count=before)}")
    shown += [f"    | {line}" for line in lines[-TAIL:]]
    return shown


@dataclass(frozen=True)
class Remark:
    """Outcome of a run that is not ok, by its row; empty for one that is."""

    status: str = ""
    message: str = ""
    ended_by: str = ""


def row_remark(outputs: Iterable[str]) -> Remark:
    """Outcome of the `row.csv` among a job's outputs."""
    row: dict[str, str] = {}
    for path in outputs:
        if path.endswith("row.csv"):
            with suppress(OSError), open(path, newline="", encoding="utf-8") as file:
                row = next(csv.DictReader(file), {})
    if row.get("status", "ok") == "ok":
        return Remark()
    message = verdicts.message(row.get("message"), usual_language())
    return Remark(row["status"], message, row.get("ended_by", ""))


def _bar(so_far_s: float, whole_s: float, text: Texts) -> str:
    full = BAR
    if whole_s > 0:
        full = round(BAR * min(1.0, so_far_s / whole_s))
    bar = f"{'█' * full}{'░' * (BAR - full)}"
    return text("so_far", bar=bar, so_far=so_far_s, whole=whole_s)


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return []
