"""The warm worker: imports once, touches no device, forks a child for each run, ends when the
workflow does. LISTENER is the descriptor of a listening Unix socket in FOLDER, standard input the
lifeline. A keeper of each run tells how it ended, and ends it when client or workflow is gone:
`python -m mfulab.lab.runtime.server LISTENER FOLDER WORK`."""

import ctypes
import faulthandler
import gc
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from mfulab.core.json_text import parse_json
from mfulab.core.language import LANGUAGES, catalogue
from mfulab.core.parts import Content
from mfulab.core.printing import say
from mfulab.lab.runtime import processes
from mfulab.lab.runtime.client import STARTED, WORKFLOW_ENDED
from mfulab.lab.runtime.run import commit

# What runs spend their start on, the measurements' first: a run that is already there waits for all
# of it.
PRELOADED = ("numpy", "numba", "torch", "triton", "mfulab.lab.runtime.run")
FOLDERS = (
    "measurements/**/[!_]*.py",
    "models/[!_]*.py",
)  # every module of these, for all that they import
REPORT = ("mfulab.lab.tables.build", "mfulab.lab.report.figures", "mfulab.lab.report.page.document")
# What only some runs need and takes seconds: modules beside the others, and those of `models` that
# import it.
BESIDE = {
    "dynamo": (["torch._dynamo"], []),
    "transformers": (["transformers.modeling_utils"], ["huggingface", "lora", "static_cache"]),
    "jax": ([], ["framework_jax"]),
    "tensorflow": ([], ["framework_tensorflow"]),
}
LIFELINE = 0


def serve(listener: socket.socket, work: str) -> None:
    """Answers requests until standard input ends; `work` is what the workflow does, as in
    `modules_for`."""
    preload(modules_for(work))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        ready, _, _ = select.select([listener.fileno(), LIFELINE], [], [])
        if LIFELINE in ready:
            break
        connection, _ = listener.accept()
        if fork() == 0:
            listener.close()
            try:
                _keep(connection)
            except Exception as error:  # a sweep's terminal shows it, which gets one sentence
                say(_told("a run was not begun", error), file=sys.stderr)
            finally:
                os._exit(0)
        connection.close()
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            _tell(listener.accept()[0], WORKFLOW_ENDED)


def fork() -> int:
    """`os.fork()` without the warning of Python 3.12: the worker's other threads are idle ones of
    BLAS, made for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning
        )
        return os.fork()


def modules_for(work: str) -> list[str]:
    """Modules for a workflow that measures (`rows`), makes the `report`, or does `both`, and for
    names of BESIDE."""
    work, *used = work.split()
    if work == "report":
        return list(REPORT)
    root = Path(__file__).parents[2]
    left = set()
    for name, (_, models) in BESIDE.items():
        if name not in used:
            left.update(models)
    beside = []
    for name in used:
        beside.extend(BESIDE.get(name, ([name], []))[0])
    paths = []
    for folder in FOLDERS:
        for path in sorted(root.glob(folder)):
            if path.stem not in left:
                paths.append(path)
    modules = [
        ".".join(("mfulab", *path.relative_to(root).with_suffix("").parts)) for path in paths
    ]
    return [
        *PRELOADED,
        *beside,
        *modules,
        *((*REPORT, "mfulab.lab.tables.seminar") if work == "both" else ()),
    ]


def preload(modules: Iterable[str]) -> None:
    """Imports what runs need. A module that cannot be imported is left to the runs, whose rows say
    why."""
    # nearly all that is imported stays: to look for garbage meanwhile took a seventh of the time
    gc.disable()
    for name in modules:
        with suppress(Exception):
            pkgutil.resolve_name(name)
            for language in LANGUAGES if name in REPORT else ():  # the texts of figures and page
                catalogue(language)
    commit()  # of the code that is imported now; remembered for every run
    gc.collect()
    gc.freeze()  # a child's collector leaves the shared pages alone
    gc.enable()


def _keep(connection: socket.socket) -> None:
    """Forks the run, waits, and reports its exit status (negative: a signal); kills it when nobody
    waits any more."""
    data, outputs, _, _ = socket.recv_fds(
        connection, 1 << 20, 2
    )  # the request; standard output and error
    while not data.endswith(b"\n"):
        if not (more := connection.recv(1 << 20)):
            return  # the client is gone
        data += more
    _tell(connection, STARTED)
    become = partial(_run, parse_json(data), outputs, connection)
    status, ended = processes.supervise(become, [connection.fileno(), LIFELINE])
    _tell(connection, WORKFLOW_ENDED if LIFELINE in ended else b"%d\n" % status)


def _told(what: str, error: Exception) -> str:
    reason = str(error) or "no reason given"
    return f"mfulab: the worker: {what}: {type(error).__name__}: {reason}"


def _tell(connection: socket.socket, answer: bytes) -> None:
    with suppress(OSError):  # the client may be gone
        connection.sendall(answer)


def _run(request: Content, outputs: list[int], connection: socket.socket) -> NoReturn:
    """Becomes the run: its folder, environment, arguments and output are the client's."""
    status = 1
    try:
        connection.close()
        for descriptor, standard in zip(
            [os.open(os.devnull, os.O_RDONLY), *outputs], (0, 1, 2), strict=True
        ):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        faulthandler.enable()
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        sys.argv = request["command"]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            say(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
        say("interrupted", file=sys.stderr)
    except BaseException:
        traceback.print_exc()  # into the run's log: whoever wrote what ran looks for its line there
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)  # what libraries printed
        os._exit(status)


def _interrupted(*_: object) -> NoReturn:
    """Ends the worker where it is: a module that is being imported may make an error of its own of
    a KeyboardInterrupt, which would be lost."""
    say("mfulab: the worker was interrupted; runs go on without it", file=sys.stderr)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupted)
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[3])
    except KeyboardInterrupt:
        _interrupted()
    except Exception as error:  # such as no more files or processes
        say(_told("it ended; runs go on without it", error), file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
