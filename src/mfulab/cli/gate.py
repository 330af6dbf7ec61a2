"""`mfulab gate A B`: measures two commands of any project in turn, and says whether the second is
slower than noise explains."""

import contextlib
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import psutil

from mfulab.cli import gate_text
from mfulab.cli.gate_text import Outcome
from mfulab.cli.options import AS_JSON, FORMAT, MINUTES, NOTICEABLE, command
from mfulab.cli.signals import end_by_signal, ended_by_signals
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch
from mfulab.core.printing import wipe
from mfulab.core.said import Numbers, Said, as_told
from mfulab.timing.paired import in_turn

# Shell script that kills the running command if the gate itself is killed by SIGKILL. It reads each
# command's process group, then an empty line when that ended; its input closes with the gate.
WATCHER = """
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
"""
# A command's shell sends its own process group to the watcher before it runs the command, as the
# gate may be killed before it could. Until then its stdin is the watcher's pipe.
REPORTING = """
trap '' PIPE
echo $$ 2> /dev/null >&0
trap - PIPE
exec /bin/sh -c "$0" < /dev/null
"""
STATUS = {"faster": 0, "same": 0, "slower": 1, "ambiguous": 3}
LONGEST_SAID = 200  # characters of the last line of a failed command


@dataclass(frozen=True)
class GateOptions:
    """The command's options."""

    commands: Sequence[str]
    base: str | None
    minutes: float
    noticeable: float
    reads: str | None
    cpu_time: bool
    is_rate: bool
    form: str
    as_json: bool

    def check(self) -> None:
        """Raises ConfigurationError if options contradict each other."""
        if self.cpu_time and self.reads:
            raise ConfigurationError(Said("gate_cpu_time_or_reads"))
        if self.is_rate and not self.reads:
            raise ConfigurationError(Said("gate_rate_without_reads"))
        if self.base is None and len(self.commands) != 2:
            raise ConfigurationError(Said("gate_needs_two", count=len(self.commands)))
        try:
            re.compile(self.reads or "")
        except re.error as error:
            raise ConfigurationError(
                Said("gate_no_pattern", reads=self.reads, error=str(error))
            ) from error

    @property
    def command(self) -> str:
        """The single command as one text, whether it was quoted or not."""
        if len(self.commands) == 1:
            return self.commands[0]
        return shlex.join(self.commands)

    @property
    def unit(self) -> str:
        """Unit of the compared quantity; "" for a number that a command prints."""
        return "" if self.reads else "s"


@dataclass(frozen=True)
class Measure:
    """Options for measuring commands, and the pipe to the watcher that kills a command left
    running."""

    options: GateOptions
    watcher: IO[bytes]

    def report_ended(self) -> None:
        """Tells the watcher that no command is running."""
        with contextlib.suppress(OSError):  # the watcher was killed
            self.watcher.write(b"\n")

    def clock(self) -> float:
        """Seconds of wall time, or of the CPU time of all commands that have ended."""
        if self.options.cpu_time:
            return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        return time.perf_counter()


@command(
    "gate",
    "gate --minutes 2 'gzip -1 -c big.log' 'zstd -1 -c big.log'",
    more=(
        "The status is 0 for same or faster, 1 for slower, 2 where a command fails, and 3 for "
        "ambiguous. With --base one COMMAND runs in a temporary worktree of that commit and in "
        "this folder."
    ),
)
@click.argument("commands", nargs=-1, metavar="COMMAND…", required=True)
@click.option(
    "--base",
    metavar="COMMIT",
    help="Compare this checkout with a commit: --base main -- python bench.py.",
)
@click.option(
    "--minutes",
    type=MINUTES,
    default=5,
    help="Time limit in minutes: no pair starts that would end after it.",
)
@NOTICEABLE
@click.option(
    "--reads",
    metavar="REGEX",
    help="Compare a number that each command prints, the last match of REGEX, instead of wall time.",
)
@click.option(
    "--cpu-time",
    is_flag=True,
    help="Compare CPU time instead of wall time; other programs on the machine disturb it less.",
)
@click.option(
    "--rate",
    "is_rate",
    is_flag=True,
    help="With --reads: a higher number is better, such as tokens per second.",
)
@FORMAT
@AS_JSON
def run(**values: Any) -> int:
    """Measures commands and prints the verdict. Returns the exit status, see `STATUS`. Raises
    ConfigurationError for commands that fail, hang, or do not print the number."""
    options = GateOptions(**values)
    options.check()
    # However the block ends, no command keeps running.
    with ended_by_signals(_end_commands), _watcher() as watcher:
        outcome = _in_turn(Measure(options, watcher))
    gate_text.tell(outcome, "json" if options.as_json else options.form)
    return STATUS[outcome.compared.verdict]


def _in_turn(measure: Measure) -> Outcome:
    """Measures two commands, or one command here and in a commit, in turn."""
    options = measure.options
    commands = options.commands
    base = options.base
    with contextlib.ExitStack() as stack:
        folders = [Path.cwd(), Path.cwd()]
        if base is not None:
            commands = [options.command] * 2
            below = _git("rev-parse", "--show-prefix").stdout.strip()
            folders[0] = stack.enter_context(worktree(base)) / below
            if not folders[0].is_dir():
                raise ConfigurationError(Said("not_in_commit", commit=base, folder=below))
        values = list[float]()

        def timed(side: int) -> float:
            values.append(_value(commands[side], folders[side], measure))
            return values[-1]

        for side in (0, 1):
            timed(side)  # warms the caches
        began = time.monotonic()
        compared = in_turn(timed, options.minutes, options.noticeable, gate_text.progress())
        wipe()
    seconds = time.monotonic() - began
    before = as_told(commands[0])
    if base is not None:
        before = Said("gate_at_commit", command=commands[0], commit=base)
    return Outcome(
        compared=compared,
        pairs=len(values) // 2 - 1,
        seconds=seconds,
        unit=options.unit,
        is_rate=options.is_rate,
        noticeable=options.noticeable,
        commands=(before, as_told(commands[1])),
    )


@contextlib.contextmanager
def _watcher() -> Iterator[IO[bytes]]:
    """Starts a shell that outlives this process and kills a command that it leaves running. Yields
    the shell's stdin."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        ["/bin/sh", "-c", WATCHER],
        stdin=subprocess.PIPE,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
        bufsize=0,
    ) as shell:
        assert shell.stdin is not None
        yield shell.stdin


def _value(command: str, folder: Path, measure: Measure) -> float:
    """Seconds that a command takes, or the last number that it prints; for a rate, 1 ÷ rate. Raises
    ConfigurationError if it fails or prints no such number."""
    seconds, printed = _run(command, folder, measure)
    pattern = measure.options.reads
    if not pattern:
        return seconds
    matches = re.findall(pattern, printed)
    details: Numbers = {"command": command, "reads": pattern}
    if not matches:
        raise ConfigurationError(Said("gate_reads_nothing", details))
    last = matches[-1]
    first_group = last if isinstance(last, str) else last[0]
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(first_group)
    if not 0 < number < math.inf:
        raise ConfigurationError(Said("gate_reads_no_number", **details, read=repr(last)))
    if measure.options.is_rate:
        return 1 / number
    return number


def _run(command: str, folder: Path, measure: Measure) -> tuple[float, str]:
    """Runs a command and returns its wall or CPU seconds and its output. Raises ConfigurationError
    if it fails or takes longer than the given minutes."""
    is_late = threading.Event()
    limit_s = 60 * measure.options.minutes
    with tempfile.TemporaryFile() as out:
        began = measure.clock()
        process = subprocess.Popen(
            ["/bin/sh", "-c", REPORTING, command],
            cwd=folder,
            start_new_session=True,
            stdin=measure.watcher,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

        def end() -> None:
            is_late.set()
            os.killpg(process.pid, signal.SIGKILL)

        # Popen's own time limit polls, which adds up to 50 ms.
        timer = threading.Timer(limit_s, end)
        timer.daemon = True  # a signal before the block below must not wait for it
        timer.start()
        try:
            status = process.wait()
            seconds = measure.clock() - began
        finally:
            timer.cancel()
            if process.poll() is None:
                end()
                process.wait()
            measure.report_ended()
        out.seek(0)
        printed = out.read().decode(errors="replace")
    if is_late.is_set():
        raise ConfigurationError(Said("gate_too_long", command=command, seconds=limit_s))
    if status:
        raise ConfigurationError(_failure(command, status, printed))
    return seconds, printed


def _failure(command: str, status: int, printed: str) -> Said:
    """The sentence for a failed command: its exit status or signal, and the last line of output."""
    lines = printed.strip().splitlines()
    last = as_told(lines[-1][:LONGEST_SAID]) if lines else Said("gate_said_nothing")
    if status > 0:
        return Said("gate_exit_status", command=command, status=status, last=last)
    return Said("gate_signal", command=command, signal=-status, last=last)


def _end_commands(number: int, frame: object) -> None:
    """Handles a signal: kills all child commands, also one that has only just started, then ends
    this process."""
    for child in psutil.Process().children():
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    end_by_signal(number, frame)


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A worktree of a commit of this folder's repository, removed after the block. If this process
    is killed, the next start removes it. Raises ConfigurationError if git fails."""
    with scratch() as parent:
        folder = parent / "base"
        _git("worktree", "prune")  # those whose folders `scratch` has removed
        try:
            done = _git("worktree", "add", "--detach", str(folder), commit)
            if done.returncode:
                printed = done.stderr.strip() or f"exit status {done.returncode}"
                last_line = printed.splitlines()[-1]
                raise ConfigurationError(Said("no_checkout", commit=commit, line=last_line))
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))
            _git("worktree", "prune")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True)
