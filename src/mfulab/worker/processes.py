"""What the operating system does to a run's processes, and is asked to do; nothing breaks where it has no answer."""

import os
import signal
from contextlib import suppress


def out_of_memory_kills() -> int:
    """How many processes this machine has killed for want of memory since it started; 0 where it does not tell."""
    with suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def prefer_to_kill(process: int) -> None:
    """Where memory runs out, `process` is to go first, and not the workflow or the worker."""
    with suppress(OSError), open(f"/proc/{process}/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def kill_group(group: int) -> None:
    """Ends every process of a process group; nothing where none is left."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_with_parent(parent: int) -> None:
    """This process is killed when `parent`, which forked it, ends however that ends (Linux)."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os.kill(os.getpid(), signal.SIGKILL)
