"""Snakemake's output for a long sweep: with `--logger mfulab`, one line when a job starts and one when it ends.

It prints at events only. A display that redraws itself costs the machine cycles while the CPU is being measured.
"""

import csv
import logging
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import shorten
from typing import Any, TextIO

from snakemake import cli
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from mfulab.core.language.quantities import duration
from mfulab.core.replicates import base_name
from mfulab.lab.planning import snakemake_workarounds
from mfulab.lab.runtime import budget, lifetime

__all__ = ["LogHandler"]

# What Snakemake says of itself, run after run; anything else that it says is shown.
NOISE = (
    "Assuming unrestricted shared filesystem",
    "Building DAG",
    "Complete log(s)",
    "Conda environments: ignored",
    "Elapsed time",
    "Execute ",
    "Select jobs",
    "Singularity containers: ignored",
    "Unlocked working directory",
    "Using shell",
    "Warning: the following output files of rule tables were not present",  # those of the first page
    "host:",
)
# What it says of jobs that ended with it.
ENDED = re.compile(r"Will exit after|CalledProcessError|At least one job did not complete|Shutting down")
SIGNALLED = "died with <Signals.SIGINT"
OBVIOUS = ("Missing output", "Input files updated by another job")  # reasons that go without saying in a dry run
QUIET_EVENTS = {LogEvent.WORKFLOW_STARTED, LogEvent.JOB_STARTED, LogEvent.RESOURCES_INFO}
RED, GREEN, YELLOW, FAINT = 31, 32, 33, 2
TAIL = 40  # lines of a failed run's log
UNTOLD = "a rule that was not planned"
AFTER_RUNS = ("refine", "tables", "rows")  # rules that come once every run had its turn


def _is_interrupted(message: str) -> bool:
    """True once a signal ends the sweep; waits for it where a run that died of the same signal reports first."""
    for _ in range(100 if SIGNALLED in message else 0):
        if lifetime.interrupted:
            break
        time.sleep(0.01)
    return lifetime.interrupted


def _take_dotted_keys() -> None:
    """Lets --config take keys with a dot, which Snakemake refuses: they become part of `overrides`."""
    parse = cli.parse_config

    def parse_dotted(entries: Any) -> Any:
        snakemake_workarounds.catch_signals(snakemake_workarounds.leave_at_once)  # called before all else of ours
        dotted = [entry for entry in entries or () if "." in entry.partition("=")[0]]
        try:
            config = parse([entry for entry in entries or () if entry not in dotted])
        except ValueError as error:  # which Snakemake shows as a traceback
            sys.exit(f"mfulab: --config {' '.join(entries)}: give KEY=VALUE ({error})")
        if dotted:
            config["overrides"] = " ".join([str(config.get("overrides", "")), *map(shlex.quote, dotted)]).strip()
        return config

    cli.parse_config = parse_dotted


def _need_no_home() -> None:
    """Puts caches into the project if the home cannot be written, where Snakemake ends with a traceback otherwise."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    try:
        (caches / "snakemake").mkdir(parents=True, exist_ok=True)
        is_writable = os.access(caches / "snakemake", os.W_OK)
    except (OSError, RuntimeError):
        is_writable = False
    if not is_writable:
        os.environ["XDG_CACHE_HOME"] = str(Path(".snakemake/cache").absolute())


_take_dotted_keys()
_need_no_home()


@dataclass
class Run:
    """A job that was started: `started` in seconds since the epoch; `number` counts starts from 1."""

    rule: str
    name: str
    started: float
    output: tuple[str, ...] = ()
    number: int = 0


class Progress:
    """Counts starts and ends of jobs by rule; times are seconds since the epoch."""

    def __init__(self) -> None:
        self.finished = 0
        self.started = 0.0  # of the first job
        self._remaining: Counter[str] = Counter()
        self._took: dict[str, list[float]] = {}  # seconds of each job, by rule
        self._runs: dict[int, Run] = {}
        self._numbers: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Jobs planned, finished ones included."""
        return self.finished + self._remaining.total()

    def of_total(self, number: int) -> str:
        """` 7/12`: a number of all jobs that are planned."""
        return f"{number:>{len(str(self.total))}}/{self.total}"

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Notes that `jobs` of each rule are to be done."""
        self._remaining = Counter(jobs)

    def grow(self, total: int) -> None:
        """Notes that a checkpoint added jobs: there are `total` now, of rules that are not told."""
        self._remaining[UNTOLD] += max(0, total - self.total)

    def start(self, job_id: int, run: Run) -> Run:
        """Notes that a job starts; one that is tried again keeps its number."""
        self.started = self.started or run.started
        run.number = self._numbers.setdefault(job_id, len(self._numbers) + 1)
        self._runs[job_id] = run
        return run

    def finish(self, job_id: int, now: float) -> Run | None:
        """Notes that a job ended well; None if its start is not known."""
        self.finished += 1
        run = self._runs.pop(job_id, None)
        if run:
            rule = run.rule if self._remaining[run.rule] > 0 else UNTOLD
            self._remaining[rule] -= self._remaining[rule] > 0
            self._took.setdefault(run.rule, []).append(now - run.started)
        return run

    def fail(self, job_id: int) -> Run | None:
        """Notes that a job failed; Snakemake may start it again."""
        return self._runs.pop(job_id, None)

    def left_s(self, now: float) -> float | None:
        """Seconds left if every rule goes on as it went and as many jobs run at a time; None before the first end."""
        took = [seconds for each in self._took.values() for seconds in each]
        if not sum(took):
            return None
        # A rule of which no job has ended is taken to cost what the mean job did.
        work_left = sum(count * fmean(self._took.get(rule, took)) for rule, count in self._remaining.items())
        return (now - self.started) * work_left / sum(took)


class LogHandler(LogHandlerBase):
    """Prints to standard error (a dry run: what Snakemake itself prints, to standard output)."""

    writes_to_stream = True
    writes_to_file = has_formatter = needs_rulegraph = False
    has_filter = False  # Snakemake's own: it knows --quiet, --verbose and --printshellcmds

    def __post_init__(self) -> None:
        self.stream: TextIO = sys.stdout if self.common_settings.stdout else sys.stderr
        self.progress = Progress()
        self.budget: budget.Budget | None = None
        self.left_out = 0  # runs that did not fit into the budget: one line for all of them
        self.is_coloured = not self.common_settings.nocolor and self.stream.isatty() and not os.environ.get("NO_COLOR")
        self.planned: dict[tuple[str, str], tuple[int, str]] = {}  # of a dry run: rule and what it says → jobs, reason
        self.counts: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._would(record) if self.common_settings.dryrun else self._text(record)
            if text:
                print(text, file=self.stream, flush=True)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def _would(self, record: logging.LogRecord) -> str:
        """A dry run: a line for each distinct run with its processes and its reason, then each rule's jobs."""
        event = getattr(record, "event", None)
        values: dict[str, Any] = record.__dict__
        if event is LogEvent.JOB_INFO:
            rule = values["rule_name"]
            key = (rule, base_name(str(values["rule_msg"] or f"{rule} {_name(values)}").strip()))
            self.planned[key] = (self.planned.get(key, (0, ""))[0] + 1, str(values.get("reason") or ""))
        elif event is LogEvent.RUN_INFO:
            self.counts = values["stats"]
        elif event not in QUIET_EVENTS and (record.levelno > logging.INFO or event is None):
            message = self._message(record)
            if message.startswith("This was a dry-run"):
                order, lines = list(self.counts), []
                planned = sorted(self.planned.items(), key=lambda each: order.index(each[0][0]))
                for (_, what), (times, reason) in planned:
                    why = "" if reason.startswith(OBVIOUS) else f"  ({shorten(reason, 90, placeholder=' …')})"
                    lines.append(what + (f" × {times}" if times > 1 else "") + why)
                return "\n".join([*lines, "", *(f"{rule:<18} {count}" for rule, count in self.counts.items())])
            return "" if message.startswith("Reasons:") else message
        return ""

    def _text(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        message = record.getMessage()
        if (event is LogEvent.JOB_ERROR or ENDED.search(message)) and _is_interrupted(message):
            return ""
        values: dict[str, Any] = record.__dict__
        match event:
            case LogEvent.RUN_INFO:
                self.budget = budget.read()
                jobs = {rule: count for rule, count in values["stats"].items() if rule != "total"}
                self.progress.plan(jobs)
                return f"{sum(jobs.values())} jobs: {', '.join(f'{count} {rule}' for rule, count in jobs.items())}"
            case LogEvent.JOB_INFO:
                name = _name(values) or str(values["rule_msg"] or "")
                run = Run(values["rule_name"], name, record.created, tuple(values["output"]))
                number = self.progress.start(values["jobid"], run).number
                if is_left_out(run.output):
                    return ""
                line = self._colour(FAINT, f"{self.progress.of_total(number)} start  {run.rule}  {run.name}")
                return "\n".join([*self._left_out(), line]) if run.rule in AFTER_RUNS else line
            case LogEvent.JOB_FINISHED:
                return self._finished(values["job_id"], record.created)
            case LogEvent.PROGRESS:
                self.progress.grow(values["total"])
                return ""
            case LogEvent.JOB_ERROR:
                return self._job_error(values)
            case LogEvent.GROUP_ERROR:
                return self._colour(RED, self.format(record))
            case LogEvent.SHELLCMD:
                return values.get("shellcmd") or values.get("cmd") or ""
        return "" if event in QUIET_EVENTS else self._message(record)

    def _finished(self, job_id: int, now: float) -> str:
        run = self.progress.finish(job_id, now)
        if run is None:  # its start was not told: --quiet
            return ""
        remark = row_remark(run.output)
        if self.budget is not None and f": {budget.LEFT_OUT}" in remark:
            self.left_out += 1
            return ""
        left, place = self.progress.left_s(now), self.progress.of_total(self.progress.finished)
        words = [f"{place} done   {run.rule}  {run.name}", duration(now - run.started)]
        if self.budget is None:
            words += [f"{duration(now - self.progress.started)} so far"]
        else:
            left = left and min(left, max(0.0, self.budget.ends_at - now))
            plan = self.budget.plan
            words += [f"{duration(now - plan['begun'])} of {duration(60 * plan['budget_min'])}"]
        words += [f"about {duration(left)} left"] if left else []
        line = " · ".join(words)
        return self._colour(YELLOW, f"{line}\n    {remark}") if remark else self._colour(GREEN, line)

    def _left_out(self) -> list[str]:
        """One line on all runs that the budget left out since the last one."""
        count, self.left_out = self.left_out, 0
        if self.budget is None or not count:
            return []
        plan, runs = self.budget.plan, "1 run" if count == 1 else f"{count} runs"
        says = f"{runs} did not fit into budget_min={plan['budget_min']:g}. To measure them: {plan['command']}"
        return [self._colour(YELLOW, says)]

    def _job_error(self, job: dict[str, Any]) -> str:
        run = self.progress.fail(job["jobid"])
        lines = [f"Failed: {job['rule_name']}  {run.name if run else ', '.join(job['output'])}"]
        lines += [f"    {job['rule_msg']}"] if job.get("rule_msg") else []
        lines += [f"    {key}: {value}" for key, value in (job.get("aux") or {}).items()]
        lines += [f"    command: {job['shellcmd'].strip()}"] if job.get("shellcmd") else []
        for log in job["log"]:
            path = log.removesuffix(" (check log file(s) for error details)")
            lines += tail(path, self.common_settings.show_failed_logs)
        return self._colour(RED, "\n".join(lines))

    def _message(self, record: logging.LogRecord) -> str:
        text = record.getMessage().strip()
        if text.startswith(NOISE):
            return ""
        if record.levelno <= logging.INFO:
            return "" if text in ("", "None") else text
        return self._colour(RED if record.levelno >= logging.ERROR else YELLOW, text)

    def _colour(self, code: int, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.is_coloured else text


def _name(job: dict[str, Any]) -> str:
    """The run that a job measures, else its first output."""
    return str(job["wildcards"].get("run") or ", ".join(job["output"][:1]))


def tail(path: str, is_shown: bool) -> list[str]:
    """The path of a log and, where `is_shown`, its last lines, indented."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [f"    log: {path} (not there)"]
    if not lines or not is_shown:
        return [f"    log: {path}" + ("" if lines else " (empty)")]
    skipped = [f"    | … {len(lines) - TAIL} lines before"] if len(lines) > TAIL else []
    return [f"    log: {path}", *skipped, *(f"    | {line}" for line in lines[-TAIL:])]


def is_left_out(outputs: Iterable[str]) -> bool:
    """True where the client of a run that begins now will find no time for it."""
    sweep = budget.read()
    folders = [path.removeprefix("results/").removesuffix("/row.csv") for path in outputs if path.endswith("/row.csv")]
    return sweep is not None and any(sweep.why_not(folder) for folder in folders)


def row_remark(outputs: Iterable[str]) -> str:
    """Status and message of the `row.csv` among a job's outputs where it is not ok, else nothing."""
    for path in (output for output in outputs if output.endswith("row.csv")):
        try:
            with open(path, newline="", encoding="utf-8") as file:
                row = next(csv.DictReader(file), {})
        except OSError:
            return ""
        if row.get("status", "ok") != "ok":
            return f"{row['status']}: {row.get('message', '')}"
    return ""
