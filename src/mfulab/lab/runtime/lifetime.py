"""Starts and stops the warm worker with a workflow on this machine, and passes the list of its GPUs
to the runs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mfulab.core.files import scratch
from mfulab.core.printing import say
from mfulab.device import system, vendors, visible
from mfulab.device.identity import NoDeviceError, gpus, slug
from mfulab.lab.runtime import devices
from mfulab.lab.runtime.client import SOCKET, THREADS
from mfulab.lab.runtime.devices import GPUS, SHOWN
from mfulab.lab.runtime.processes import WORKFLOW

_running = ExitStack()  # ends the worker
# True after a signal: Snakemake's messages about jobs that it ended are then not shown.
interrupted = False


def start(is_local: bool = True, work: str = "both") -> None:
    """Starts a worker for `work` that ends with this process, and sets the variables by which later
    child processes find it. Does nothing unless `is_local`."""
    if not is_local:
        return
    os.environ[WORKFLOW] = str(os.getpid())
    found = []
    with suppress(NoDeviceError):  # planning has reported it, unless no run needs a GPU
        for kind in vendors.kinds():
            found += gpus(kind)
        if found:
            os.environ[GPUS] = ",".join(f"{slug(gpu.name)}:{gpu.uuid}" for gpu in found)
            os.environ[SHOWN] = json.dumps({gpu.uuid: visible([gpu.uuid]) for gpu in found})
    for device in [*(gpu.uuid for gpu in found), "cpu"]:
        with suppress(RuntimeError):  # reported by the device's runs
            held_by = devices.holder(devices.lock_path(device, os.environ))
            if held_by:
                say(f"mfulab: {held_by}", file=sys.stderr)
    path = _running.enter_context(worker(work))
    if path:
        os.environ[SOCKET] = path


def stop() -> None:
    """Ends the worker and any run in it."""
    os.environ.pop(WORKFLOW, None)
    os.environ.pop(SOCKET, None)
    _running.close()


@contextmanager
def worker(work: str = "both") -> Iterator[str]:
    """Starts a worker with this process's environment for the block. Yields the path of its socket;
    "" if no worker can be used."""
    if not system.CAN_FORK_AFTER_IMPORTS or os.environ.get(SOCKET) == "":
        yield ""
        return
    environment = {}
    for key, value in os.environ.items():
        if key not in THREADS:
            environment[key] = value
    # Lets torch check for CUDA without initialising it, as a library may ask while it is imported.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with ExitStack() as stack:
        try:
            folder, listener = stack.enter_context(_listening())
        except OSError as error:  # no folder is writable, or its name is too long for a socket
            reason = error.strerror or str(error)
            say(f"mfulab: runs go on without a warm worker: {reason}", file=sys.stderr)
            yield ""
            return
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mfulab.lab.runtime.server",
                str(listener.fileno()),
                str(folder),
                work,
            ],
            # Only this process holds the other end, which closes even after SIGKILL.
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=environment,
        )
        listener.close()
        try:
            yield f"{folder}/socket"
        finally:
            process.kill()  # even if it is still importing
            process.communicate()  # closes the lifeline, which ends the runs


@contextmanager
def _listening() -> Iterator[tuple[Path, socket.socket]]:
    """Yields a private folder and a listening socket in it. It listens before the worker starts, so
    that a run can queue while the worker imports, and notices at once if it dies. The path of a
    socket is limited to 107 bytes, hence a folder in /tmp if that is writable."""
    parent = "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108 (a folder of its own)
    with scratch(parent) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(1024)
        yield folder, listener
