"""The workflow as a module of another project, as the Snakemake catalogue says, and `.test/`."""

import csv
import subprocess

import pytest
import yaml
from support.workflow_copy import (
    FEW_FIGURES,
    ROOT,
    Project,
    copy_workflow,
    deploy_workflow,
    draw_only,
)

from mfulab.lab.runtime import client

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("module")]
SMALL = {"model": ["digit_cnn"], "workload": "inference", "steps": ["profile_step"]}
TYPED = ("experiment=miniature", "device=cpu")
SAID = "said.txt"  # what the first command printed
OWN_START = """
onstart:
    open("begun", "w").close()
"""
ADDRESS = "https://github.com/own/mfulab"
# What snakedeploy's own template makes of an address at a host.
HOSTED = """
configfile: "config/config.yaml"

module mfulab:
    snakefile:
        github("own/mfulab", path="Snakefile", branch="main")
    config:
        config

use rule * from mfulab
"""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A deployed workflow that has run once, beside a script of the user's own; of its figures a
    few."""
    origin = copy_workflow(tmp_path_factory.mktemp("origin"), with_source=True)
    draw_only(origin, FEW_FIGURES)
    folder = tmp_path_factory.mktemp("deployed") / "my project"
    project = Project(deploy_workflow(folder, origin), origin)
    (project.folder / "scripts").mkdir()
    (project.folder / "scripts/run.py").write_text("raise SystemExit('the user's own')")
    (project.folder / "small.yaml").write_text(yaml.safe_dump({**SMALL, "batch_size": [1, 3]}))
    with (project.folder / "workflow/Snakefile").open("a") as snakefile:
        snakefile.write(OWN_START)
    done = project.snakemake("report", "--configfile", "small.yaml", "--config", *TYPED)
    (project.folder / SAID).write_text(done.stdout)
    return project


@pytest.mark.slow
def test_a_deployed_workflow_measures_and_writes_its_page(deployed):
    rows = [row for row in deployed.rows() if "/profile_step/" in row]
    assert len(rows) == 2
    for row in rows:
        with (deployed.folder / row).open() as file:
            assert [each["status"] for each in csv.DictReader(file)] == ["ok"]
    assert (deployed.folder / "reports/report.html").stat().st_size > 100_000
    again = deployed.snakemake(
        "-n", "report", "--configfile", "small.yaml", "--config", *TYPED
    ).stdout
    assert "Profiling" not in again


@pytest.mark.slow
def test_it_begins_and_ends_as_by_itself_beside_the_projects_own_start(deployed):
    assert (deployed.folder / "begun").exists()
    # The summary ends with the page.
    assert str(deployed.folder / "reports/report.html") in (deployed.folder / SAID).read_text()
    assert not list(deployed.folder.glob(".snakemake/incomplete/*"))


@pytest.mark.slow
def test_the_recordings_of_the_module_are_shown_where_the_folder_has_none(tmp_path):
    project = Project(deploy_workflow(tmp_path / "my project"))
    # Without a worker, which would draw all figures ahead.
    words = ("results/tables/profile.csv", "--config", "experiment=recorded")
    project.snakemake(*words, **{client.SOCKET: ""})
    with (project.folder / "results/tables/profile.csv").open() as file:
        machines = {row["hardware"] for row in csv.DictReader(file)}
    assert {folder.name for folder in (ROOT / "results/reference").glob("nvidia-*")} <= machines
    project.snakemake("-n", "report", "--config", "experiment=recorded")


@pytest.mark.slow
def test_its_figures_have_captions_in_snakemakes_report(deployed):
    words = ("--configfile", "small.yaml", "--config", *TYPED)
    deployed.snakemake("--report", "all.html", *words)
    page = (deployed.folder / "all.html").read_text(encoding="utf-8")
    drawn = [figure.name for figure in (deployed.folder / "reports/figures").glob("*.svg")]
    assert drawn  # which figures: that depends on what is known well enough here
    assert [name for name in drawn if name not in page] == []
    assert "caption" in page


def test_a_workflow_at_a_host_is_planned(tmp_path):
    """Includes and files beside them come from the host, whose address git leads to a folder."""
    origin = copy_workflow(tmp_path / "origin")
    as_somebody = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*as_somebody, *words], cwd=origin, check=True)
    project = Project(deploy_workflow(tmp_path / "my project"))
    (project.folder / "workflow/Snakefile").write_text(HOSTED)
    led = {"COUNT": "1", "KEY_0": f"url.{origin.as_uri()}.insteadOf", "VALUE_0": ADDRESS}
    environment = {f"GIT_CONFIG_{key}": value for key, value in led.items()}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    shown = project.snakemake("-n", "report", "--config", *TYPED, **environment).stdout
    assert "Profiling model=linear_1024" in shown


@pytest.mark.slow
def test_a_typed_value_counts_where_it_is_the_default(deployed):
    words = ("report", "--config", *TYPED, "batch_size=8", "model=digit_cnn")
    shown = deployed.snakemake("-n", *words).stdout
    assert "batch_size=8" in shown
    assert "batch_size=2" not in shown


@pytest.mark.slow
def test_the_catalogues_test_config_plans_the_miniature():
    project = Project(ROOT)
    words = ("--directory", ".test", "--configfile", ".test/config/config.yaml", "-n")
    shown = project.snakemake(*words, "--snakefile", "Snakefile", "report").stdout
    assert "model=linear_1024" in shown
