"""A copy of the project whose runs measure nothing: what they cost is what the pipeline costs."""

import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# The real app, runner and imports of the step; only its measurement returns at once.
SCRIPT = """
from pathlib import Path
import importlib
from mfulab.app import main
from mfulab.rows import ROWS
from mfulab.steps.base import Measured

name = Path(__file__).stem
step = importlib.import_module(f"mfulab.steps.{name}")
step.measure = lambda config, folder: Measured(ROWS[name](measured_s=0.0))
main(name)
"""
STEPS = ("environment", "ceilings", "count_flops", "profile_step", "bench_matmul")


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds of wall time, and the largest memory of it or a child of it in bytes."""

    time_s: float
    memory_bytes: int


def make_tree(folder: Path) -> None:
    """Copies what Snakemake needs of this project to `folder` and replaces the steps' scripts."""
    for name in ("config", "workflow", "scripts"):
        shutil.copytree(PROJECT / name, folder / name)
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(PROJECT / name, folder / name)
    (folder / "profiles").symlink_to("workflow/profiles")
    for step in STEPS:
        (folder / "scripts" / f"{step}.py").write_text(SCRIPT)


def run(folder: Path, *command: str, **environment: str) -> Cost:
    """Runs a Python command in `folder`; raises CalledProcessError, its output shown, where it fails."""
    before = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), **environment}
    started = time.perf_counter()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([sys.executable, *command], cwd=folder, env=before, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print((folder / "output").read_text()[-5000:], file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(elapsed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def machine() -> str:
    """One line about where this was measured."""
    from mfulab.hardware.identity import hardware_slug

    load = os.getloadavg()[0]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"{hardware_slug('cpu')}, Python {sys.version.split()[0]}, load {load:.1f} at the start, {limit} files"
