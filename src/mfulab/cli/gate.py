"""`mfulab gate A B`: two commands of any project in turn, and whether the second is slower than noise explains.

mfulab gate 'python old.py' 'python new.py'
mfulab gate --base main -- python bench.py                        the command there, and in this checkout
mfulab gate --reads 'tokens/s: (\\S+)' --rate 'old' 'new'          a number that the commands print
"""

import contextlib
import json
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mfulab.core.errors import ConfigurationError
from mfulab.core.language.quantities import change, duration, quantity
from mfulab.timing.paired import Compared, in_turn

STATUS = {"faster": 0, "same": 0, "slower": 1, "ambiguous": 3}
LONGEST_SAID = 200  # characters of what a failed command said last


def run(
    commands: Sequence[str],
    base: str | None,
    minutes: float,
    noticeable: float,
    reads: str | None,
    is_rate: bool,
    cpu_time: bool,
    as_json: bool,
) -> int:
    """Measures both commands in turn and prints the verdict; `STATUS` has the exit status of each.

    Raises ConfigurationError for commands that fail, that hang, or that do not print the number.
    """
    if not minutes > 0:
        raise ConfigurationError(f"--minutes={minutes:g}: more than 0.")
    if cpu_time and reads:
        raise ConfigurationError("--cpu-time and --reads: each says what is compared; give one.")
    if is_rate and not reads:
        raise ConfigurationError("--rate: says how --reads reads, which is missing.")
    if base is None and len(commands) != 2:
        raise ConfigurationError(f"{len(commands)} commands: give two, each as one word, or --base COMMIT -- COMMAND.")
    try:
        pattern = re.compile(reads) if reads else None
    except re.error as error:
        raise ConfigurationError(f"--reads={reads}: no regular expression: {error}.") from error
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        if base is None:
            folders = (Path.cwd(), Path.cwd())
        else:
            commands = [commands[0] if len(commands) == 1 else shlex.join(commands)] * 2
            folders = (stack.enter_context(worktree(base)) / _below_top(), Path.cwd())
            if not folders[0].is_dir():
                raise ConfigurationError(f"--base={base}: {_below_top()}/ is not in that commit.")
        sides = [_Side(*each, 60 * minutes, pattern, is_rate, cpu_time) for each in zip(commands, folders, strict=True)]
        began, pairs = time.monotonic(), [0]
        for side in sides:
            side.value()  # into the caches

        def timed(which: int) -> float:
            pairs[0] += which
            return sides[which].value()

        say = (lambda line: print(f"\r{line} ", end="", file=sys.stderr)) if sys.stderr.isatty() else (lambda _: None)
        compared = in_turn(timed, minutes, noticeable, say)
        print("\r\033[K" * sys.stderr.isatty(), end="", file=sys.stderr)
    _tell(compared, pairs[0], time.monotonic() - began, reads, is_rate, noticeable, as_json)
    return STATUS[compared.verdict]


@dataclass(frozen=True)
class _Side:
    """One of two commands, with the folder that it runs in."""

    command: str
    folder: Path
    limit_s: float
    reads: re.Pattern[str] | None
    is_rate: bool
    of_cpu: bool

    def value(self) -> float:
        """Seconds that one run takes, or the number that it prints; of a rate 1 ÷ it. Raises ConfigurationError."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            seconds = self._run(out, errors)
            if self.reads is None:
                return seconds
            said = self.reads.findall(_text(out)) or self.reads.findall(_text(errors))
        number = math.nan
        with contextlib.suppress(ValueError, IndexError):
            last = said[-1]
            number = float(last if isinstance(last, str) else last[0])
        if not 0 < number < math.inf:
            what = f"reads {said[-1]!r}, which is no number above 0" if said else "prints nothing that it matches"
            raise ConfigurationError(f"`{self.command}`: with --reads={self.reads.pattern} it {what}.")
        return 1 / number if self.is_rate else number

    def _run(self, out: IO[bytes], errors: IO[bytes]) -> float:
        late = threading.Event()
        clock = _children_s if self.of_cpu else time.perf_counter
        began = clock()
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        watch = threading.Timer(self.limit_s, end)  # Popen's own limit polls, and so adds up to 50 ms
        watch.start()
        try:
            status = process.wait()
            seconds = clock() - began
        finally:
            watch.cancel()
            if process.poll() is None:
                end()
                process.wait()
        if late.is_set():
            raise ConfigurationError(f"`{self.command}`: was still running after {self.limit_s:g} s, and was ended.")
        if status:
            ended = f"ended with exit status {status}" if status > 0 else f"was ended by signal {-status}"
            said = (_text(errors).strip() or _text(out).strip() or "it said nothing").splitlines()[-1]
            raise ConfigurationError(f"`{self.command}`: {ended}: {said[:LONGEST_SAID]}")
        return seconds


def _children_s() -> float:
    """CPU seconds of all processes below this one that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A checkout of a commit of this folder's repository, removed whatever ends the block. Raises ConfigurationError.

    What is installed in editable mode is imported from where it was installed, not from there.
    """
    with tempfile.TemporaryDirectory(prefix="mfulab-base-") as parent:
        folder = Path(parent) / "base"
        done = _git("worktree", "add", "--detach", str(folder), commit)
        try:
            if done.returncode:
                said = (done.stderr.strip() or "nothing").splitlines()[-1]
                raise ConfigurationError(f"--base={commit}: no folder of a checkout, and git says: {said}.")
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))
            _git("worktree", "prune")


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *words]
    return subprocess.run(command, capture_output=True, text=True)


def _below_top() -> Path:
    """Path of the working directory below the top of its repository."""
    return Path(_git("rev-parse", "--show-prefix").stdout.strip())


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as an exception does, so that nothing stays behind."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(
    compared: Compared, pairs: int, seconds: float, reads: str | None, is_rate: bool, noticeable: float, as_json: bool
) -> None:
    """Prints the verdict in a sentence, or as JSON; a rate's values as they were printed, its ratio as of times."""
    times = compared.old_s or math.nan, compared.new_s or math.nan
    old, new = (1 / each if is_rate else each for each in times)
    known = compared.ratio_low is not None and compared.ratio_high is not None
    if as_json:
        names = ("ratio", "ratio_low", "ratio_high", "detects_percent", "because")
        held = {name: getattr(compared, name) for name in names}
        values = {"old": old, "new": new, "unit": "" if reads else "s"}
        print(json.dumps({"verdict": compared.verdict, **values, **held, "pairs": pairs, "seconds": round(seconds, 2)}))
        return
    within = f" within {100 * noticeable:g} %" if compared.verdict == "same" else ""
    both = " → ".join(quantity(each, "" if reads else "s") for each in (old, new))
    print(f"{compared.verdict}{within}: {both}" + (f", time {change(compared.ratio)}" if compared.ratio else ""))
    if known and compared.ratio_low and compared.ratio_high and compared.detects_percent:
        bounds = f"{change(compared.ratio_low)} … {change(compared.ratio_high)}"
        least = change(1 + compared.detects_percent / 100).removeprefix("+")
        print(f"95 % interval {bounds}; a slowdown from {least} on would have been found")
    print(f"{pairs} pairs in {duration(seconds)}" + f"; {compared.because}" * bool(compared.because))
