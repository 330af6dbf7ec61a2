"""The journal of a training process: what its time was spent on, as lines of JSON that survive
SIGKILL. docs/goodput.md describes the format, for other programs that write it."""

import atexit
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from mfulab.core.errors import warn
from mfulab.core.files import cannot_be_written
from mfulab.device.system import boot

# A line is written once this share of the process's life, or this time, has passed since the last
# one: a kill loses at most as much, and a week has some thousand lines.
SHARE = 0.002
LONGEST_NS = 60 * 10**9
# Lines that are forced to disk: a crash of the machine must not lose them.
KEPT = frozenset({"checkpoint", "restore", "end"})
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now_ns() -> int:
    """Nanoseconds of a clock that cannot be set: since the machine's boot, on Linux including
    sleep."""
    if _BOOTTIME is None:
        return time.monotonic_ns()
    return time.clock_gettime_ns(_BOOTTIME)


def _age_ns() -> int:
    """Nanoseconds since this process began: on Linux exact to a tick of 10 ms, elsewhere as exact
    as psutil."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return now_ns() - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    import psutil

    return int(1e9 * (time.time() - psutil.Process().create_time()))


class Journal:
    """Records what this process spends its time on, in a file of its own in the job's folder.

        journal = mfulab.Journal("runs/llama")
        journal.mark("restore", step=1200)  # what ran since the last mark or the begin
        for batch in loader:
            journal.mark("loader")
            train(batch)
            journal.step()

    Each line is one write. Marks of steps and of the loader are written together after 0.2 % of the
    process's life, any other mark at once. A full disk stops no training: what could not be written
    becomes part of the next line. Every process and attempt of a job takes the same `folder`.
    `rank` and `world` default to the launcher's environment. Raises ConfigurationError if the
    folder cannot be written.
    """

    def __init__(
        self, folder: str | Path, rank: int | None = None, world: int | None = None
    ) -> None:
        self.folder = Path(folder)
        if rank is None:
            ranks = map(os.environ.get, ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
            rank = next((int(value) for value in ranks if value), 0)
        world = world or int(os.environ.get("WORLD_SIZE") or 1)
        now = now_ns()
        self._pid = os.getpid()
        self._began = self._last = self._written = now - _age_ns()
        self._pending: dict[str, int] = {}
        self._done = 0
        self._first = True
        self._torn = False
        host = socket.gethostname()
        file = self.folder / f"{host}-{self._pid}-{self._began}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise cannot_be_written(file, error) from error
        unix_ns = time.time_ns() - (now - self._began)
        head = {
            "format": 1,
            "rank": rank,
            "world": world,
            "host": host,
            "pid": self._pid,
            "unix_ns": unix_ns,
        }
        self._write({**head, "boot": boot() or None, "boot_ns": self._began})
        self.mark("import")
        atexit.register(self.close)

    def mark(self, span: str, step: int | None = None, **facts: object) -> None:
        """Records what ran since the last mark: `setup`, `evaluation`, `checkpoint`, or any other
        word. `step` is the number of the job's steps done so far, as after a restore. `facts` are
        further keys of the line, such as `flops` of a step."""
        if step is not None:
            self._done = step
        self._add(span)
        if span != "loader":
            self._flush(span in KEPT, **facts)

    def step(self, done: int | None = None) -> None:
        """Marks the end of a step. `done` is the number of the job's steps done so far, by default
        one more."""
        self._done = self._done + 1 if done is None else done
        now = self._add("first_step" if self._first else "step")
        # The first step of a process compiles and allocates: it has a line of its own.
        if self._first or now - self._written >= min(LONGEST_NS, SHARE * (now - self._began)):
            self._flush()
        self._first = False

    def beside(self, name: str, seconds: float) -> None:
        """Records the seconds of what another thread did while steps went on, such as an
        asynchronous checkpoint."""
        self._write({"ns": now_ns() - self._began, "beside": {name: int(1e9 * seconds)}})

    def close(self) -> None:
        """Writes what is pending, and the end. Also called when the interpreter exits."""
        if self._file >= 0 and self._pid == os.getpid():
            self.mark("end")
            os.close(self._file)
            self._file = -1
            atexit.unregister(self.close)

    def _add(self, span: str) -> int:
        now = now_ns()
        self._pending[span] = self._pending.get(span, 0) + now - self._last
        self._last = now
        return now

    def _flush(self, durable: bool = False, **facts: object) -> None:
        line = {"ns": self._last - self._began, "spans": self._pending, "step": self._done, **facts}
        if self._write(line, durable):
            self._pending = {}
            self._written = self._last

    def _write(self, line: dict[str, object], durable: bool = False) -> bool:
        """Appends one line; False if it could not be written completely."""
        if self._file < 0 or self._pid != os.getpid():
            return False
        data = b"\n" * self._torn + json.dumps(line).encode() + b"\n"
        try:
            is_written = os.write(self._file, data) == len(data)
        except OSError as error:
            is_written = False
            if not self._torn:
                warn(f"{self.folder}: the journal waits: {error.strerror or error}")
        self._torn = not is_written
        if durable and is_written:
            with suppress(OSError):  # a pipe, or a folder on a network
                os.fsync(self._file)
        return is_written


_open: dict[Path, Journal] = {}


def journal_of(job: "str | Path | Journal | None") -> Journal | None:
    """Journal of a job's folder, one per process. Returns a journal unchanged, and None if there is
    no job."""
    if job is None or isinstance(job, Journal):
        return job
    path = Path(job).resolve()
    journal = _open.get(path)
    if journal is None or journal._file < 0 or journal._pid != os.getpid():
        journal = _open[path] = Journal(path)
    return journal
