"""Starts the warm worker for the length of a workflow on this machine, and tells the runs which GPUs there are."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from mfulab.hardware import system
from mfulab.hardware.identity import NoDeviceError, cuda_devices, slug
from mfulab.runtime.client import SOCKET, THREADS
from mfulab.runtime.devices import GPUS
from mfulab.runtime.processes import WORKFLOW

_worker: subprocess.Popen[bytes] | None = None


def start(is_local: bool = True, measures: bool = True) -> None:
    """Starts a worker that ends with this process, and tells later child processes of both; returns at once.

    It imports what measuring needs, or where nothing is to be measured (`measures` is false) what the report needs.

    Runs that are sent to other machines (`is_local` is false) run directly, and so do all with MFULAB_WORKER= (empty).
    """
    global _worker
    if not is_local:
        return
    os.environ[WORKFLOW] = str(os.getpid())
    _tell_gpus()
    if not system.can_fork_after_imports() or os.environ.get(SOCKET) == "":
        return
    what = "measures" if measures else "reports"
    folder = Path(tempfile.mkdtemp(prefix="mfulab-", dir="/tmp"))  # short: a socket's path may have 107 bytes
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asked while it imports, torch must not wake CUDA up
    # We listen already, so that a run waits in the queue while the worker imports, and hears at once if it dies.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1024)
        _worker = subprocess.Popen(
            [sys.executable, "-m", "mfulab.runtime.server", str(listener.fileno()), str(folder), what],
            stdin=subprocess.PIPE,  # its end is the worker's: only this process holds it, and even SIGKILL lets it go
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=environment,
        )
    os.environ[SOCKET] = str(folder / "socket")


def stop() -> None:
    """Ends the worker and any run in it."""
    global _worker
    os.environ.pop(WORKFLOW, None)
    path = os.environ.pop(SOCKET, None)
    if _worker is None or _worker.stdin is None or path is None:
        return
    _worker.stdin.close()
    _worker.kill()  # it may still be importing
    _worker.wait()
    _worker = None
    shutil.rmtree(Path(path).parent, ignore_errors=True)


def _tell_gpus() -> None:
    try:
        found = cuda_devices()
    except NoDeviceError:  # planning has told the user, unless no run needs a GPU
        return
    if found:
        os.environ[GPUS] = ",".join(f"{slug(device.name)}:{device.uuid}" for device in found)
