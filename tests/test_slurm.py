"""The sweep on a real SLURM with two pretend GPUs: it completes, is resumed, and measures nothing twice."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from slurm_cluster import GPUS, Cluster, why_not

from mfulab.worker.client import SOCKET

PROJECT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.xdist_group("slurm"),  # one cluster for all
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# Each step's script: the real app on a pretend GPU, which notes where and when it measured.
SCRIPT = """
import importlib, json, os, sys, time, types
from pathlib import Path
from mfulab.hardware import identity
identity.hardware_slug = lambda device="auto": "nvidia-pretend"
from mfulab.app import main
from mfulab.rows import ROWS
from mfulab.steps.base import Measured
step = Path(__file__).stem

def measure(config, folder):
    began = time.time()
    time.sleep(0.5)
    told = [os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("SLURM_JOB_ID"), began, time.time(), str(folder)]
    with open("told", "a") as file:
        file.write(json.dumps(told) + "\\n")
    return Measured(ROWS[step]())

module = types.ModuleType(f"mfulab.steps.{step}")
module.measure = measure
sys.modules[module.__name__] = module
main(step)
"""
EXPERIMENT = """# @package _global_
steps: [bench_matmul]
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
OPTIONS = (  # of the test cluster: it has no accounting, and is quick
    "--slurm-status-command=squeue --slurm-init-seconds-before-status-checks=1 --seconds-between-status-checks=1"
    " --latency-wait=10 --slurm-no-account"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("config", "workflow"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "profiles").symlink_to("workflow/profiles")
    shutil.copytree(PROJECT / "scripts", tmp_path / "scripts")
    for step in ("environment", "ceilings", "count_flops", "profile_step", "bench_matmul"):
        (tmp_path / "scripts" / f"{step}.py").write_text(SCRIPT)
    (tmp_path / "config/experiment/pretend.yaml").write_text(EXPERIMENT)
    return tmp_path


def start(
    tree: Path, *arguments: str, runs: list[str] = RUNS, hardware: str = "nvidia-pretend"
) -> subprocess.Popen[str]:
    """The command of docs/clusters.md, on the login node, which has no GPU."""
    command = [sys.executable, "-m", "snakemake", "--profile", "workflow/profiles/slurm", *OPTIONS.split(), *arguments]
    command += [
        "--config",
        "experiment=pretend",
        f"hardware={hardware}",
        "--",
        *(f"results/{hardware}/{run}/row.csv" for run in runs),
    ]
    environment = {key: value for key, value in os.environ.items() if key != SOCKET}
    environment["PYTHONPATH"] = str(PROJECT / "src")
    return subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    output, _ = process.communicate(timeout=110)
    assert process.returncode == status, output
    return output


def told(tree: Path) -> list[tuple[str, str, float, float, str]]:
    """(GPU, job, start, end, folder) of each measurement that was made."""
    path = tree / "told"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def until_measured(sweep: subprocess.Popen[str], tree: Path, count: int) -> None:
    while len(told(tree)) < count:
        assert sweep.poll() is None, sweep.communicate()[0]
        time.sleep(0.1)


def assert_all_measured_once(tree: Path) -> None:
    assert Counter(Counter(measurement[4] for measurement in told(tree)).values()) == {1: len(RUNS)}
    assert len(list(tree.glob("results/nvidia-pretend/*/*/row.csv"))) == len(RUNS)


def assert_one_at_a_time_on_each_gpu(tree: Path) -> None:
    for gpu in GPUS:
        spans = sorted(measurement[2:4] for measurement in told(tree) if measurement[0] == gpu)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


def test_a_sweep_survives_its_nodes_daemon_and_is_done_once(cluster: Cluster, tree: Path) -> None:
    sweep = start(tree)
    until_measured(sweep, tree, 1)
    cluster.kill_slurmd()
    time.sleep(2)
    cluster.start_slurmd()
    finish(sweep)
    assert_all_measured_once(tree)
    assert {measurement[0] for measurement in told(tree)} == set(GPUS)  # both were used
    assert_one_at_a_time_on_each_gpu(tree)
    assert {path.parent.name for path in tree.glob("results/*/plan")} == {"nvidia-pretend"}  # no job planned its own
    assert "Nothing to be done" in finish(start(tree))


def test_a_cancelled_job_is_resumed_and_nothing_measured_twice(cluster: Cluster, tree: Path) -> None:
    sweep = start(tree, "--retries=0")
    until_measured(sweep, tree, 1)
    while not cluster.jobs("RUNNING"):
        time.sleep(0.05)
    subprocess.run(["scancel", *cluster.jobs("RUNNING")], check=True)
    finish(sweep, status=1)
    finish(start(tree))
    assert len(list(tree.glob("results/nvidia-pretend/*/*/row.csv"))) == len(RUNS)
    finished = Counter(measurement[4] for measurement in told(tree))
    assert len(finished) == len(RUNS)
    # A job may have been cancelled after its measurement and before it could say so: that one is made again.
    assert sum(finished.values()) - len(RUNS) <= 2


def test_short_runs_share_an_allocation(cluster: Cluster, tree: Path) -> None:
    finish(start(tree, "--groups", "bench_matmul=g", "--group-components", "g=2", runs=RUNS[3:]))
    assert len(told(tree)) == 2
    assert len({measurement[1] for measurement in told(tree)}) == 1
    assert_one_at_a_time_on_each_gpu(tree)


def test_a_run_on_another_device_than_it_claims_is_refused(cluster: Cluster, tree: Path) -> None:
    output = finish(start(tree, "--retries=0", runs=RUNS[:1], hardware="nvidia-other"), status=1)
    assert "hardware=nvidia-other: this run was planned for it, but here is nvidia-pretend. Not measured." in output
    assert told(tree) == []
