"""`mfulab gate A B`: two commands of any project in turn, and whether the second is slower than
noise explains."""

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import click
import psutil

from mfulab.cli import gate_baseline, gate_text
from mfulab.cli.gate_baseline import Baseline
from mfulab.cli.gate_text import Told
from mfulab.cli.options import AS_JSON, FORMAT, MINUTES, NOTICEABLE, command
from mfulab.cli.signals import end_by_signal, ended_by_signals
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch
from mfulab.core.language import Texts
from mfulab.core.printing import say, wipe
from mfulab.core.said import Numbers, Said, as_told
from mfulab.core.terminal_language import usual_language
from mfulab.timing.paired import in_turn

# What ends the command of a gate that SIGKILL ended: it is told each command's group, and an empty
# line after it, and sees the end of its input.
WATCHER = """
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
"""
# A command's shell tells its own group before it begins: the gate may be killed before it could.
# The watcher's pipe is its input until then.
TELLING = """
trap '' PIPE
echo $$ 2> /dev/null >&0
trap - PIPE
exec /bin/sh -c "$0" < /dev/null
"""
STATUS = {"faster": 0, "same": 0, "slower": 1, "ambiguous": 3}
LONGEST_SAID = 200  # characters of what a failed command said last


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    commands: Sequence[str]
    base: str | None
    save: str | None
    against: str | None
    minutes: float
    noticeable: float
    reads: str | None
    cpu_time: bool
    is_rate: bool
    form: str
    as_json: bool

    def check(self) -> None:
        """Raises ConfigurationError for options that contradict each other."""
        if self.cpu_time and self.reads:
            raise ConfigurationError(Said("gate_cpu_time_or_reads"))
        if self.is_rate and not self.reads:
            raise ConfigurationError(Said("gate_rate_without_reads"))
        given = {"--base": self.base, "--save": self.save, "--against": self.against}
        chosen = []
        for option, value in given.items():
            if value is not None:
                chosen.append(option)
        if len(chosen) > 1:
            raise ConfigurationError(Said("give_one_option", {"options": ", ".join(chosen)}))
        if not chosen and len(self.commands) != 2:
            raise ConfigurationError(Said("gate_needs_two", {"count": len(self.commands)}))
        try:
            re.compile(self.reads or "")
        except re.error as error:
            pattern: Numbers = {"reads": self.reads, "error": str(error)}
            raise ConfigurationError(Said("gate_no_pattern", pattern)) from error

    @property
    def command(self) -> str:
        """The words of one command, in quotes or not."""
        if len(self.commands) == 1:
            return self.commands[0]
        return shlex.join(self.commands)

    @property
    def unit(self) -> str:
        """Unit of what is compared; none of a number that a command prints."""
        return "" if self.reads else "s"


@dataclass(frozen=True)
class Measure:
    """Options by which commands are measured, and who is told each one's process group."""

    asked: Asked
    watcher: IO[bytes]

    def ended(self) -> None:
        """Tells the watcher that there is no command to end with this process."""
        with contextlib.suppress(OSError):  # of a watcher that was ended
            self.watcher.write(b"\n")

    def clock(self) -> float:
        """Seconds of wall time, or of the CPU time of commands that have ended."""
        if self.asked.cpu_time:
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
    "--save",
    metavar="NAME",
    help="Measure one command alone and keep it as a baseline, in .mfulab/gate/.",
)
@click.option(
    "--against",
    metavar="NAME",
    help="Compare one command with a baseline of this machine; --base allows for drift, too.",
)
@click.option("--minutes", type=MINUTES, default=5, help="Begin no pair that would end later.")
@NOTICEABLE
@click.option(
    "--reads",
    metavar="REGEX",
    help="Compare the last number that a command prints and that this matches, not wall time.",
)
@click.option(
    "--cpu-time",
    is_flag=True,
    help="Compare CPU seconds, which neighbours on the machine disturb less than wall time.",
)
@click.option(
    "--rate",
    "is_rate",
    is_flag=True,
    help="With --reads: the number is a rate, of which more is better.",
)
@FORMAT
@AS_JSON
def run(**options: Any) -> int:
    """Measures commands and prints the verdict; `STATUS` has the exit status of each. Raises
    ConfigurationError for commands that fail, that hang, or that do not print the number."""
    asked = Asked(**options)
    asked.check()
    # At the end of the block, however it comes, no command is left.
    with ended_by_signals(_leave), _watcher() as watcher:
        measure = Measure(asked, watcher)
        if asked.save is not None:
            return _save(measure, asked.save)
        outcome = _in_turn(measure) if asked.against is None else _against(measure, asked.against)
    gate_text.tell(outcome, "json" if asked.as_json else asked.form)
    return STATUS[outcome.compared.verdict]


def _in_turn(measure: Measure) -> Told:
    """The verdict on two commands, or on one here and in a commit, measured in turn."""
    asked = measure.asked
    commands = asked.commands
    base = asked.base
    with contextlib.ExitStack() as stack:
        folders = [Path.cwd(), Path.cwd()]
        if base is not None:
            commands = [asked.command] * 2
            below = _git("rev-parse", "--show-prefix").stdout.strip()
            folders[0] = stack.enter_context(worktree(base)) / below
            if not folders[0].is_dir():
                raise ConfigurationError(Said("not_in_commit", {"commit": base, "folder": below}))
        values = list[float]()

        def timed(side: int) -> float:
            values.append(_value(commands[side], folders[side], measure))
            return values[-1]

        for side in (0, 1):
            timed(side)  # into the caches
        began = time.monotonic()
        compared = in_turn(timed, asked.minutes, asked.noticeable, gate_text.progress())
        wipe()
    seconds = time.monotonic() - began
    before = as_told(commands[0])
    if base is not None:
        before = Said("gate_at_commit", {"command": commands[0], "commit": base})
    return Told(
        compared,
        len(values) // 2 - 1,
        "pairs",
        seconds,
        asked.unit,
        asked.is_rate,
        asked.noticeable,
        (before, as_told(commands[1])),
    )


def _save(measure: Measure, name: str) -> int:
    """Keeps what a command takes under a name."""
    values, seconds = _sampled(measure)
    path = gate_baseline.save(name, replace(_baseline(measure.asked), values=tuple(values)))
    text = Texts(usual_language(), "gate")
    say(text("saved", runs=text("runs", count=len(values), seconds=seconds), path=path))
    return 0


def _against(measure: Measure, name: str) -> Told:
    """The verdict on what a command takes now and what was saved under a name."""
    asked = measure.asked
    old = gate_baseline.load(name)
    gate_baseline.check_alike(name, old, _baseline(asked))
    values, seconds = _sampled(measure)
    saved: Numbers = {"command": old.command, "name": name, "date": old.measured_at}
    return Told(
        gate_baseline.compared(name, old.values, values, asked.noticeable),
        len(values),
        "runs",
        seconds,
        asked.unit,
        asked.is_rate,
        asked.noticeable,
        (Said("gate_of_baseline", saved), as_told(asked.command)),
        Said("gate_baseline_drifts", {"name": name}),
    )


def _baseline(asked: Asked) -> Baseline:
    """A baseline of this command, here and now, without its times."""
    what = asked.reads or ("cpu" if asked.cpu_time else "wall")
    machine = gate_baseline.machine()
    return Baseline(asked.command, what, asked.is_rate, machine, gate_baseline.now(), ())


def _sampled(measure: Measure) -> tuple[list[float], float]:
    """Times of one command, and the seconds that taking them took."""
    asked = measure.asked

    def timed() -> float:
        return _value(asked.command, Path.cwd(), measure)

    timed()  # into the caches
    began = time.monotonic()
    values = gate_baseline.sampled(
        timed, asked.minutes, asked.noticeable, time.monotonic, gate_text.progress()
    )
    wipe()
    return values, time.monotonic() - began


@contextlib.contextmanager
def _watcher() -> Iterator[IO[bytes]]:
    """The input of a shell that outlives this process, and ends the command that it left."""
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
    """Seconds that a command takes, or the last number that it prints; of a rate 1 ÷ it. Raises
    ConfigurationError."""
    seconds, printed = _run(command, folder, measure)
    pattern = measure.asked.reads
    if not pattern:
        return seconds
    found = re.findall(pattern, printed)
    asked: Numbers = {"command": command, "reads": pattern}
    if not found:
        raise ConfigurationError(Said("gate_reads_nothing", asked))
    last = found[-1] if isinstance(found[-1], str) else found[-1][0]
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(last)
    if not 0 < number < math.inf:
        read = repr(found[-1])
        raise ConfigurationError(Said("gate_reads_no_number", {**asked, "read": read}))
    if measure.asked.is_rate:
        return 1 / number
    return number


def _run(command: str, folder: Path, measure: Measure) -> tuple[float, str]:
    """Wall seconds that a command takes, or CPU seconds, and what it prints. Raises
    ConfigurationError."""
    late = threading.Event()
    limit_s = 60 * measure.asked.minutes
    with tempfile.TemporaryFile() as out:
        streams: dict[str, Any] = {
            "stdin": measure.watcher,
            "stdout": out,
            "stderr": subprocess.STDOUT,
        }
        began = measure.clock()
        process = subprocess.Popen(
            ["/bin/sh", "-c", TELLING, command], cwd=folder, start_new_session=True, **streams
        )

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        # Popen's own limit polls, and so adds up to 50 ms.
        watch = threading.Timer(limit_s, end)
        watch.daemon = True  # a signal before the block below must not wait for it
        watch.start()
        try:
            status = process.wait()
            seconds = measure.clock() - began
        finally:
            watch.cancel()
            if process.poll() is None:
                end()
                process.wait()
            measure.ended()
        out.seek(0)
        printed = out.read().decode(errors="replace")
    if late.is_set():
        limit: Numbers = {"command": command, "seconds": limit_s}
        raise ConfigurationError(Said("gate_too_long", limit))
    if status:
        raise ConfigurationError(_ended(command, status, printed))
    return seconds, printed


def _ended(command: str, status: int, printed: str) -> Said:
    """The way in which a command failed, and the last line that it printed."""
    lines = printed.strip().splitlines()
    last = as_told(lines[-1][:LONGEST_SAID]) if lines else Said("gate_said_nothing")
    if status > 0:
        return Said("gate_exit_status", {"command": command, "status": status, "last": last})
    return Said("gate_signal", {"command": command, "signal": -status, "last": last})


def _leave(number: int, frame: object) -> None:
    """Ends commands, of which one may have begun before anything holds it, and then this
    process."""
    for child in psutil.Process().children():
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    end_by_signal(number, frame)


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A checkout of a commit of this folder's repository, removed after the block, and by the next
    start where this process was killed. Raises ConfigurationError."""
    with scratch() as parent:
        folder = parent / "base"
        _git("worktree", "prune")  # of those whose folders went with `scratch`
        try:
            done = _git("worktree", "add", "--detach", str(folder), commit)
            if done.returncode:
                printed = done.stderr.strip() or f"exit status {done.returncode}"
                last_line = printed.splitlines()[-1]
                told: Numbers = {"commit": commit, "line": last_line}
                raise ConfigurationError(Said("no_checkout", told))
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))
            _git("worktree", "prune")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True)
