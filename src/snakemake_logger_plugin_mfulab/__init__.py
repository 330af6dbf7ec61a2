"""Snakemake's output for a long sweep: with `--logger mfulab`, one line a run, at its end. Nothing
is redrawn, which costs cycles of a CPU that is measured; after ten seconds of silence a line names
what runs."""

import csv
import logging
import os
import re
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, TextIO

from snakemake import cli
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from mfulab.core.language import verdicts
from mfulab.core.language.quantities import duration
from mfulab.core.replicates import base_name
from mfulab.core.rows import NOT_MEASURED
from mfulab.lab.planning import snakemake_workarounds
from mfulab.lab.planning.naming import short
from mfulab.lab.planning.rules import UNCOUNTED, own_name
from mfulab.lab.runtime import budget, endings, lifetime

__all__ = ["LogHandler"]

# What Snakemake says of itself, run after run; anything else that it says is shown.
NOISE = (
    *(
        "Assuming unrestricted shared filesystem",
        "Building DAG",
        "Complete log(s)",
        "Conda environments: ignored",
    ),
    *(
        "Elapsed time",
        "Execute ",
        "Select jobs",
        "Singularity containers: ignored",
        "Unlocked working directory",
    ),
    *("Using shell", "host:"),
    # those of the first page
    "Warning: the following output files of rule tables were not present",
)
# What it says of jobs that ended with it.
ENDED = re.compile(
    r"Will exit after|CalledProcessError|At least one job did not complete|Shutting down"
)
SIGNALLED = "died with <Signals.SIGINT"
OBVIOUS = (
    "Missing output",
    "Input files updated by another job",
)  # reasons that go without saying in a dry run
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
LISTED = 60  # runs of a dry run that are named; of the others their number is said


def _is_interrupted(message: str) -> bool:
    """True once a signal ends the sweep; waits for it where a run that died of the same signal
    reports first."""
    for _ in range(100 if SIGNALLED in message else 0):
        if lifetime.interrupted:
            break
        time.sleep(0.01)
    return lifetime.interrupted


def _take_dotted_keys() -> None:
    """Lets --config take keys with a dot, which Snakemake refuses, as part of `overrides`; and
    numbers as typed."""
    parse = cli.parse_config

    def parse_dotted(entries: Any) -> Any:
        snakemake_workarounds.catch_signals(
            snakemake_workarounds.leave_at_once
        )  # called before all else of ours
        dotted = [entry for entry in entries or () if "." in entry.partition("=")[0]]
        try:
            config = parse([entry for entry in entries or () if entry not in dotted])
        except ValueError as error:  # which Snakemake shows as a traceback
            sys.exit(f"mfulab: --config {' '.join(entries)}: give KEY=VALUE ({error})")
        except AssertionError:  # of a word that YAML takes for nothing
            sys.exit(_blank_word(parse, entries))
        for key, _, typed in (entry.partition("=") for entry in entries or ()):
            if isinstance(config.get(key), int | float):
                config[key] = typed  # 123_456 may be a name
        if dotted:
            config["overrides"] = " ".join(
                [str(config.get("overrides", "")), *map(shlex.quote, dotted)]
            ).strip()
        return config

    cli.parse_config = parse_dotted


def _blank_word(parse: Callable[[list[str]], Any], entries: Iterable[str]) -> str:
    """The sentence for the first word of --config whose value is nothing to YAML."""
    for entry in entries:
        try:
            parse([entry])
        except AssertionError:
            key = entry.partition("=")[0]
            return (
                f"mfulab: --config {entry!r}: the value is blank, as is what follows a #."
                f" Give {key}=VALUE, or {key}=null for none."
            )
        except ValueError:
            continue
    return f"mfulab: --config {' '.join(entries)}: give KEY=VALUE."


def _need_no_home() -> None:
    """Puts caches into the project if the home cannot be written, where Snakemake ends with a
    traceback otherwise."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "snakemake")
    with suppress(OSError):
        caches.mkdir(parents=True, exist_ok=True)
    if not os.access(caches, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(".snakemake/cache").absolute())


snakemake_workarounds.name_missing_executor()
_take_dotted_keys()
_need_no_home()


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
        self.stream: TextIO = sys.stdout if self.common_settings.stdout else sys.stderr
        self.finished, self.remaining = Counter[str](), Counter[str]()  # jobs by rule
        self.started = 0.0  # of the first job, by the same clock
        self.running: dict[int, Run] = {}
        self.budget: budget.Budget | None = None
        self.is_coloured = (
            not self.common_settings.nocolor
            and self.stream.isatty()
            and not os.environ.get("NO_COLOR")
        )
        # of a dry run: jobs by rule and what they say
        self.planned: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[tuple[str, str], str] = {}
        self.counts: dict[str, int] = {}
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
        done, left = (
            counts.total() - sum(map(counts.__getitem__, UNCOUNTED))
            for counts in (self.finished, self.remaining)
        )
        width = len(str(done + left))
        if rule in UNCOUNTED:
            return " " * (2 * width + 2)
        return f"{done:>{width}}/{done + left} "

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with self.turn:
                if (
                    text := self._would(record)
                    if self.common_settings.dryrun
                    else self._text(record)
                ):
                    self._print(text)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)
        self.told_at = time.monotonic()

    def _break_silence(self) -> None:
        """Says what runs, whenever nothing was said for SILENCE_S."""
        while True:
            time.sleep(max(0.1, SILENCE_S - (time.monotonic() - self.told_at)))
            with self.turn:
                if self.running and time.monotonic() - self.told_at >= SILENCE_S:
                    run = list(self.running.values())[-1]
                    last = [
                        line for log in run.log if run.rule == "refine" for line in _lines(log)[-1:]
                    ]
                    what = f"{self.place('all')}… {run.rule}  {run.name}"
                    self._print(
                        self._colour(
                            FAINT,
                            " · ".join([what, duration(time.monotonic() - run.started), *last]),
                        )
                    )

    def _left_out(self) -> list[str]:
        skipped = self.skipped
        self.skipped = []
        if not skipped:
            return []
        run, remark = skipped[0]
        names = ", ".join(f"{run.rule} {run.name}" for run, _ in skipped[:2]) + (
            ", …" if len(skipped) > 2 else ""
        )
        why = remark.message
        if len(skipped) > 1:
            why = verdicts.sentence("several_left_out", endings.numbers_of(remark.ended_by))
        return [
            self._colour(
                YELLOW, f"{self.place(run.rule)}{len(skipped)} not measured: {names}: {why}"
            )
        ]

    def _would(self, record: logging.LogRecord) -> str:
        """A dry run: a line for each distinct run with its processes and its reason, then each
        rule's jobs."""
        event = getattr(record, "event", None)
        values = record.__dict__
        if event is LogEvent.JOB_INFO:
            rule = values["rule_name"]
            key = (rule, base_name(str(values["rule_msg"] or f"{rule} {_name(values)}").strip()))
            self.planned[key] += 1
            self.reasons[key] = str(values.get("reason") or "")
        elif event is LogEvent.RUN_INFO:
            self.counts = values["stats"]
        elif event not in QUIET_EVENTS and (record.levelno > logging.INFO or event is None):
            message = self._message(record)
            if not message.startswith("This was a dry-run"):
                return "" if message.startswith("Reasons:") else message
            order = list(self.counts)
            lines = []
            for key, times in sorted(
                self.planned.items(), key=lambda planned: order.index(planned[0][0])
            ):
                reason = shorten(self.reasons[key], 90, placeholder=" …")
                why = "" if reason.startswith(OBVIOUS) else f"  ({reason})"
                lines.append(key[1] + (f" × {times}" if times > 1 else "") + why)
            lines = (
                lines
                if len(lines) <= LISTED
                else [*lines[:LISTED], f"… and {len(lines) - LISTED} more"]
            )
            return "\n".join(
                [*lines, "", *(f"{rule:<18} {count}" for rule, count in self.counts.items())]
            )
        return ""

    def _text(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        message = record.getMessage()
        if (event is LogEvent.JOB_ERROR or ENDED.search(message)) and _is_interrupted(message):
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
        return "" if event in QUIET_EVENTS else self._message(record)

    def _run_info(self, stats: dict[str, int]) -> str:
        self.budget = budget.read()
        self.remaining = Counter[str]()
        for rule, count in stats.items():
            if rule != "total":
                self.remaining[own_name(rule)] += count
        runs = {rule: n for rule, n in self.remaining.items() if rule not in UNCOUNTED}
        if not runs:
            return ""
        counts = ", ".join(f"{count} {rule}" for rule, count in runs.items())
        return f"{sum(runs.values())} runs: {counts}"

    def _job_info(self, values: dict[str, Any], now: float) -> None:
        measured = values["wildcards"].get("run")
        name = short(measured) if measured else _name(values)
        name = name or str(values["rule_msg"] or "")
        files = tuple(values["output"]), tuple(values["log"] or ())
        self.started = self.started or now
        self.running[values["jobid"]] = Run(own_name(values["rule_name"]), name, now, *files)

    def _finished(self, job_id: int, now: float) -> str:
        if (run := self.running.pop(job_id, None)) is None:  # its start was not told: --quiet
            return ""
        self.finished[run.rule] += 1
        self.remaining[run.rule] -= self.remaining[run.rule] > 0
        remark = row_remark(run.output)
        if remark.status == NOT_MEASURED:
            self.skipped.append((run, remark))
            return ""
        if run.rule == "figure":  # a line for all, before the page's
            self.figures.append(now - run.started)
            return ""
        place = self.place
        began = self.started
        words = [f"{place(run.rule)}{run.rule}  {run.name}".rstrip(), duration(now - run.started)]
        if self.budget is not None:
            words += [_bar(self.budget.elapsed_s(), 60 * self.budget.plan["budget_min"])]
        elif budget.rest is not None and (folder := _folder(run)) in budget.rest.runs_s:
            left = budget.rest.after(folder, now - run.started, now - began)
            words += [f"{_bar(now - began, now - began + left)}, about {duration(left)} left"]
        line = " · ".join(words)
        lines = self._left_out() if run.rule in UNCOUNTED else []
        if self.figures:
            lines.append(
                f"{place('figure')}{len(self.figures)} figures · {duration(sum(self.figures))}"
            )
            self.figures.clear()
        said = (
            self._colour(YELLOW, f"{line}\n    {remark.status}: {remark.message}")
            if remark.status
            else self._colour(GREEN, line)
        )
        return "\n".join([*lines, said])

    def _job_error(self, job: dict[str, Any]) -> str:
        run = self.running.pop(job["jobid"], None)  # Snakemake may start it again
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
        if self.is_coloured:
            return f"\033[{code}m{text}\033[0m"
        return text


def _name(job: dict[str, Any]) -> str:
    """The run that a job measures, else its first output."""
    return str(job["wildcards"].get("run") or ", ".join(job["output"][:1]))


def tail(path: str, is_shown: bool) -> list[str]:
    """The path of a log and, where `is_shown`, its last lines, indented."""
    lines = _lines(path)
    if not lines or not is_shown:
        return [
            f"    log: {path}"
            + ("" if lines else " (empty)" if os.access(path, os.R_OK) else " (not there)")
        ]
    skipped = [f"    | … {len(lines) - TAIL} lines before"] if len(lines) > TAIL else []
    return [f"    log: {path}", *skipped, *(f"    | {line}" for line in lines[-TAIL:])]


@dataclass(frozen=True)
class Remark:
    """Outcome of a run that is not ok, by its row; empty for one that is."""

    status: str = ""
    message: str = ""
    ended_by: str = ""


def row_remark(outputs: Iterable[str]) -> Remark:
    """Outcome of the `row.csv` among a job's outputs."""
    row: dict[str, str] = {}
    for path in (output for output in outputs if output.endswith("row.csv")):
        with suppress(OSError), open(path, newline="", encoding="utf-8") as file:
            row = next(csv.DictReader(file), {})
    if row.get("status", "ok") == "ok":
        return Remark()
    message = verdicts.message(row.get("message"))
    return Remark(row["status"], message, row.get("ended_by", ""))


def _bar(so_far_s: float, of_s: float) -> str:
    full = round(BAR * min(1.0, so_far_s / of_s)) if of_s > 0 else BAR
    return f"{'█' * full}{'░' * (BAR - full)} {duration(so_far_s)} of {duration(of_s)}"


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return []
