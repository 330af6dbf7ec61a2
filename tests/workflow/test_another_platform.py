"""A sweep without what only Linux has: what cannot be told is empty and says why."""

import csv
import json

import pytest
from support.workflow_copy import Project, copy_workflow

pytestmark = pytest.mark.workflow

ONE_OF_EACH = ("model=linear_1024", "workload=inference", "batch_size=2", "kernel=numpy", "size=64")


@pytest.mark.slow
def test_a_sweep_without_proc_sys_and_a_worker(make_project):
    project = make_project(with_source=True)
    module = project.folder / "src/mfulab/device/system.py"
    text = module.read_text()
    for line, pretended in (
        ('IS_LINUX = sys.platform == "linux"', "IS_LINUX = False"),
        ('IS_MACOS = sys.platform == "darwin"', "IS_MACOS = True"),
        ('ROOT = "/"', 'ROOT = "/nothing/here"'),
    ):
        assert line in text
        text = text.replace(line, pretended)
    module.write_text(text)
    project.snakemake("rows", "--config", "experiment=miniature", "device=cpu", *ONE_OF_EACH)
    profile, matmul = row_of(project, "profile_step"), row_of(project, "bench_matmul")
    for row in (profile, matmul):
        assert row["status"] == "ok", row["message"]
        assert float(row["time_s"]) > 0
    assert float(profile["utilization_percent"]) > 0
    assert float(profile["system_utilization_percent"]) > 0
    reasons = json.loads(profile["reasons"])
    for column in ("throttled_percent", "cgroup_utilization_percent", "energy_j"):
        assert profile[column] == ""
        assert reasons[column]


def test_braces_in_the_checkouts_path_are_refused_in_one_line(tmp_path):
    folder = tmp_path / "a {b}"
    folder.mkdir()
    done = Project(copy_workflow(folder)).snakemake("-n", check=False)
    assert done.returncode != 0
    assert "Snakemake allows no braces in a path" in done.stdout
    assert "Traceback" not in done.stdout


def row_of(project, step):
    [path] = [path for path in project.rows() if step in path]
    [row] = csv.DictReader((project.folder / path).open(newline=""))
    return row
