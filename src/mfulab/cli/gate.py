"""`mfulab gate A B`: two commands of any project in turn, and whether the second is slower than noise explains."""

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from mfulab.core.errors import ConfigurationError
from mfulab.core.language.quantities import at_least, change, duration, quantity
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
    """Measures both commands in turn and prints the verdict; `STATUS` has the exit status of each. Raises
    ConfigurationError for commands that fail, that hang, or that do not print the number."""
    if cpu_time and reads:
        raise ConfigurationError("--cpu-time and --reads: each says what is compared; give one.")
    if is_rate and not reads:
        raise ConfigurationError("--rate: says how --reads reads, which is missing.")
    if base is None and len(commands) != 2:
        raise ConfigurationError(f"commands: {len(commands)}; give two, each in quotes, or --base COMMIT -- COMMAND.")
    try:
        pattern = re.compile(reads) if reads else None
    except re.error as error:
        raise ConfigurationError(f"--reads={reads}: no regular expression: {error}.") from error
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):  # end as exceptions do, so that nothing stays behind
            stack.callback(signal.signal, number, signal.signal(number, _leave))
        folders = [Path.cwd(), Path.cwd()]
        if base is not None:
            commands = [commands[0] if len(commands) == 1 else shlex.join(commands)] * 2
            below = _git("rev-parse", "--show-prefix").stdout.strip()
            folders[0] = stack.enter_context(worktree(base)) / below
            if not folders[0].is_dir():
                raise ConfigurationError(f"--base={base}: {below} is not in that commit.")
        values = list[float]()

        def timed(side: int) -> float:
            values.append(_value(commands[side], folders[side], 60 * minutes, pattern, is_rate, cpu_time))
            return values[-1]

        for side in (0, 1):
            timed(side)  # into the caches
        began = time.monotonic()

        say = (lambda line: print(f"\r{line} ", end="", file=sys.stderr)) if sys.stderr.isatty() else (lambda _: None)
        compared = in_turn(timed, minutes, noticeable, say)
        print("\r\033[K" * sys.stderr.isatty(), end="", file=sys.stderr)
    _tell(compared, len(values) // 2 - 1, time.monotonic() - began, "" if reads else "s", is_rate, noticeable, as_json)
    return STATUS[compared.verdict]


def _value(
    command: str, folder: Path, limit_s: float, reads: re.Pattern[str] | None, is_rate: bool, of_cpu: bool
) -> float:
    """Seconds that a command takes, or the last number that it prints; of a rate 1 ÷ it. Raises ConfigurationError."""
    seconds, printed = _run(command, folder, limit_s, of_cpu)
    if reads is None:
        return seconds
    (last,) = reads.findall(printed)[-1:] or [None]
    number = math.nan
    with contextlib.suppress(ValueError, TypeError):
        number = float(last if isinstance(last, str) else last[0])
    if not 0 < number < math.inf:
        what = "prints nothing that it matches" if last is None else f"reads {last!r}, which is no number above 0"
        raise ConfigurationError(f"`{command}`: with --reads={reads.pattern} it {what}.")
    return 1 / number if is_rate else number


def _run(command: str, folder: Path, limit_s: float, of_cpu: bool) -> tuple[float, str]:
    """Wall seconds that a command takes, or CPU seconds, and what it prints. Raises ConfigurationError."""
    late = threading.Event()

    def clock() -> float:
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) if of_cpu else time.perf_counter()

    with tempfile.TemporaryFile() as out:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        began = clock()
        process = subprocess.Popen(["/bin/sh", "-c", command], cwd=folder, start_new_session=True, **streams)

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        watch = threading.Timer(limit_s, end)  # Popen's own limit polls, and so adds up to 50 ms
        watch.daemon = True  # a signal before the block below must not wait for it
        watch.start()
        try:
            status = process.wait()
            seconds = clock() - began
        finally:
            watch.cancel()
            if process.poll() is None:
                end()
                process.wait()
        out.seek(0)
        printed = out.read().decode(errors="replace")
    if late.is_set():
        raise ConfigurationError(f"`{command}`: was still running after {limit_s:g} s, and was ended.")
    if status:
        ended = f"ended with exit status {status}" if status > 0 else f"was ended by signal {-status}"
        last_line = (printed.strip() or "it said nothing").splitlines()[-1]
        raise ConfigurationError(f"`{command}`: {ended}: {last_line[:LONGEST_SAID]}")
    return seconds, printed


def _leave(number: int, _: object) -> None:
    """Ends commands, of which one may have begun before anything holds it, and then this process."""
    for child in psutil.Process().children():
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    sys.exit(128 + number)


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A checkout of a commit of this folder's repository, removed after the block. Raises ConfigurationError."""
    with tempfile.TemporaryDirectory(prefix="mfulab-base-") as parent:
        folder = Path(parent) / "base"
        try:
            done = _git("worktree", "add", "--detach", str(folder), commit)
            if done.returncode:
                last_line = (done.stderr.strip() or "nothing").splitlines()[-1]
                raise ConfigurationError(f"--base={commit}: no folder of a checkout, and git says: {last_line}.")
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))
            _git("worktree", "prune")


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *words]
    return subprocess.run(command, capture_output=True, text=True)


def _tell(
    compared: Compared, pairs: int, seconds: float, unit: str, is_rate: bool, noticeable: float, as_json: bool
) -> None:
    """Prints the verdict in a sentence, or as JSON; a rate as it was printed, JSON's ratio as of times."""
    row = asdict(compared)
    old, new = (1 / value if is_rate else value for value in (row.pop("old_s"), row.pop("new_s")))
    if as_json:
        del row["step"], row["run"]
        print(json.dumps({**row, "old": old, "new": new, "unit": unit, "pairs": pairs, "seconds": round(seconds, 2)}))
        return
    within = f" within {100 * noticeable:g} %" if compared.verdict == "same" else ""
    shown = (lambda ratio: change(1 / ratio)) if is_rate else change
    print(f"{compared.verdict}{within}: {quantity(old, unit)} → {quantity(new, unit)}, {shown(row['ratio'])}")
    if compared.detects_percent:
        bounds = [shown(row[end]) for end in ("ratio_low", "ratio_high")][:: -1 if is_rate else 1]
        least = at_least(1 + compared.detects_percent / 100)
        print(f"95 % interval {' … '.join(bounds)}; a slowdown of {least} would have been found")
    print(f"{pairs} pairs in {duration(seconds)}" + f"; {compared.because}" * bool(compared.because))
