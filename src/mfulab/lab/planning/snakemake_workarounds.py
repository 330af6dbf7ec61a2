"""Workarounds for what Snakemake has no public way for, each tried with 9.20.0 and 9.27.1."""

import atexit
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NoReturn, TypeAlias

from snakemake.common import overwrite_function_params
from snakemake.logging import logger

from mfulab.core.errors import installs
from mfulab.core.printing import say
from mfulab.core.said import Said
from mfulab.core.terminal_language import in_words
from mfulab.lab.runtime import lifetime

WILDCARDS = ("hardware", "run", "figure")
DEFAULT_RATE = (100, 1)  # jobs, seconds: what Snakemake 9 keeps to where no rate is asked for
ANSWERS_S = 3  # within which SLURM lists its jobs: asked twice, it ends a sweep in 10 s
ASKED_AGAIN_S = 2  # after an answer: also where it falls silent meanwhile, that takes 10 s
HEARD_S = 1  # within which a line is written to a terminal that is still there
OBJECTS_MADE = 100_000  # between two looks for garbage; Python's own number is 700 to 2,000


def keep_commas(workflow: Any) -> None:
    """Lets jobs that Snakemake starts have commas in a wildcard (its issue 2366, open since 2023):
    it tells one `run="kernel=torch,size=64"` and reads the wildcards `run` and `size` from that."""
    get_rule = workflow.get_rule  # which a job asks for its rule just before it uses them

    def get_rule_with_whole_names(name: str) -> Any:
        for target in workflow.dag_settings.target_jobs if workflow.dag_settings else ():
            wildcards = target.wildcards_dict
            if parts := [key for key in wildcards if key not in WILDCARDS]:
                wildcards["run"] = ",".join(
                    [wildcards["run"], *(f"{key}={wildcards.pop(key)}" for key in parts)]
                )
        return get_rule(name)

    workflow.get_rule = get_rule_with_whole_names


def inspected(function: Callable[..., object]) -> Callable[..., object]:
    """Notes an input function's parameters where Snakemake looks first; it inspects them twice a
    job otherwise."""
    overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def begin_before_executing(workflow: Any, lab: Any) -> None:
    """Lets `lab.begin()` write the plan just before Snakemake executes: never in a dry run or a
    summary. Forgets the lock that a killed sweep left Snakemake, as a row that is there is whole;
    `--unlock` forgets both locks."""
    execute = workflow.execute
    unlock = workflow.unlock

    def execute_after_planning(executor_plugin: Any, *arguments: Any, **options: Any) -> Any:
        is_dry = executor_plugin.common_settings.dryrun_exec
        noted = Path(".snakemake/incomplete")  # jobs that Snakemake did not see end
        is_begun = workflow.is_main_process and not is_dry
        if is_begun and (lab.begin(workflow.dag_settings.targets) | any(noted.glob("*"))):
            unlock()
            for row in lab.inputs.complete_rows:
                workflow.persistence._unmark_incomplete(row)
        keep_no_default_rate(workflow.scheduling_settings)
        done = execute(executor_plugin, *arguments, **options)
        if is_dry:
            logger.info(lab.outlook(workflow.dag))
        return done

    def unlock_both() -> None:
        lab.clear_lock()
        unlock()

    workflow.execute = execute_after_planning
    workflow.unlock = unlock_both


Handler: TypeAlias = Callable[[Any], None]  # of Snakemake's log file


def add_handlers(workflow: Any, started: Handler, succeeded: Handler, failed: Handler) -> None:
    """Runs what a workflow does at the start and the end of a sweep, after the handlers of the
    project whose module it is: Snakemake runs those of the main Snakefile alone."""
    execute = workflow.execute

    def execute_with_handlers(*arguments: Any, **options: Any) -> Any:
        added = {"_onstart": started, "_onsuccess": succeeded, "_onerror": failed}
        for name, handler in added.items():
            setattr(workflow, name, _in_turn(getattr(workflow, name), handler))
        return execute(*arguments, **options)

    workflow.execute = execute_with_handlers


def _in_turn(first: Handler, second: Handler) -> Handler:
    def both(log: Any) -> None:
        try:
            first(log)
        finally:
            second(log)

    return both


def keep_no_default_rate(settings: Any) -> None:
    """Takes out of Snakemake's settings a rate that nobody asked for, whose timers took 0.4 of a
    core (pull 3744)."""
    rate = settings.max_jobs_per_timespan
    if rate is not None and (rate.max_jobs, rate.timespan) == DEFAULT_RATE:
        settings.max_jobs_per_timespan = None


def keep_no_output_older(dag: Any) -> None:
    """Dates a finished job's output by its newest input where a clock was set back: Snakemake would
    remove it."""
    check = dag.check_output_mtime

    async def check_after_dating(job: Any, outputs: Iterable[Any]) -> None:
        outputs = list(outputs)
        newest = max(
            (path.stat().st_mtime_ns for path in map(Path, job.input) if path.exists()), default=0
        )
        for path in map(Path, outputs):
            if path.exists() and path.stat().st_mtime_ns < newest:
                os.utime(path, ns=(newest, newest))
        await check(job, outputs)

    dag.check_output_mtime = check_after_dating


def name_missing_executor() -> None:
    """Lets Snakemake say in one sentence which extra brings the executor of a profile, not list
    those that it has."""
    refuse = ArgumentParser.error

    def refuse_in_a_sentence(self: ArgumentParser, message: str) -> NoReturn:
        if "invalid choice: 'slurm'" in message:
            plugin = Said("slurm_needs_plugin", {"install": installs("slurm")})
            sys.exit(f"mfulab: {in_words(plugin)}")
        refuse(self, message)

    ArgumentParser.error = refuse_in_a_sentence  # type: ignore[method-assign]


def leave_at_once(number: int, frame: Any) -> None:
    """Ends the process for SIGINT or SIGTERM with one line: before a sweep, or while its end was
    asked for already."""
    says = "left at once" if lifetime.interrupted else "interrupted before anything was measured"
    _say_last(f"\nmfulab: {says}; finished rows are kept, the same command goes on.")
    os._exit(128 + number)  # runs that were started end with it: their clients see that it is gone


def _say_last(line: str) -> None:
    """Writes a line to the standard error, which holds the end of a sweep up for HEARD_S at most: a
    terminal may be gone, its reader may have stopped, and what the signal interrupted may hold the
    stream."""

    def speak() -> None:
        with suppress(OSError, ValueError):
            say(line, file=sys.stderr, flush=True)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    speaker.join(HEARD_S)


def catch_signals(handler: Any) -> None:
    """Lets SIGINT and SIGTERM call `handler`; nothing in a thread other than the main one."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)


def end_in_order(scheduler: Any, is_local: bool = True) -> None:
    """Lets the first SIGINT or SIGTERM end a sweep between two jobs: a KeyboardInterrupt would lose
    `onerror`. A sweep that is not local leaves at once where SLURM does not answer: jobs in its
    queue would be waited for without end."""

    def end(number: int, frame: Any) -> None:
        lifetime.interrupted = True
        catch_signals(leave_at_once)
        threading.Thread(
            target=scheduler.exit_gracefully, daemon=True
        ).start()  # it takes locks, held here perhaps
        if not is_local:
            threading.Thread(target=_leave_unanswered, args=(number,), daemon=True).start()

    catch_signals(end)


def _leave_unanswered(number: int) -> None:
    """Says what is waited for, and leaves once SLURM has twice not answered."""
    _say_last(
        "\nmfulab: ends with the jobs in the queue; interrupted again, at once, and they go on."
    )
    silences = 0
    while silences < 2:
        if _answers():
            silences = 0
            time.sleep(ASKED_AGAIN_S)
        else:
            silences += 1
            time.sleep(1)
    _say_last("mfulab: SLURM does not answer.")
    leave_at_once(number, None)


def _answers() -> bool:
    """True if SLURM lists its jobs in time, or if there is no SLURM: another scheduler is waited
    for."""
    command = ["squeue", "--noheader", "--name=mfulab"]
    try:
        # Not `capture_output`: a child of squeue that outlives it would be waited for.
        asked = subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, timeout=ANSWERS_S)
    except FileNotFoundError:
        return True
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def look_for_garbage_rarely() -> None:
    """Raises the garbage collector's threshold, and leaves out its last walk at exit
    (docs/notes/scale.md)."""
    gc.set_threshold(
        OBJECTS_MADE
    )  # a workflow's jobs live as long as it does: thousands were walked again and again
    atexit.register(
        gc.freeze
    )  # to free them one by one took a quarter of a sweep in which nothing is to be done
