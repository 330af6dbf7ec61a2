"""Features that only Linux has, each with a fallback on macOS: None, or no effect. Only this module
and `lab/runtime/processes.py` check the operating system. Every run's client imports this module,
so it does not import the errors, which would double the start time."""

import os
import resource
import signal
import sys
from contextlib import suppress

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
# after importing torch: macOS's frameworks start threads, and a later fork may hang
CAN_FORK_AFTER_IMPORTS = IS_LINUX
ROOT = "/"  # /proc and /sys stand below it
PR_SET_PDEATHSIG = 1  # of prctl(2)
PCI_DEVICES = "sys/bus/pci/devices"
DISPLAY, ACCELERATOR = "0x03", "0x12"  # first byte of a PCI device's class
LONGEST_NUMBER = 9  # digits of a device index


def text(path: str | os.PathLike[str]) -> str | None:
    """Content of a file below `ROOT`, such as `proc/stat`. None if it is missing or unreadable."""
    try:
        with open(os.path.join(ROOT, path), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def names(path: str) -> list[str]:
    """Sorted names in a folder below `ROOT`; empty if it is missing."""
    with suppress(OSError):
        return sorted(os.listdir(os.path.join(ROOT, path)))
    return []


def pci_devices(makers: tuple[str, ...], classes: tuple[str, ...]) -> dict[str, str]:
    """PCI vendor of each device of these makers and classes, by its address."""
    found = {}
    for address in names(PCI_DEVICES):
        maker = text(f"{PCI_DEVICES}/{address}/vendor") or ""
        kind = text(f"{PCI_DEVICES}/{address}/class") or ""
        if maker in makers and kind.startswith(classes):
            found[address] = maker
    return found


def check_processes() -> None:
    """Raises UnsupportedError if Linux hides /proc, which psutil and the samplers read."""
    from mfulab.core.errors import UnsupportedError
    from mfulab.core.said import Said

    if IS_LINUX and text("proc/stat") is None:
        raise UnsupportedError(Said("no_proc"))


def write(path: str, content: str) -> None:
    """Writes to a file below `ROOT`, such as one in /proc. Ignores errors."""
    with suppress(OSError), open(os.path.join(ROOT, path), "w", encoding="ascii") as file:
        file.write(content)


def prctl(option: int, value: int) -> None:
    """Calls prctl(2) on Linux; no effect elsewhere."""
    import ctypes

    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends, however it ends. Exits at once if it
    has already ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def has_semaphores() -> bool:
    """True if processes can share semaphores, which pools and queues need. Linux keeps them in
    /dev/shm."""
    from multiprocessing import get_context

    try:
        get_context("fork").Lock()
    except (ImportError, OSError):
        return False
    return True


def place_in(entry: str, count: int) -> int:
    """Device index in an entry of a variable such as CUDA_VISIBLE_DEVICES. Returns `count` if the
    entry is not a valid index."""
    number = entry.strip()
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        return count
    return min(int(number), count)


def affinity() -> frozenset[int] | None:
    """Logical CPUs that this process may use. None if the system has no affinity (macOS)."""
    return frozenset(os.sched_getaffinity(0)) if IS_LINUX else None


def boot() -> str:
    """Identifier of the current boot, also inside a container. Empty if not reported."""
    return text("proc/sys/kernel/random/boot_id") or ""


def peak_memory_bytes() -> int | None:
    """Peak resident memory of this process in bytes (VmHWM; on macOS from getrusage)."""
    peak = _status_bytes("VmHWM")
    if peak is None and IS_MACOS:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes there, KiB on Linux
    return peak


def file_pages_bytes() -> int:
    """Resident bytes of mapped files, mostly code of libraries. 0 if not reported."""
    return _status_bytes("RssFile") or 0


def _status_bytes(name: str) -> int | None:
    for line in (text("proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return None
