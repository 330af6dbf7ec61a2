"""Features that Linux alone has, each with its stand-in on macOS: None, or nothing done, where
there is no answer. No other module but `lab/runtime/processes.py` asks which system it is. Each
run's client starts with it, so that it imports no errors: with them that start took twice as
long."""

import os
import resource
import signal
import sys
from contextlib import suppress

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
# of torch: macOS's frameworks start threads, after which a fork may hang
CAN_FORK_AFTER_IMPORTS = IS_LINUX
ROOT = "/"  # /proc and /sys stand below it
PR_SET_PDEATHSIG = 1  # of prctl(2)
LONGEST_NUMBER = 9  # digits of a device's number


def text(path: str | os.PathLike[str]) -> str | None:
    """The content of a file below `ROOT`, such as `proc/stat`; None if it is missing or may not be
    read."""
    try:
        with open(os.path.join(ROOT, path), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def names(path: str) -> list[str]:
    """Names in a folder below `ROOT`, in order; nothing where it is missing."""
    with suppress(OSError):
        return sorted(os.listdir(os.path.join(ROOT, path)))
    return []


def check_processes() -> None:
    """Raises UnsupportedError where Linux hides the processes that psutil and the samplers read."""
    from mfulab.core.errors import UnsupportedError
    from mfulab.core.said import Said

    if IS_LINUX and text("proc/stat") is None:
        raise UnsupportedError(Said("no_proc"))


def write(path: str, content: str) -> None:
    """Writes to a file below /proc if this process may."""
    with suppress(OSError), open(os.path.join(ROOT, path), "w", encoding="ascii") as file:
        file.write(content)


def prctl(option: int, value: int) -> None:
    """Asks Linux to treat this process differently."""
    import ctypes

    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value)


def end_with_parent(parent: int) -> None:
    """Ends this process with `parent`, which began it, however that ends; at once where it has
    ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def has_semaphores() -> bool:
    """True where processes can share semaphores, which their pools and queues take; Linux keeps
    them in /dev/shm."""
    from multiprocessing import get_context

    try:
        get_context("fork").Lock()
    except (ImportError, OSError):
        return False
    return True


def place_in(entry: str, count: int) -> int:
    """Number that an entry of a variable such as CUDA_VISIBLE_DEVICES names; `count` where it names
    none of so many devices."""
    number = entry.strip()
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        return count
    return min(int(number), count)


def affinity() -> frozenset[int] | None:
    """The logical CPUs that this process may use; None if a process cannot be bound to some
    (macOS)."""
    return frozenset(os.sched_getaffinity(0)) if IS_LINUX else None


def boot() -> str:
    """A name of this start of the kernel, also in a container; empty if it is not reported."""
    return text("proc/sys/kernel/random/boot_id") or ""


def peak_memory_bytes() -> int | None:
    """The most memory of this process that was resident, in bytes: VmHWM, on macOS getrusage's."""
    peak = _status_bytes("VmHWM")
    if peak is None and IS_MACOS:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes there, KiB on Linux
    return peak


def file_pages_bytes() -> int:
    """Resident pages of files, in bytes: above all libraries' code that has run so far. 0 where it
    is not reported."""
    return _status_bytes("RssFile") or 0


def _status_bytes(name: str) -> int | None:
    for line in (text("proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return None
