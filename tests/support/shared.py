"""Expensive objects that no test changes, made once for all pytest processes."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Folder `name`, filled by `make` in the first process that needs it, while others wait."""
    shared = factory.getbasetemp()
    shared = shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared
    folder, finished = shared / name, shared / f"{name}.finished"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def leave_the_headline(patch: pytest.MonkeyPatch) -> None:
    """Limits all pages to the first figure while `patch` is active."""
    leave_figures(patch, ("mfu_versus_utilization",))


def leave_figures(patch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
    """Limits all pages to these figures while `patch` is active."""
    from mfulab.lab.report import figures

    known = figures.modules()
    left = {name: known[name] for name in names}
    patch.setattr(figures, "modules", lambda: left)
