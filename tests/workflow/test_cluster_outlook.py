"""What a dry run for a cluster says first, and what is said without its plugin."""

import re
import sys

import pytest
from support.slow import few
from support.workflow_copy import Project, copy_workflow

pytestmark = pytest.mark.workflow
PROFILE = ("--profile", "workflow/profiles/slurm")
H100 = (
    "--config",
    "hardware=nvidia-h100-80gb-hbm3",
    "experiment=kernels",
    "kernel=torch",
    "precision=bf16",
)
# Snakemake where the executor for SLURM is not installed.
WITHOUT_PLUGIN = """
import pkgutil
every = pkgutil.iter_modules
slurm = "snakemake_executor_plugin_slurm"
pkgutil.iter_modules = lambda *a, **k: (module for module in every(*a, **k) if not module.name.startswith(slurm))
from snakemake.cli import main
main()
"""


@pytest.fixture(scope="module")
def cluster_project(tmp_path_factory):
    return Project(copy_workflow(tmp_path_factory.mktemp("cluster") / "project"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "replicates", "jobs", "longest"),
    # replicates stay with their matmul; one each; fewer than a group
    few([(25, 2, 3, 20), (25, 1, 3, 10), (3, 2, 1, 6)]),
)
def test_a_dry_run_says_what_a_cluster_is_asked_for(
    cluster_project, sizes, replicates, jobs, longest
):
    swept = f"size={','.join(str(1001 + 8 * place) for place in range(sizes))}"
    config = (*H100, swept, f"replicates={replicates}", "ceiling_replicates=1")
    would = cluster_project.run("snakemake", *PROFILE, "rows", "-n", *config).stdout
    assert re.search(rf"^bench_matmul +{sizes * replicates}$", would, re.MULTILINE)
    hours, counted, runs, minutes = re.search(
        r"^about (\S+) GPU-hours in (\d+) jobs; runs in the longest: (\d+), by sbatch --time=(\d+) --gpus=1 "
        r"--cpus-per-task=4 --mem=16000$",
        would,
        re.MULTILINE,
    ).groups()
    others = 3  # environment and two ceilings
    assert (int(counted), int(runs), int(minutes)) == (jobs + others, longest, max(5 * longest, 10))
    assert 0 < float(hours) < (sizes * replicates + others) * 60 / 3600


@pytest.mark.slow
def test_a_dry_run_on_this_machine_says_how_long_it_takes(cluster_project):
    would = cluster_project.snakemake("rows", "-n", "--config", "device=cpu").stdout
    assert re.search(r"^about .* on this machine$", would, re.MULTILINE)


@pytest.mark.slow
def test_a_missing_executor_is_one_sentence_with_its_extra(cluster_project):
    done = cluster_project.run(sys.executable, "-c", WITHOUT_PLUGIN, *PROFILE, "-n", check=False)
    told = [line for line in done.stdout.splitlines() if not line.startswith("Using profile")]
    assert done.returncode == 1
    assert told == [
        'mfulab: executor=slurm needs a plugin of Snakemake: pip install ".[slurm]" in the checkout.'
    ]
    other = cluster_project.run(
        sys.executable, "-c", WITHOUT_PLUGIN, "--executor", "lsf", "-n", check=False
    ).stdout
    assert "invalid choice: 'lsf'" in other
