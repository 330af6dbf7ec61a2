"""Starts the warm worker for the length of a workflow on this machine, and gives the runs the list
of its GPUs."""

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

_running = ExitStack()  # of the worker
interrupted = False  # by a signal, after which what Snakemake says of jobs that it ended is no news


def start(is_local: bool = True, work: str = "both") -> None:
    """Starts a worker for `work` that ends with this process, and announces it to later child
    processes."""
    if not is_local:
        return
    os.environ[WORKFLOW] = str(os.getpid())
    shown = []
    with suppress(NoDeviceError):  # planning has told the user, unless no run needs a GPU
        if shown := [gpu for kind in vendors.kinds() for gpu in gpus(kind)]:
            os.environ[GPUS] = ",".join(f"{slug(device.name)}:{device.uuid}" for device in shown)
            os.environ[SHOWN] = json.dumps(
                {device.uuid: visible([device.uuid]) for device in shown}
            )
    for device in [*(gpu.uuid for gpu in shown), "cpu"]:
        with suppress(RuntimeError):  # which its runs tell
            if held_by := devices.holder(devices.lock_path(device, os.environ)):
                say(f"mfulab: {held_by}", file=sys.stderr)
    if path := _running.enter_context(worker(work)):
        os.environ[SOCKET] = path


def stop() -> None:
    """Ends the worker and any run in it."""
    os.environ.pop(WORKFLOW, None)
    os.environ.pop(SOCKET, None)
    _running.close()


@contextmanager
def worker(work: str = "both") -> Iterator[str]:
    """The socket of a worker with this process's environment, until the block ends; empty where
    runs go without one."""
    if not system.CAN_FORK_AFTER_IMPORTS or os.environ.get(SOCKET) == "":
        yield ""
        return
    environment = {}
    for key, value in os.environ.items():
        if key not in THREADS:
            environment[key] = value
    # asked while it imports, torch must not wake CUDA up
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with ExitStack() as stack:
        try:
            folder, listener = stack.enter_context(_listening())
        except OSError as error:  # no folder can be written, or its name is too long for a socket
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
            # only this process holds its other end, and even SIGKILL lets it go
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=environment,
        )
        listener.close()
        try:
            yield f"{folder}/socket"
        finally:
            process.kill()  # also where it is still importing
            process.communicate()  # ends the lifeline, and with it the runs


@contextmanager
def _listening() -> Iterator[tuple[Path, socket.socket]]:
    """A folder of this process alone and the socket in it. It listens already, so that a run waits
    in the queue while the worker imports, and hears at once if it dies. A socket's path may have
    107 bytes: its folder is below /tmp where that can be written."""
    parent = "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108 (a folder of its own)
    with scratch(parent) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(1024)
        yield folder, listener
