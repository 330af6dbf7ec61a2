"""The sweep on a real SLURM with two pretend GPUs: completed, resumed, nothing twice."""

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import pretend
from support.pretend import RUNS, begun, finish, told
from support.processes import until
from support.slurm_cluster import GPUS, Cluster, why_not

from mfulab.core.said import Said
from mfulab.lab.planning import queues

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.xdist_group("slurm"),  # one cluster for all
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
Start = Callable[..., subprocess.Popen[str]]

OPTIONS = (  # of the test cluster, which has no accounting
    "--slurm-status-command=squeue",
    "--latency-wait=10",
    "--slurm-no-account",
)

# The plugin looks after 40 s, and 10 s later each time that no job has ended; this cluster is asked
# twice a second. Snakemake ends with the test run, even with one that is killed (PR_SET_PDEATHSIG),
# or it would use the next cluster.
SNAKEMAKE = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
RemoteExecutor.next_seconds_between_status_checks = property(lambda self: 0.5, lambda self, seconds: None)
main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return pretend.make(tmp_path)


@pytest.fixture
def start(tree: Path) -> Iterator[Start]:
    """The command of docs/clusters.md, on the login node, which has no GPU; what a failing test
    left is ended."""
    sweeps = []

    def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
        profile = ("--profile", "workflow/profiles/slurm", *OPTIONS)
        sweeps.append(
            pretend.start(tree, *profile, *arguments, snakemake=("-c", SNAKEMAKE), **options)
        )
        return sweeps[-1]

    yield start
    for sweep in sweeps:
        sweep.kill()
        sweep.wait()


def wait_until(condition: Callable[[], bool], sweep: subprocess.Popen[str]) -> None:
    """Waits for what a sweep is to come to; one that has ended before says why."""
    until(lambda: condition() or sweep.poll() is not None)
    assert condition(), sweep.communicate()[0]


@pytest.mark.slow
def test_a_sweep_survives_its_nodes_daemon_and_is_done_once(
    cluster: Cluster, tree: Path, start: Start
) -> None:
    sweep = start()
    wait_until(lambda: len(told(tree)) >= 1, sweep)
    cluster.kill_slurmd()
    time.sleep(2)
    cluster.start_slurmd()
    finish(sweep)
    pretend.assert_all_measured_once(tree)
    assert {measurement.gpu for measurement in told(tree)} == set(GPUS)  # both were used
    pretend.assert_one_at_a_time_on_each_gpu(tree, GPUS)
    assert {measurement.cores for measurement in told(tree)} == {"4"}  # as the profile asks
    # no job planned its own
    assert {path.parent.name for path in tree.glob("results/*/plan")} == {"nvidia-pretend"}
    assert "Nothing to be done" in finish(start())


@pytest.mark.slow
def test_a_cancelled_job_is_resumed_and_nothing_measured_twice(
    cluster: Cluster, tree: Path, start: Start
) -> None:
    (tree / "hold").touch()
    sweep = start("--retries=0")
    # The third begins on a GPU of which one before it has ended: it, at least, is held.
    wait_until(lambda: begun(tree) >= 3, sweep)
    running = cluster.jobs("RUNNING")
    assert running
    subprocess.run(["scancel", *running])  # one of them may have ended just now
    (tree / "hold").unlink()
    finish(sweep, status=1)
    finish(start())
    assert pretend.rows(tree) == set(RUNS)
    finished = Counter(measurement.folder for measurement in told(tree))
    assert len(finished) == len(RUNS)
    # The second may have been cancelled after its measurement and before it could say so: that one
    # is made again.
    assert sum(finished.values()) - len(RUNS) <= 1


@pytest.mark.slow
def test_a_sweep_whose_scheduler_is_silent_is_left_and_a_second_command_measures_nothing_twice(
    cluster: Cluster, tree: Path, start: Start
) -> None:
    (tree / "hold").touch()
    sweep = start()
    wait_until(lambda: begun(tree) >= 3, sweep)
    with cluster.silent():
        sweep.send_signal(signal.SIGTERM)
        began = time.monotonic()
        left = finish(sweep, status=128 + signal.SIGTERM)
        assert time.monotonic() - began < 10
    jobs = (tree / "results" / queues.JOBS).read_text().strip()
    assert str(queues.Queue("slurm", jobs).when_left()) in left
    until(cluster.is_answering)
    active = cluster.jobs("PENDING,RUNNING")  # they go on, and hold both GPUs
    assert active
    submitted = cluster.last_job()
    refused = finish(start(), status=1)
    numbers = {"folder": "results/", "count": len(active), "jobs": jobs}
    assert str(Said("earlier_jobs_go_on", numbers)) in refused
    assert cluster.last_job() == submitted, "a refused command submits nothing"
    (tree / "hold").unlink()
    until(lambda: not cluster.jobs("PENDING,RUNNING,COMPLETING"))
    finish(start())
    pretend.assert_all_measured_once(tree)
    assert not (tree / "results" / queues.JOBS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("again_by", ["slurm", "snakemake"])
def test_runs_of_a_node_that_is_lost_are_measured_once(
    cluster: Cluster, tree: Path, start: Start, again_by: str
) -> None:
    """The node's daemon, its job and all that it began are gone at once, as without power. SLURM
    starts the job again after two minutes, or Snakemake submits another: a group of two runs, of
    which one has its row."""
    matmuls = RUNS[3:]
    (tree / "hold").touch()
    options = ["--slurm-no-requeue"] if again_by == "snakemake" else []
    sweep = start(*options, runs=matmuls)
    wait_until(lambda: begun(tree) == 2, sweep)
    assert len(told(tree)) == 1
    [lost] = cluster.jobs("RUNNING")
    cluster.lose_node()
    until(lambda: lost not in cluster.jobs("RUNNING,COMPLETING"))
    (tree / "hold").unlink()
    cluster.start_slurmd()
    finish(sweep)
    pretend.assert_all_measured_once(tree, matmuls)
    jobs = {measurement.job for measurement in told(tree)}
    assert len(jobs) == (2 if again_by == "snakemake" else 1)


def test_short_runs_share_an_allocation(cluster: Cluster, tree: Path, start: Start) -> None:
    finish(start(runs=RUNS[3:]))
    assert len(told(tree)) == 2
    [job] = {measurement.job for measurement in told(tree)}
    shown = subprocess.run(
        ["scontrol", "show", "job", job], capture_output=True, text=True, check=True
    ).stdout
    assert "TimeLimit=00:10:00" in shown  # the sum of both
    assert re.search(r"\bTresPer\w+=gres[/:]gpu[:=]1\b", shown), shown
    pretend.assert_one_at_a_time_on_each_gpu(tree, GPUS)


@pytest.mark.slow
def test_500_short_runs_share_ten_allocations(cluster: Cluster, tree: Path, start: Start) -> None:
    sizes = range(64, 64 + 497)
    matmuls = [f"bench_matmul/kernel=torch,size={size},precision=fp32" for size in sizes]
    every_size = pretend.EXPERIMENT.replace("64,128", ",".join(map(str, sizes)))
    (tree / "config/experiment/pretend.yaml").write_text(every_size)
    runs = [*RUNS[:3], *matmuls]
    finish(start("--group-components", "matmul=50", runs=runs), timeout_s=1800)
    pretend.assert_all_measured_once(tree, runs)
    pretend.assert_one_at_a_time_on_each_gpu(tree, GPUS)
    jobs = Counter(made.job for made in told(tree) if "/bench_matmul/" in made.folder)
    assert sorted(jobs.values()) == [47, *[50] * 9]


@pytest.mark.slow
def test_a_run_on_another_device_is_refused(cluster: Cluster, tree: Path, start: Start) -> None:
    output = finish(start("--retries=0", runs=RUNS[:1], hardware="nvidia-other"), status=1)
    assert (
        "hardware=nvidia-other: this run was planned for it, but here is nvidia-pretend. Not measured."
        in output
    )
    assert told(tree) == []
