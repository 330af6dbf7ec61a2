"""Files that someone else put into results: no path leads out, nothing is read or copied."""

import json
from pathlib import Path

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import write_csv
from mfulab.lab.tables import details, recording, records
from mfulab.lab.tables.records import from_manifest
from mfulab.measurements.registry import MEASUREMENTS

SECRET = "a secret"


def manifest(results: Path, **run: object) -> Path:
    path = results / "xeon-4c/plan/mine.json"
    path.parent.mkdir(parents=True)
    run = {"step": "environment", "run": "all", "folder": "results/xeon-4c/environment/all", **run}
    path.write_text(json.dumps({"experiment": "mine", "hardware": "xeon-4c", "runs": [run]}))
    return path


@pytest.mark.parametrize(
    "run",
    [
        {"folder": "/etc"},
        {"folder": "results/xeon-4c/environment/../../../../etc"},
        {"folder": "results/xeon-4c/environment/.."},
        {"folder": "results/other-4c/environment/all"},
        {
            "step": "profile_step",
            "folder": "results/xeon-4c/profile_step/a",
            "flops_folder": "/etc/count_flops/a",
        },
        {"ceilings": {"compute": "/etc/ceilings/a"}},
        {"step": "no_step"},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_named_and_not_followed(
    tmp_path: Path, run: dict[str, object]
) -> None:
    found = from_manifest(manifest(tmp_path / "results", **run), tmp_path)
    assert not any(found.records.values())
    [problem] = found.problems
    assert problem.key == "experiment_not_shown"
    assert "plan/mine.json" in str(problem)


def test_a_run_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    row = MEASUREMENTS["environment"].row(run="all", hardware="xeon-4c", device_name=SECRET)
    write_csv(tmp_path / "elsewhere/row.csv", [row.model_dump()])
    path = manifest(tmp_path / "results")
    (tmp_path / "results/xeon-4c/environment").mkdir()
    (tmp_path / "results/xeon-4c/environment/all").symlink_to(tmp_path / "elsewhere")
    found = from_manifest(path, tmp_path)
    assert not found.records["environment"]
    [problem] = found.problems
    assert (problem.key, problem.numbers["path"]) == (
        "run_leads_out",
        str(tmp_path / "results/xeon-4c/environment/all"),
    )


def test_no_file_of_a_run_that_is_a_link_comes_into_the_page(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f'{{"a": "{SECRET}"}}')
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("log", "config.json", "samples.csv", "series.csv", "operators.csv"):
        (folder / name).symlink_to(tmp_path / "secret")
    assert SECRET not in json.dumps(details.describe(folder, []))


@pytest.mark.parametrize("hardware", ["..", "../..", ".", "/etc", "a/b", ""])
def test_a_recording_is_named_as_a_device_no_other_removed(tmp_path: Path, hardware: str) -> None:
    (tmp_path / "reference").mkdir()
    with pytest.raises(ConfigurationError, match="no name of a device"):
        recording.record(tmp_path, hardware, replace=True)
    assert tmp_path.exists()


def test_a_plans_progress_is_the_best_state_of_a_runs_processes_by_rows_that_are_read_once(
    tmp_path, monkeypatch
):
    step, read = "bench_matmul", []
    rows = {"a": "ok", "b,replicate=2": "not_measured", "d": "ok", "e": "failed"}
    names = ["a", "a,replicate=2", "b", "b,replicate=2", "c", "d", "e"]
    folders = {name: f"results/xeon-4c/{step}/{name}" for name in names}
    for name, status in rows.items():
        row = MEASUREMENTS[step].row(run=name, hardware="xeon-4c", status=status, message="why")
        write_csv(tmp_path / folders[name] / "row.csv", [row.model_dump()])
    (tmp_path / folders["d"] / "config.json").write_text('{"of": "an earlier plan"}')
    path = manifest(tmp_path / "results")
    planned = [
        {"step": step, "run": name, "folder": folders[name], "config_digest": "0" * 12}
        for name in names
    ]
    path.write_text(json.dumps({"experiment": "mine", "hardware": "xeon-4c", "runs": planned}))
    read_row = records.read_row
    monkeypatch.setattr(
        records, "read_row", lambda folder, step: read.append(folder.name) or read_row(folder, step)
    )
    found = from_manifest(path, tmp_path).progress
    states = {"a": "measured", "b": "not_measured", "c": "to_come", "d": "to_come", "e": "measured"}
    assert found == {(step, name): state for name, state in states.items()}
    assert len(read) == len(set(read))
