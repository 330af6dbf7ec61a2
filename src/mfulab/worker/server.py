"""The warm worker: imports once, touches no device, forks a child for each run, ends with the workflow however that ends.

    python -m mfulab.worker.server SOCKET          (standard input is the lifeline: its end is the worker's)

For each request two processes are forked from the pristine worker: a keeper, and in it the run. The keeper reports how the
run ended, and ends it when the client or the workflow is gone. Children share imported code and nothing else.
"""

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path

PRELOADED = ("torch", "numpy", "numba", "pydantic", "mfulab.runner", "mfulab.app", "pandas", "seaborn", "jinja2")
LIFELINE = 0


def serve(path: Path) -> None:
    """Answers requests on the Unix socket `path` until standard input ends, then removes its folder."""
    try:
        _preload()
        _answer(path)
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def _preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    for step in sorted((Path(__file__).parents[1] / "steps").glob("*.py")):
        importlib.import_module(f"mfulab.steps.{step.stem}")
    gc.collect()
    gc.freeze()  # a child's collector leaves the shared pages alone


def _answer(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(128)
    Path(f"{path}.new").rename(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        ready, _, _ = select.select([listener, LIFELINE], [], [])
        if LIFELINE in ready:
            break
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(connection)
            os._exit(0)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Forks the run, waits for it, and sends `EXITSTATUS` or `-SIGNAL`; kills it when nobody waits any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while data and not data.endswith(b"\n"):
        data += connection.recv(1 << 20)
    if not data:
        return
    alive, held_by_run = os.pipe()
    run = os.fork()
    if run == 0:
        os.close(alive)
        connection.close()
        _run(json.loads(data), descriptors)
    os.close(held_by_run)
    for descriptor in descriptors:
        os.close(descriptor)
    ready, _, _ = select.select([alive, connection, LIFELINE], [], [])
    if alive not in ready:
        os.killpg(run, signal.SIGKILL)
    _, status = os.waitpid(run, 0)
    if connection not in ready:
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _run(request: dict, descriptors: list[int]) -> None:
    """Becomes the run: its folder, environment, arguments and output are the client's. Never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), LIFELINE)
    os.dup2(descriptors[0], 1)
    os.dup2(descriptors[1], 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
