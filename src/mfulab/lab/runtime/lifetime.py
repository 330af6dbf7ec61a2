"""Starts the warm worker for the length of a workflow on this machine, and gives the runs the list of its GPUs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from mfulab.core.files import scratch
from mfulab.device import system, vendors, visible
from mfulab.device.identity import NoDeviceError, gpus, slug
from mfulab.lab.runtime import devices
from mfulab.lab.runtime.client import SOCKET, THREADS
from mfulab.lab.runtime.devices import GPUS, SHOWN
from mfulab.lab.runtime.processes import WORKFLOW

_running = ExitStack()  # of the worker
interrupted = False  # by a signal, after which what Snakemake says of jobs that it ended is no news


def start(is_local: bool = True, work: str = "both") -> None:
    """Starts a worker for `work` that ends with this process, and announces it to later child processes."""
    if not is_local:
        return
    os.environ[WORKFLOW] = str(os.getpid())
    shown = []
    with suppress(NoDeviceError):  # planning has told the user, unless no run needs a GPU
        if shown := [gpu for kind in vendors.kinds() for gpu in gpus(kind)]:
            os.environ[GPUS] = ",".join(f"{slug(device.name)}:{device.uuid}" for device in shown)
            os.environ[SHOWN] = json.dumps({device.uuid: visible([device.uuid]) for device in shown})
    for device in [*(gpu.uuid for gpu in shown), "cpu"]:
        with suppress(RuntimeError):  # which its runs tell
            if told := devices.holder(devices.lock_path(device, os.environ)):
                print(f"mfulab: {told}", file=sys.stderr)
    if path := _running.enter_context(worker(work)):
        os.environ[SOCKET] = path


def stop() -> None:
    """Ends the worker and any run in it."""
    os.environ.pop(WORKFLOW, None)
    os.environ.pop(SOCKET, None)
    _running.close()


@contextmanager
def worker(work: str = "both") -> Iterator[str]:
    """The socket of a worker with this process's environment, until the block ends; empty where runs go without one."""
    if not system.CAN_FORK_AFTER_IMPORTS or os.environ.get(SOCKET) == "":
        yield ""
        return
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asked while it imports, torch must not wake CUDA up
    with scratch("/tmp") as folder:  # noqa: S108 (a folder of its own; a socket's path may have 107 bytes)
        # We listen already, so that a run waits in the queue while the worker imports, and hears at once if it dies.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen(1024)
            process = subprocess.Popen(
                [sys.executable, "-m", "mfulab.lab.runtime.server", str(listener.fileno()), str(folder), work],
                stdin=subprocess.PIPE,  # only this process holds its other end, and even SIGKILL lets it go
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env=environment,
            )
        try:
            yield f"{folder}/socket"
        finally:
            process.kill()  # also where it is still importing
            process.communicate()  # ends the lifeline, and with it the runs
