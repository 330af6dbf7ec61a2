"""What takes long to make and no test changes: made once for all of pytest's processes."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, filled by `make` in the first process that asks for it; the others
    wait."""
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
    """Leaves the first figure alone in all pages that are written while `patch` holds."""
    leave_figures(patch, ("mfu_versus_utilization",))


def leave_figures(patch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
    """Leaves these figures alone in all that is drawn and written while `patch` holds."""
    from mfulab.lab.report import figures

    known = figures.modules()
    left = {name: known[name] for name in names}
    patch.setattr(figures, "modules", lambda: left)
