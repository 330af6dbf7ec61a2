"""Starts the warm worker for the length of a workflow on this machine, and gives the runs the list of its GPUs."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mfulab.device import APPLE, GPU, system
from mfulab.device.identity import NoDeviceError, gpus, slug
from mfulab.runtime.client import SOCKET, THREADS
from mfulab.runtime.devices import GPUS
from mfulab.runtime.processes import WORKFLOW

_worker: "Worker | None" = None
interrupted = False  # by a signal, after which what Snakemake says of jobs that it ended is no news


@dataclass(frozen=True)
class Worker:
    """A warm worker, which ends with this process at the latest; clients find it by its socket."""

    process: subprocess.Popen[bytes]
    socket: str

    def stop(self) -> None:
        """Ends it and any run in it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()  # it may still be importing
        self.process.wait()
        shutil.rmtree(Path(self.socket).parent, ignore_errors=True)


def start(is_local: bool = True, work: str = "both") -> None:
    """Starts a worker that ends with this process, and announces both to later child processes; returns at once.

    It imports what `work` needs: measuring alone (`rows`), the `report`, or `both`.

    Runs that are sent to other machines (`is_local` is false) run directly, and so do all with MFULAB_WORKER= (empty).
    """
    global _worker
    if not is_local:
        return
    os.environ[WORKFLOW] = str(os.getpid())
    with suppress(NoDeviceError):  # planning has told the user, unless no run needs a GPU
        if found := [*gpus(GPU), *gpus(APPLE)]:
            os.environ[GPUS] = ",".join(f"{slug(device.name)}:{device.uuid}" for device in found)
    _worker = start_worker(work)
    if _worker is not None:
        os.environ[SOCKET] = _worker.socket


def start_worker(work: str = "both") -> Worker | None:
    """Starts a worker with the modules that this process's environment finds; None where runs go without one."""
    if not system.can_fork_after_imports() or os.environ.get(SOCKET) == "":
        return None
    folder = Path(tempfile.mkdtemp(prefix="mfulab-", dir="/tmp"))  # short: a socket's path may have 107 bytes
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asked while it imports, torch must not wake CUDA up
    # We listen already, so that a run waits in the queue while the worker imports, and hears at once if it dies.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1024)
        process = subprocess.Popen(
            [sys.executable, "-m", "mfulab.runtime.server", str(listener.fileno()), str(folder), work],
            stdin=subprocess.PIPE,  # its end is the worker's: only this process holds it, and even SIGKILL lets it go
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=environment,
        )
    return Worker(process, str(folder / "socket"))


def stop() -> None:
    """Ends the worker and any run in it."""
    global _worker
    os.environ.pop(WORKFLOW, None)
    os.environ.pop(SOCKET, None)
    if _worker is not None:
        _worker.stop()
    _worker = None
