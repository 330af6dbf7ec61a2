"""Replicates in the real workflow: a row from several processes, more of them later."""

import csv
import json
import time

import pytest

from mfulab.lab.tables.columns import with_counters

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("replicates")]
ONE_RUN = (
    "steps=[profile_step]",
    "model=digit_cnn",
    "workload=inference",
    "batch_size=2",
    "device=cpu",
)


def processes(row: dict[str, str]) -> int:
    """All that measured: on a busy machine, one is left out of the median."""
    return int(row["replicates"]) + int(row["left_out_replicates"])


@pytest.mark.slow
def test_more_replicates_measure_the_missing_ones_alone_and_changed_code_all(make_project):
    project = make_project(with_source=True)

    def report(replicates: int) -> dict[str, str]:
        options = (
            "experiment=miniature",
            *ONE_RUN,
            f"replicates={replicates}",
            f"ceiling_replicates={replicates}",
        )
        project.snakemake("results/tables/profile.csv", "--config", *options)
        with (project.folder / "results/tables/profile.csv").open(
            newline="", encoding="utf-8"
        ) as file:
            measured = (row for row in csv.DictReader(file) if row["recorded"] == "False")
            return with_counters(next(measured))

    row = report(2)
    assert (row["status"], row["replicates"], ",replicate=" in row["run"]) == ("ok", "2", False)
    assert float(row["time_ci_low_s"]) < float(row["time_s"]) < float(row["time_ci_high_s"])
    assert (
        float(row["mfu_ci_low_percent"])
        < float(row["mfu_percent"])
        < float(row["mfu_ci_high_percent"])
    )
    assert row["top_other_operators"], "the first process was traced"
    assert len(json.loads(row["probes"])["at_s"]) >= 2, "each process probed the machine"
    refined = ("mfulab", "refine", "--widest", "0.01%", "--most", "3")
    for measure in (
        lambda: project.run(*refined, check=False).returncode,
        lambda: processes(report(4)),
    ):
        before = project.rows()
        found = measure()
        assert found in (3, 4)
        new = {path for path, time in project.rows().items() if before.get(path) != time}
        assert len(new) == 3, sorted(new)  # the run and both its ceilings
        assert all(path.endswith(f",replicate={found}/row.csv") for path in new)
    assert processes(report(2)) == found, "a further process counts, whoever asked for it"
    step = project.folder / "src/mfulab/measurements/profile_step/measure.py"
    step.write_text(step.read_text() + "print(end='')\n")
    before = project.rows()
    assert processes(report(3)) == 3
    new = {path for path, time in project.rows().items() if before.get(path) != time}
    assert len(new) == 3
    assert all("/profile_step/" in path for path in new)


@pytest.mark.slow
def test_a_run_that_cannot_be_done_is_not_tried_again(make_project):
    project = make_project()
    options = ("experiment=miniature", *ONE_RUN, "precision=int8", "replicates=3")
    done = project.snakemake("results/tables/profile.csv", "--config", *options)
    with (project.folder / "results/tables/profile.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["recorded"] == "False"]
    found = [(row["status"], row["replicates"]) for row in rows]
    assert found == [("unsupported", "")], done.stdout


@pytest.mark.slow
def test_what_a_budget_leaves_is_spent_where_precision_lacks(make_project):
    project = make_project()
    sweep = (
        "results/tables/profile.csv",
        "--config",
        "experiment=miniature",
        *ONE_RUN,
        "precision=fp32",
    )
    sweep += ("replicates=2", "ceiling_replicates=1", "budget_min=2")
    done = project.snakemake(*sweep)
    [flag] = (project.folder / "results/plan").glob("*.refined")
    with (project.folder / "results/tables/profile.csv").open(newline="", encoding="utf-8") as file:
        [row] = (row for row in csv.DictReader(file) if row["recorded"] == "False")
    further = [
        path for path in project.rows() if "/profile_step/" in path and ",replicate=" in path
    ]
    assert len(further) + 1 == processes(row)
    assert processes(row) == 8 or float(row["precision_percent"]) <= 8, done.stdout
    assert ("replicate=3" in flag.with_suffix(".refined.log").read_text()) == (processes(row) > 2)
    before = project.rows()
    project.snakemake(*sweep)
    assert project.rows() == before, "it is spent once"


@pytest.mark.slow
def test_a_budget_is_used_to_within_ten_seconds(make_project):
    """More replicates are planned than fit, so that the end alone decides what stays unspent."""
    project = make_project()
    sweep = ("experiment=miniature", "device=cpu", "replicates=10", "budget_min=1.2")
    began = time.monotonic()
    project.snakemake("report", "--config", *sweep)
    wall_s = time.monotonic() - began
    rows = project.rows()
    assert sum(",replicate=" in path for path in rows) > 8
    assert abs(wall_s - 72) <= 10
