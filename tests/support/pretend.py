"""Workflow on fake GPUs. Everything is real except the measurements."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from support.processes import HANGS_S
from support.workflow_copy import ROOT, copy_workflow, fake_steps

from mfulab.lab.runtime.client import SOCKET

HARDWARE = "nvidia-pretend"
# A measurement records its place and times. While a file `hold` exists, only the first one ends. If
# a file `together` holds a number, each waits up to a minute until this many have begun.
MEASURE = """
import json, os, time
from mfulab.device import identity
identity.hardware_slug = lambda device="auto": "nvidia-pretend"
identity.resolve = lambda device_type: "cuda"

def measure(config, folder):
    began = time.time()
    Path(folder, "began").touch()
    time.sleep(0.5)
    while Path("hold").exists() and Path("told").exists():
        time.sleep(0.1)
    count = int(Path("together").read_text()) if Path("together").exists() else 0
    while len(list(Path("results").glob("*/*/*/began"))) < count and time.time() < began + 60:
        time.sleep(0.1)
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "MFULAB_WORKER")
    where = [os.environ.get(name) for name in names]
    with open("told", "a") as file:
        file.write(json.dumps([*where, began, time.time(), str(folder)]) + "\\n")
    return Measured(MEASUREMENTS[step].row())
"""
EXPERIMENT = """# @package _global_
steps: [bench_matmul]
replicates: 1
ceiling_replicates: 1
hydra:
  sweeper:
    params:
      kernel: torch
      size: 64,128
"""
RUNS = [
    "environment/all",
    "ceilings/ceiling=fp32",
    "ceilings/ceiling=memory",
    *(f"bench_matmul/kernel=torch,size={size},precision=fp32" for size in (64, 128)),
]


class Measurement(NamedTuple):
    """Finished measurement: its GPU, job, job's cores, worker, begin and end in Unix seconds, and
    folder."""

    gpu: str
    job: str | None
    cores: str | None
    worker: str | None
    began: float
    ended: float
    folder: str


def make(folder: Path) -> Path:
    """Creates the workflow's files in `folder`, with fake steps and an experiment of RUNS."""
    copy_workflow(folder)
    fake_steps(folder, MEASURE)
    (folder / "config/experiment/pretend.yaml").write_text(EXPERIMENT)
    return folder


def command(
    *arguments: str,
    runs: Sequence[str] = RUNS,
    hardware: str = HARDWARE,
    snakemake: Sequence[str] = ("-m", "snakemake"),
) -> list[str]:
    """Snakemake command for the rows of `runs`. `snakemake` are the arguments with which Python
    starts it."""
    rows = [f"results/{hardware}/{run}/row.csv" for run in runs]
    config = ["--config", "experiment=pretend", f"hardware={hardware}"]
    return [sys.executable, *snakemake, *arguments, *config, "--", *rows]


def environment(**more: str) -> dict[str, str]:
    """Environment of this process, with the checkout's package and without a worker."""
    return {
        **{key: value for key, value in os.environ.items() if key != SOCKET},
        "PYTHONPATH": str(ROOT / "src"),
        **more,
    }


def start(tree: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """Starts Snakemake in `tree`. Its output is read by `finish`."""
    return subprocess.Popen(
        command(*arguments, **options),  # type: ignore[arg-type]
        cwd=tree,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], status: int = 0, timeout_s: float = HANGS_S) -> str:
    """Waits for a process, asserts its exit status, and returns its output."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        process.kill()
        late.add_note(process.communicate()[0])
        raise
    assert process.returncode == status, output
    return output


def told(tree: Path) -> list[Measurement]:
    """All finished measurements."""
    path = tree / "told"
    return (
        [Measurement(*json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def begun(tree: Path) -> int:
    """Number of runs that have begun, including finished ones."""
    return len(list(tree.glob("results/*/*/*/began")))


def rows(tree: Path) -> set[str]:
    """Runs that have a row."""
    folder = tree / "results" / HARDWARE
    return {str(path.parent.relative_to(folder)) for path in folder.glob("*/*/row.csv")}


def assert_all_measured_once(tree: Path, runs: Collection[str] = RUNS) -> None:
    assert Counter(Counter(measurement.folder for measurement in told(tree)).values()) == {
        1: len(runs)
    }
    assert rows(tree) == set(runs)


def assert_one_at_a_time_on_each_gpu(tree: Path, gpus: Collection[str]) -> None:
    """Asserts that measurements used only these GPUs, and none at the same time as another on the
    same GPU."""
    assert {made.gpu for made in told(tree)} <= set(gpus)
    for gpu in gpus:
        spans = sorted((made.began, made.ended) for made in told(tree) if made.gpu == gpu)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
