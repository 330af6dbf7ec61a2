"""Times commands in copies of the project. Sweeps whose runs measure nothing show the cost of the
pipeline."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.workflow_copy import ROOT, STEPS, copy_workflow, fake_steps

# Imports the measurement, as that is part of a run's cost, but does not measure.
MEASURE = """
import importlib
importlib.import_module(f"mfulab.measurements.{step}.measure")
measure = lambda config, folder: Measured(MEASUREMENTS[step].row(measured_s=0.0))
"""
ALL = "budget_min=null"  # otherwise a slow machine would skip runs
PLAN = """
import sys
from mfulab.lab.planning.workflow import Workflow

Workflow(dict(each.split("=", 1) for each in sys.argv[1:])).begin()
"""


@dataclass(frozen=True)
class Cost:
    """Cost of a command: wall seconds, and peak memory in bytes of the command or any child."""

    time_s: float
    memory_bytes: int


@contextmanager
def copy(steps: tuple[str, ...] = STEPS) -> Iterator[Path]:
    """Temporary copy of what Snakemake needs from this project, in which `steps` measure
    nothing."""
    with tempfile.TemporaryDirectory(prefix="mfulab-bench-") as name:
        folder = copy_workflow(Path(name))
        fake_steps(folder, MEASURE, steps)
        yield folder


def run(folder: Path, *command: str, **environment: str) -> Cost:
    """Runs a Python command in `folder`. If it fails, prints its output and raises
    CalledProcessError."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    started = time.perf_counter()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=variables, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print((folder / "output").read_text()[-5000:], file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(elapsed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def matmuls(count: int) -> list[str]:
    """Overrides of a sweep with `count` runs that use the device, so that one runs at a time."""
    once = ["replicates=1", "ceiling_replicates=1", ALL]
    return [
        "steps=[bench_matmul]",
        "kernel=torch",
        "precision=fp32",
        f"size=range(1,{count + 1})",
        *once,
    ]


def counts(count: int) -> list[str]:
    """Overrides of a sweep with `count` runs that need no device, so that as many run at once as
    there are cores."""
    return [
        "steps=[count_flops]",
        "model=linear_1024",
        "precision=fp32",
        f"batch_size=range(1,{count + 1})",
        ALL,
    ]


def plan(folder: Path, sweep: list[str]) -> Cost:
    """Cost of planning, as when the Snakefile is parsed."""
    return run(folder, "-c", PLAN, *sweep)


def measure(folder: Path, sweep: list[str], count: int, cores: str, **environment: str) -> Cost:
    """Cost of the whole command, from planning to the last of `count` rows."""
    cost = run(folder, *_rows(sweep, cores), MFULAB_LOCKS=str(folder), **environment)
    step = sweep[0].split("[")[1].rstrip("]")
    measured = len(
        [*folder.glob(f"results/{step}/*/row.csv"), *folder.glob(f"results/*/{step}/*/row.csv")]
    )
    assert measured == count, f"{measured} of {count} runs have a row"
    return cost


def measure_nothing(folder: Path, sweep: list[str], cores: str) -> Cost:
    """Cost of repeating the command when nothing is to be done."""
    cost = run(folder, *_rows(sweep, cores))
    assert "Nothing to be done" in (folder / "output").read_text()
    return cost


def _rows(sweep: list[str], cores: str) -> list[str]:
    return ["-m", "snakemake", "rows", "--cores", cores, "--config", *sweep]


def machine() -> str:
    """Describes this machine in one line."""
    from mfulab.device.identity import hardware_slug

    return f"{hardware_slug('cpu')}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f} at the start"
