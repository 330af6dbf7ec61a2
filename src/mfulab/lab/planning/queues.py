"""The queue of a cluster that a sweep's jobs wait in: how to ask SLURM about them, also about those
that an earlier sweep left."""

import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryFile

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_text, remove, write_text
from mfulab.core.said import Said
from mfulab.lab.planning.store import is_complete

SLURM = "slurm"  # Snakemake's name of the executor
JOBS = ".slurm_jobs"  # in the results: the name of the jobs of the last sweep, unless it succeeded
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")  # of jobs, as the executor makes it
TOLD_S = 10  # time for SLURM to tell what an earlier sweep left


@dataclass(frozen=True)
class Question:
    """A command that SLURM answers at once if it works. Its seconds bound how long a sweep that was
    interrupted still waits for a scheduler that is silent."""

    command: tuple[str, ...]
    answers_s: float  # time for an answer
    asks_again_s: float  # pause after an answer
    doubts_s: float  # pause after the first failure

    def wait_until_silent(self) -> None:
        """Waits until SLURM has failed to answer twice in a row."""
        silences = 0
        while silences < 2:
            if silences:
                time.sleep(self.doubts_s)
            if self.is_answered():
                silences = 0
                time.sleep(self.asks_again_s)
            else:
                silences += 1

    def is_answered(self) -> bool:
        """True if SLURM answers in time, or has no such command."""
        try:
            # Not `capture_output`, which would wait for a child that outlives the command.
            done = subprocess.run(
                self.command, stdout=DEVNULL, stderr=DEVNULL, timeout=self.answers_s
            )
        except FileNotFoundError:
            return True
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


@dataclass(frozen=True)
class Queue:
    """Place that a sweep's jobs run in: Snakemake's executor, "" for this machine. For SLURM also
    the name of the jobs, and the command by which the executor looks at them."""

    executor: str = ""
    jobs: str = ""
    looks_by: str = ""

    def questions(self) -> list[Question]:
        """Questions while an interrupted sweep waits for its jobs; none for other schedulers, whose
        commands are not known."""
        if self.executor != SLURM:
            return []
        jobs = ("--noheader", f"--name={self.jobs}")
        # Two failures, with the pauses before, between and for two last words, take 9 s.
        asked = [Question(("squeue", *jobs), answers_s=2, asks_again_s=2, doubts_s=1)]
        if self.looks_by == "sacct" and shutil.which("sacct"):
            # Its database is slower, may restart, and is shared by all.
            command = ("sacct", "--allocations", "--format=State", *jobs)
            asked.append(Question(command, answers_s=20, asks_again_s=20, doubts_s=20))
        return asked

    def when_left(self) -> Said:
        """Sentence about what goes on when a sweep leaves at once, and what to do then."""
        if self.executor == SLURM:
            return Said("left_slurm", jobs=self.jobs)
        return Said("left_queue" if self.executor else "left_here")


def note(results: Path, queue: Queue) -> None:
    """Keeps the name of a sweep's SLURM jobs in its results, until `forget`."""
    if queue.executor == SLURM:
        write_text(results / JOBS, f"{queue.jobs}\n")


def forget(results: Path) -> None:
    """Removes what `note` wrote, once all jobs of a sweep have ended."""
    remove(results / JOBS)


def is_of_this_sweep(results: Path, row: Path) -> bool:
    """True for a complete row that was written after `note`, that is, by a job of the same sweep."""
    try:
        is_later = row.stat().st_mtime_ns > (results / JOBS).stat().st_mtime_ns
    except OSError:
        return False
    return is_later and row.name == "row.csv" and is_complete(row)


def left_by_an_earlier_sweep(results: Path) -> Said | None:
    """Reason why a sweep must wait: an earlier one was left, and its SLURM jobs are queued or
    running, or SLURM does not tell. None if there are none. Must be called before Snakemake looks
    for rows, as a job that ends in between would be measured again."""
    jobs = ""
    with suppress(FileNotFoundError, UnreadableError):
        jobs = read_text(results / JOBS).strip()
    if not NAME.fullmatch(jobs):
        return None
    command = ["squeue", "--noheader", "--format=%T", f"--name={jobs}"]
    with TemporaryFile() as told:
        try:
            done = subprocess.run(command, stdout=told, stderr=DEVNULL, timeout=TOLD_S)
        except FileNotFoundError:  # results that were copied from a cluster
            return None
        except (OSError, subprocess.TimeoutExpired):
            done = None
        told.seek(0)
        states = told.read().decode(errors="replace").split()
    if done is None or done.returncode != 0:
        return Said("earlier_jobs_unknown", jobs=jobs, file=str(results / JOBS))
    # Those that are completing no longer measure, but may stay in the queue for minutes.
    count = len(states) - states.count("COMPLETING")
    if count == 0:
        return None
    return Said("earlier_jobs_go_on", folder=f"{results}/", jobs=jobs, count=count)


def refuse(why: Said | None, executor: str) -> None:
    """Raises ConfigurationError if a sweep on SLURM must wait for jobs of an earlier one."""
    if why is not None and executor == SLURM:
        raise ConfigurationError(why)
