"""The sweep on a real SLURM with two pretend GPUs: it completes, is resumed, and measures nothing twice."""

import fcntl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pretend
import pytest
from pretend import RUNS, finish, told
from slurm_cluster import GPUS, Cluster, why_not

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.xdist_group("slurm"),  # one cluster for all
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

OPTIONS = (  # of the test cluster, which has no accounting
    "--slurm-status-command=squeue",
    "--latency-wait=10",
    "--slurm-no-account",
)

# The plugin looks after 40 s, and 10 s later each time that no job has ended; this cluster is asked twice a second.
SNAKEMAKE = """
from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
RemoteExecutor.next_seconds_between_status_checks = property(lambda self: 0.5, lambda self, seconds: None)
main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # /etc/slurm holds one cluster: whoever else tests on this machine waits until ours is gone.
    with open("/tmp/mfulab-slurm-tests.lock", "w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        cluster = Cluster()
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return pretend.make(tmp_path)


def start(tree: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """The command of docs/clusters.md, on the login node, which has no GPU."""
    return pretend.start(
        tree, "--profile", "workflow/profiles/slurm", *OPTIONS, *arguments, snakemake=("-c", SNAKEMAKE), **options
    )


def until_measured(sweep: subprocess.Popen[str], tree: Path, count: int) -> None:
    while len(told(tree)) < count:
        assert sweep.poll() is None, sweep.communicate()[0]
        time.sleep(0.1)


def test_a_sweep_survives_its_nodes_daemon_and_is_done_once(cluster: Cluster, tree: Path) -> None:
    sweep = start(tree)
    until_measured(sweep, tree, 1)
    cluster.kill_slurmd()
    time.sleep(2)
    cluster.start_slurmd()
    finish(sweep)
    pretend.assert_all_measured_once(tree)
    assert {measurement.gpu for measurement in told(tree)} == set(GPUS)  # both were used
    pretend.assert_one_at_a_time_on_each_gpu(tree, GPUS)
    assert {measurement.cores for measurement in told(tree)} == {"4"}  # as the profile asks
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
    assert pretend.rows(tree) == set(RUNS)
    finished = Counter(measurement.folder for measurement in told(tree))
    assert len(finished) == len(RUNS)
    # A job may have been cancelled after its measurement and before it could say so: that one is made again.
    assert sum(finished.values()) - len(RUNS) <= 2


def test_short_runs_share_an_allocation(cluster: Cluster, tree: Path) -> None:
    finish(start(tree, "--groups", "bench_matmul=g", "--group-components", "g=2", runs=RUNS[3:]))
    assert len(told(tree)) == 2
    assert len({measurement.job for measurement in told(tree)}) == 1
    pretend.assert_one_at_a_time_on_each_gpu(tree, GPUS)


def test_a_run_on_another_device_than_it_claims_is_refused(cluster: Cluster, tree: Path) -> None:
    output = finish(start(tree, "--retries=0", runs=RUNS[:1], hardware="nvidia-other"), status=1)
    assert "hardware=nvidia-other: this run was planned for it, but here is nvidia-pretend. Not measured." in output
    assert told(tree) == []
