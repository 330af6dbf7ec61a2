"""Workarounds for what Snakemake offers no public way to do, each tested with 9.20.0 and 9.27.1."""

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
DEFAULT_RATE = (100, 1)  # jobs, seconds: Snakemake 9's limit if none is set
ANSWERS_S = 3  # time for SLURM to list its jobs; two failures end a sweep within 10 s
ASKED_AGAIN_S = 2  # pause after an answer, so that a later silence also ends within 10 s
HEARD_S = 1  # time to write a line to a terminal that may be gone
OBJECTS_MADE = 100_000  # allocations between garbage collections; Python's default is 700 to 2,000


def keep_commas(workflow: Any) -> None:
    """Allows commas in a wildcard of jobs that Snakemake starts (its issue 2366, open since 2023).
    It would parse `run="kernel=torch,size=64"` as the wildcards `run` and `size`."""
    get_rule = workflow.get_rule  # called just before a job uses its wildcards

    def get_rule_with_whole_names(name: str) -> Any:
        for target in workflow.dag_settings.target_jobs if workflow.dag_settings else ():
            wildcards = target.wildcards_dict
            split_off = [key for key in wildcards if key not in WILDCARDS]
            for key in split_off:
                wildcards["run"] += f",{key}={wildcards.pop(key)}"
        return get_rule(name)

    workflow.get_rule = get_rule_with_whole_names


def inspected(function: Callable[..., object]) -> Callable[..., object]:
    """Stores an input function's parameters where Snakemake looks them up, as it otherwise inspects
    the function twice per job."""
    overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def begin_before_executing(workflow: Any, lab: Any) -> None:
    """Calls `lab.begin()`, which writes the plan, just before Snakemake executes, never in a dry
    run or a summary. Removes Snakemake's lock that a killed sweep left, since existing rows are
    complete; `--unlock` clears both locks."""
    execute = workflow.execute
    unlock = workflow.unlock

    def execute_after_planning(executor_plugin: Any, *arguments: Any, **options: Any) -> Any:
        is_dry = executor_plugin.common_settings.dryrun_exec
        if workflow.is_main_process and not is_dry:
            is_left_over = lab.begin(workflow.dag_settings.targets)
            unfinished = Path(".snakemake/incomplete")  # jobs whose end Snakemake did not see
            if is_left_over or any(unfinished.glob("*")):
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


Handler: TypeAlias = Callable[[Any], None]  # is called with Snakemake's log file


def add_handlers(workflow: Any, started: Handler, succeeded: Handler, failed: Handler) -> None:
    """Runs these handlers at the start and end of a sweep, after those of a project that uses this
    workflow as a module. Snakemake itself runs only the main Snakefile's handlers."""
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
    """Removes the default job rate from Snakemake's settings, as its timers took 0.4 of a core
    (pull 3744)."""
    rate = settings.max_jobs_per_timespan
    if rate is not None and (rate.max_jobs, rate.timespan) == DEFAULT_RATE:
        settings.max_jobs_per_timespan = None


def keep_no_output_older(dag: Any) -> None:
    """Sets a finished job's output to the time of its newest input if that is later, as after a
    clock was set back. Snakemake would remove the output."""
    check = dag.check_output_mtime

    async def check_after_dating(job: Any, outputs: Iterable[Any]) -> None:
        outputs = list(outputs)
        inputs = map(Path, job.input)
        times_ns = [path.stat().st_mtime_ns for path in inputs if path.exists()]
        newest = max(times_ns, default=0)
        for path in map(Path, outputs):
            if path.exists() and path.stat().st_mtime_ns < newest:
                os.utime(path, ns=(newest, newest))
        await check(job, outputs)

    dag.check_output_mtime = check_after_dating


def name_missing_executor() -> None:
    """Lets Snakemake name the extra that installs the executor of the profile slurm, instead of
    listing the installed ones."""
    refuse = ArgumentParser.error

    def refuse_in_a_sentence(self: ArgumentParser, message: str) -> NoReturn:
        if "invalid choice: 'slurm'" in message:
            plugin = Said("slurm_needs_plugin", {"install": installs("slurm")})
            sys.exit(f"mfulab: {in_words(plugin)}")
        refuse(self, message)

    ArgumentParser.error = refuse_in_a_sentence  # type: ignore[method-assign]


def leave_at_once(number: int, frame: Any) -> None:
    """Ends the process for SIGINT or SIGTERM with one line: before a sweep, or at the second signal
    of one."""
    reason = "left at once" if lifetime.interrupted else "interrupted before anything was measured"
    _say_last(f"\nmfulab: {reason}; finished rows are kept, the same command goes on.")
    os._exit(128 + number)  # running jobs end too: their clients notice that this process is gone


def _say_last(line: str) -> None:
    """Writes a line to stderr within HEARD_S at most: the terminal may be gone, its reader may have
    stopped, or the interrupted code may hold the stream's lock."""

    def write() -> None:
        with suppress(OSError, ValueError):
            say(line, file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(HEARD_S)


def catch_signals(handler: Any) -> None:
    """Lets SIGINT and SIGTERM call `handler`. Does nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)


def end_in_order(scheduler: Any, is_local: bool = True) -> None:
    """Lets the first SIGINT or SIGTERM end a sweep between two jobs; a KeyboardInterrupt would skip
    `onerror`. A sweep on a cluster leaves at once if SLURM does not answer, as it would wait for
    queued jobs without end."""

    def end(number: int, frame: Any) -> None:
        lifetime.interrupted = True
        catch_signals(leave_at_once)
        # In a thread, as it takes locks that the interrupted code may hold.
        threading.Thread(target=scheduler.exit_gracefully, daemon=True).start()
        if not is_local:
            threading.Thread(target=_leave_unanswered, args=(number,), daemon=True).start()

    catch_signals(end)


def _leave_unanswered(number: int) -> None:
    """Prints what the sweep is waiting for, and ends the process once SLURM has failed to answer
    twice."""
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
    """True if SLURM lists its jobs in time, or is not installed, as with another scheduler."""
    command = ["squeue", "--noheader", "--name=mfulab"]
    try:
        # Not `capture_output`, which would wait for a child of squeue that outlives it.
        done = subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, timeout=ANSWERS_S)
    except FileNotFoundError:
        return True
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def look_for_garbage_rarely() -> None:
    """Raises the garbage collector's threshold, and skips the last collection at exit
    (docs/notes/scale.md)."""
    # A workflow's thousands of jobs live as long as it does; each collection visited them all.
    gc.set_threshold(OBJECTS_MADE)
    # Freeing them one by one took a quarter of the time of a sweep without anything to do.
    atexit.register(gc.freeze)
