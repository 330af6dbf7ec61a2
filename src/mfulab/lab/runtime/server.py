"""The warm worker: `python -m mfulab.lab.runtime.server LISTENER FOLDER WORK`. It imports once,
touches no device, forks a process for each run, and ends with the workflow. LISTENER is the
descriptor of a listening Unix socket in FOLDER; standard input is the lifeline. A keeper per run
reports its exit status, and kills it when client or workflow is gone."""

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

# Modules that are slow to import. Those for measurements come first, as a waiting run needs them.
PRELOADED = ("numpy", "numba", "torch", "triton", "mfulab.lab.runtime.run")
# All modules of these folders are imported, for what they import in turn.
FOLDERS = ("measurements/**/[!_]*.py", "models/[!_]*.py")
REPORT = ("mfulab.lab.tables.build", "mfulab.lab.report.figures", "mfulab.lab.report.page.document")
# Slow imports that only some runs need: the modules, and those of `models` that import them.
OPTIONAL = {
    "dynamo": (["torch._dynamo"], []),
    "transformers": (["transformers.modeling_utils"], ["huggingface", "lora", "static_cache"]),
    "jax": ([], ["framework_jax"]),
    "tensorflow": ([], ["framework_tensorflow"]),
}
LIFELINE = 0


def serve(listener: socket.socket, work: str) -> None:
    """Answers requests until standard input ends. `work` says what to import, see `modules_for`."""
    preload(modules_for(work))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps keepers automatically
    while True:
        ready, _, _ = select.select([listener.fileno(), LIFELINE], [], [])
        if LIFELINE in ready:
            break
        connection, _ = listener.accept()
        if fork() == 0:
            listener.close()
            try:
                _keep(connection)
            except Exception as error:  # one sentence, as the sweep's terminal shows it
                say(_message("a run was not begun", error), file=sys.stderr)
            finally:
                os._exit(0)
        connection.close()
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            _send(listener.accept()[0], WORKFLOW_ENDED)


def fork() -> int:
    """`os.fork()` without the warning of Python 3.12 about threads: the worker's only other threads
    are idle ones of BLAS, which supports forking."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning
        )
        return os.fork()


def modules_for(work: str) -> list[str]:
    """Modules to import for a workflow that measures (`rows`), makes the `report`, or does `both`.
    Further words are keys of OPTIONAL, or modules."""
    kind, *used = work.split()
    if kind == "report":
        return list(REPORT)
    modules = list(PRELOADED)
    for name in used:
        needed, _ = OPTIONAL.get(name, ([name], []))
        modules.extend(needed)
    skipped = set[str]()
    for name, (_, models) in OPTIONAL.items():
        if name not in used:
            skipped.update(models)
    root = Path(__file__).parents[2]
    for folder in FOLDERS:
        for path in sorted(root.glob(folder)):
            if path.stem not in skipped:
                parts = path.relative_to(root).with_suffix("").parts
                modules.append(".".join(("mfulab", *parts)))
    if kind == "both":
        modules += [*REPORT, "mfulab.lab.tables.seminar"]
    return modules


def preload(modules: Iterable[str]) -> None:
    """Imports modules. One that cannot be imported is skipped; the rows of runs that need it say
    why."""
    # Nearly all imported objects stay: garbage collection took a seventh of the time.
    gc.disable()
    for name in modules:
        with suppress(Exception):
            pkgutil.resolve_name(name)
            for language in LANGUAGES if name in REPORT else ():  # texts of figures and page
                catalogue(language)
    commit()  # caches the commit of the imported code for every run
    gc.collect()
    gc.freeze()  # keeps a child's collector from writing to shared pages
    gc.enable()


def _keep(connection: socket.socket) -> None:
    """Reads a request, forks the run, waits for it and sends its exit status (negative: a signal).
    Kills it if the client or the workflow ends."""
    # The request, with the descriptors of the client's stdout and stderr.
    data, outputs, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while not data.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:
            return  # the client is gone
        data += more
    _send(connection, STARTED)
    become = partial(_run, parse_json(data), outputs, connection)
    status, ended = processes.supervise(become, [connection.fileno(), LIFELINE])
    _send(connection, WORKFLOW_ENDED if LIFELINE in ended else b"%d\n" % status)


def _message(problem: str, error: Exception) -> str:
    reason = str(error) or "no reason given"
    return f"mfulab: the worker: {problem}: {type(error).__name__}: {reason}"


def _send(connection: socket.socket, answer: bytes) -> None:
    with suppress(OSError):  # the client may be gone
        connection.sendall(answer)


def _run(request: Content, outputs: list[int], connection: socket.socket) -> NoReturn:
    """Turns this process into the run, with the client's folder, environment, arguments and
    output."""
    status = 1
    try:
        connection.close()
        streams = [os.open(os.devnull, os.O_RDONLY), *outputs]
        for standard, descriptor in zip((0, 1, 2), streams, strict=True):
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
        traceback.print_exc()  # into the run's log, for the author of the code that ran
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)  # the C streams of libraries
        os._exit(status)


def _interrupted(*_: object) -> NoReturn:
    """Ends the worker at once. A KeyboardInterrupt could be lost in a module that is being
    imported, which may convert it to another error."""
    say("mfulab: the worker was interrupted; runs go on without it", file=sys.stderr)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupted)
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[3])
    except KeyboardInterrupt:
        _interrupted()
    except Exception as error:  # such as too many open files or processes
        say(_message("it ended; runs go on without it", error), file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
