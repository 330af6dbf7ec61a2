"""Workarounds for what Snakemake offers no public way to do, each tested with 9.20.0 and 9.27.1."""

import atexit
import gc
import inspect
import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from snakemake.common import overwrite_function_params
from snakemake.logging import logger

from mfulab.core.errors import installs
from mfulab.core.printing import say
from mfulab.core.said import Said
from mfulab.core.terminal_language import in_words
from mfulab.lab.planning.queues import Question, Queue
from mfulab.lab.runtime import lifetime

WILDCARDS = ("hardware", "run", "figure")
DEFAULT_RATE = (100, 1)  # jobs, seconds: Snakemake 9's limit if none is set
HEARD_S = 1  # time to write a line to a terminal that may be gone
# In no other language, as a signal may come while Python imports what reads the catalogues.
BEFORE_A_SWEEP = (
    "interrupted before anything was measured; finished rows are kept, the same command goes on."
)
OBJECTS_MADE = 100_000  # allocations between garbage collections; Python's default is 700 to 2,000


def keep_commas(workflow: Any) -> None:
    """Allows commas in a wildcard of jobs that Snakemake starts (its issue 2366, open since 2023).
    It would parse `run="kernel=torch,size=64"` as the wildcards `run` and `size`."""
    get_rule = workflow.get_rule  # called just before a job uses its wildcards

    def get_rule_with_whole_names(name: str) -> Any:
        for target in workflow.dag_settings.target_jobs if workflow.dag_settings else ():
            _join_names(target.wildcards_dict)
        return get_rule(name)

    workflow.get_rule = get_rule_with_whole_names


def _join_names(wildcards: dict[str, str]) -> None:
    split_off = [key for key in wildcards if key not in WILDCARDS]
    for key in split_off:
        wildcards["run"] += f",{key}={wildcards.pop(key)}"


def leave_finished_rows(workflow: Any, lab: Any) -> None:
    """Lets a cluster's job that is started again, as after its node was lost, measure only the rows
    that it has not finished. Snakemake would measure all of a group again."""
    prepare = workflow._prepare_dag  # when it is called, the targets and the attempt are known

    def prepare_the_rest(*arguments: Any, **options: Any) -> Any:
        # SLURM itself starts a job again, or Snakemake submits it again.
        if "SLURM_RESTART_COUNT" in os.environ or workflow.attempt > 1:
            _drop_finished_targets(workflow.dag_settings, lab)
        return prepare(*arguments, **options)

    if not workflow.is_main_process:
        workflow._prepare_dag = prepare_the_rest


def _drop_finished_targets(settings: Any, lab: Any) -> None:
    rows = []
    rest = []
    for target in settings.target_jobs:
        _join_names(target.wildcards_dict)
        row = lab.row_of(target.rulename, target.wildcards_dict)
        if lab.is_finished(row):
            rows.append(str(row))
        else:
            rest.append(target)
    settings.target_jobs = rest
    if rows and not rest:  # without any target, Snakemake would make the default one
        settings.targets = frozenset(rows)
        settings.forcetargets = False


def keep_finished_rows(lab: Any) -> None:
    """Lets a job that failed keep the rows that it has finished. Snakemake would remove those of a
    whole group, whichever of its runs was lost."""
    from snakemake.jobs import Job  # not before Snakemake's other modules, which import one another

    clean_up = Job.cleanup

    async def clean_up_others(job: Any, skip_outputs: Iterable[Any]) -> None:
        finished = [output for output in job.output if lab.is_finished(Path(output))]
        await clean_up(job, {*skip_outputs, *finished})

    Job.cleanup = clean_up_others


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
            is_left_over = lab.begin(workflow.dag_settings.targets, executor_plugin.name)
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
            plugin = Said("slurm_needs_plugin", install=installs("slurm"))
            sys.exit(f"mfulab: {in_words(plugin)}")
        refuse(self, message)

    ArgumentParser.error = refuse_in_a_sentence  # type: ignore[method-assign]


def leave_at_once(number: int, frame: Any, said: str = BEFORE_A_SWEEP) -> None:
    """Ends the process for SIGINT or SIGTERM with one line: before a sweep, or at the second signal
    of one."""
    _say_last(f"\nmfulab: {said}").join(HEARD_S)
    os._exit(128 + number)  # running jobs end too: their clients notice that this process is gone


def _say_last(line: str) -> threading.Thread:
    """Writes a line to stderr in a thread to wait for no longer than HEARD_S: the terminal may be
    gone, its reader may have stopped, or the interrupted code may hold the stream's lock."""

    def write() -> None:
        with suppress(OSError, ValueError):
            say(line, file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer


def catch_signals(handler: Any) -> None:
    """Lets SIGINT and SIGTERM call `handler`. Does nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)


def queue_of(workflow: Any) -> Queue:
    """The queue of a sweep that has begun."""
    if workflow.local_exec:
        return Queue()
    jobs = getattr(workflow.scheduler._executor, "run_uuid", "")
    looks_by = getattr(workflow.executor_settings, "status_command", "")
    return Queue(workflow.executor_plugin.name, jobs, looks_by)


def end_in_order(scheduler: Any, queue: Queue) -> None:
    """Lets the first SIGINT or SIGTERM end a sweep between two jobs; a KeyboardInterrupt would skip
    `onerror`. A sweep on a cluster leaves at once if SLURM does not answer, as it would wait for
    queued jobs without end."""
    left = in_words(queue.when_left())
    waits = in_words(Said("waits_for_queue"))

    def end(number: int, frame: Any) -> None:
        lifetime.interrupted = True
        catch_signals(partial(leave_at_once, said=left))
        # In a thread, as it takes locks that the interrupted code may hold.
        threading.Thread(target=scheduler.exit_gracefully, daemon=True).start()
        if queue.executor:
            _say_last(f"\nmfulab: {waits}")
        for question in queue.questions():
            asking = threading.Thread(target=leave_unanswered, args=(number, question), daemon=True)
            asking.start()

    def leave_unanswered(number: int, question: Question) -> None:
        question.wait_until_silent()
        silent = in_words(Said("slurm_is_silent", command=question.command[0]))
        leave_at_once(number, None, f"{silent} {left}")

    catch_signals(end)


def look_for_garbage_rarely() -> None:
    """Raises the garbage collector's threshold, and skips the last collection at exit
    (docs/notes/scale.md)."""
    # A workflow's thousands of jobs live as long as it does; each collection visited them all.
    gc.set_threshold(OBJECTS_MADE)
    # Freeing them one by one took a quarter of the time of a sweep without anything to do.
    atexit.register(gc.freeze)
