"""Starts the warm worker for the length of a workflow."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mfulab.worker.client import SOCKET

_lifeline: subprocess.Popen | None = None


def start() -> None:
    """Starts a worker that ends with this process, and tells later child processes where it is; returns at once."""
    global _lifeline
    folder = tempfile.mkdtemp(prefix="mfulab-")  # short: a socket's path may have 107 bytes
    socket = Path(folder, "worker")
    # Only this process holds the pipe's other end, so that the worker sees it close even where we are killed.
    _lifeline = subprocess.Popen(
        [sys.executable, "-m", "mfulab.worker.server", str(socket)], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[SOCKET] = str(socket)


def stop() -> None:
    """Ends the worker."""
    global _lifeline
    os.environ.pop(SOCKET, None)
    if _lifeline is not None and _lifeline.stdin is not None:
        _lifeline.stdin.close()
        _lifeline.wait()
        _lifeline = None
