"""A recording is what the report reads back; one that says less or something else is refused."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from check_recordings import check
from support import report_rows
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import write_csv, write_json
from mfulab.core.said import Said
from mfulab.lab.planning.foundations import foundations
from mfulab.lab.tables import build, records
from mfulab.lab.tables import recording as recordings
from mfulab.lab.tables.consistency import unfit
from mfulab.lab.tables.recording import FILES
from mfulab.measurements.registry import RECORDED


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory) -> Path:
    """Results of two invented machines, of which tests take copies."""
    root = tmp_path_factory.mktemp("laid_out")
    for hardware in (report_rows.GPU, report_rows.CPU):
        report_rows.lay_out(root, hardware)
    return root / "results"


@pytest.fixture(scope="module")
def kept(laid_out: Path, tmp_path_factory) -> Path:
    """The recording of one of them, of which tests take copies."""
    copy = shutil.copytree(laid_out, tmp_path_factory.mktemp("kept") / "results")
    return recordings.record(copy, report_rows.GPU)


@pytest.fixture
def results(laid_out: Path, tmp_path: Path) -> Path:
    return shutil.copytree(laid_out, tmp_path / "results")


@pytest.fixture
def recording(results: Path, kept: Path) -> Path:
    return shutil.copytree(kept, results / "reference" / kept.name)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rewrite(path: Path, change) -> None:
    rows = lines(path)
    for row in rows:
        change(row)
    write_csv(path, rows, list(rows[0]))


def test_the_recording_alone_gives_the_rows_that_were_measured(results, recording):
    measured = recordings.gather(results, report_rows.GPU)
    read_back = build.collect(reference=results / "reference")
    assert read_back.problems == read_back.upkeep == []
    for table in RECORDED:
        original = [{**row, "recorded": True} for row in measured.records[table]]
        assert read_back.records[table] == original
        assert original or table not in ("environment", "ceilings", "flops", "profile", "matmul")


def test_it_holds_one_machine_and_no_traces_or_logs(results, recording):
    assert {path.name for path in recording.iterdir()} == FILES
    assert {row["hardware"] for row in lines(recording / "profile.csv")} == {report_rows.GPU}
    assert {row["recorded"] for row in lines(recording / "matmul.csv")} == {"True"}
    series = lines(recording / "series.csv")
    busy = sorted(
        (float(row["utilization_percent"] or 0) for row in lines(recording / "profile.csv")),
        reverse=True,
    )
    known = {
        row["run"]: float(row["utilization_percent"] or 0)
        for row in lines(recording / "profile.csv")
    }
    kept = {line["run"] for line in series}
    assert kept >= {row["run"] for row in lines(recording / "readings.csv")}
    found = sorted((known[run] for run in kept & known.keys()), reverse=True)
    assert found == busy[: recordings.MOST_SERIES]
    assert len(series) == 40 * len(kept)
    about = json.loads((recording / "recording.json").read_text())
    seen = about["commits"]
    assert seen == {"0123abc": sum(sum(each.values()) for each in about["rows"].values())}
    assert about["rows"]["profile"] == {"ok": 40, "out_of_memory": 2}
    assert about["experiments"] == {"invented": ["timing.windows=9"]}
    assert check(recording) == []


def test_an_experiment_s_commands_are_named_and_runs_beside_them_counted(results, capsys):
    recordings.record(results, report_rows.GPU)
    assert "no plan" not in capsys.readouterr().out
    plan = results / report_rows.GPU / "plan/invented.json"
    other = json.loads(plan.read_text()) | {"overrides": ["precision=fp32", "timing.windows=9"]}
    step = "bench_matmul"
    left_out = next(
        run
        for run in reversed(other["runs"])
        if run["step"] == step and "replicate" not in run["run"]
    )
    plan.write_text(
        json.dumps(other | {"runs": [run for run in other["runs"] if run is not left_out]})
    )
    folder = recordings.record(results, report_rows.GPU, replace=True)
    says = f"no plan asks for, left out: 1, such as {plan.parents[1] / step / left_out['run']}."
    assert says in capsys.readouterr().out
    assert left_out["run"] not in {row["run"] for row in lines(folder / "matmul.csv")}
    (plan.parent / "invented-more.json").write_text(
        json.dumps(other | {"overrides": ["timing.windows=9", "size=64"]})
    )
    folder = recordings.record(results, report_rows.GPU, replace=True)
    assert "no plan" not in capsys.readouterr().out
    assert left_out["run"] in {row["run"] for row in lines(folder / "matmul.csv")}
    asked = json.loads((folder / "recording.json").read_text())["experiments"]
    assert asked == {"invented": ["timing.windows=9", "size=64", "precision=fp32"]}


def test_each_row_keeps_its_resolved_config(results, recording):
    kept = [json.loads(line) for line in (recording / "configs.jsonl").read_text().splitlines()]
    one = next(line for line in kept if line["table"] == "profile")
    folder = results / report_rows.GPU / "profile_step" / one["run"]
    assert one["config"] == json.loads((folder / "config.json").read_text())


def test_runs_that_have_not_finished_are_left_out(results):
    shutil.rmtree(next((results / report_rows.GPU / "bench_matmul").iterdir()))
    folder = recordings.record(results, report_rows.GPU)
    found = len(lines(folder / "matmul.csv"))
    assert found == len(list((results / report_rows.GPU / "bench_matmul").iterdir()))
    assert check(folder) == []


def test_a_changed_tree_is_refused_unless_told(results):
    row = next((results / report_rows.GPU / "profile_step").iterdir()) / "row.csv"
    row.write_text(row.read_text().replace("0123abc", "0123abc-dirty"))
    with pytest.raises(ConfigurationError, match="changed code"):
        recordings.record(results, report_rows.GPU)
    assert not (results / "reference").exists()
    folder = recordings.record(results, report_rows.GPU, allow_dirty=True)
    assert json.loads((folder / "recording.json").read_text())["commits"]["0123abc-dirty"] == 1
    assert check(folder) == []


LONG_PHASE = {"forward_ms": "9e6", "backward_ms": "1", "optimiser_ms": "1"}
HASWELL = {"thread_settings": '{"OPENBLAS_CORETYPE": "Haswell"}'}


@pytest.mark.parametrize(
    ("step", "change", "says"),
    few(
        [
            ("profile_step", LONG_PHASE, "a phase that is longer"),
            ("environment", HASWELL, "OPENBLAS_CORETYPE=Haswell was set"),
            ("profile_step", {"phases_percent": "180"}, "do not add up"),
            ("bench_matmul", {"end_to_end_s": "1e-9"}, "longer alone than with its transfers"),
        ],
        2,
    ),
)
def test_rows_that_nobody_should_show_are_refused_unless_told(results, step, change, says):
    row = next((results / report_rows.GPU / step).iterdir()) / "row.csv"
    rewrite(row, lambda cells: cells.update(change))
    with pytest.raises(ConfigurationError, match=says):
        recordings.record(results, report_rows.GPU)
    assert not (results / "reference").exists()
    folder = recordings.record(results, report_rows.GPU, allow_unfit=True)
    (said,) = json.loads((folder / "recording.json").read_text())["unfit"]
    assert says in said
    assert check(folder) == []


def test_an_experiment_that_was_not_measured_is_named(results, recording):
    shutil.copytree(ROOT / "config/experiment", results.parent / "config/experiment")
    with pytest.raises(
        ConfigurationError,
        match=r"without rows of alignment, .*utilization, their figures are empty",
    ) as said:
        recordings.record(results, report_rows.GPU, replace=True)
    absent = str(said.value).partition("without rows of ")[2].partition(", their")[0].split(", ")
    planned = json.loads((recording / "recording.json").read_text())["experiments"]
    needless = {"recorded", "published", "traces", "miniature", "validity", "gpu_record"}
    every = {path.stem for path in (ROOT / "config/experiment").glob("*.yaml")}
    assert every - set(absent) - set(planned) == needless - set(planned)
    machine = next((results / report_rows.GPU / "environment").iterdir()) / "row.csv"
    rewrite(machine, lambda cells: cells.update({"device": "cpu"}))
    with pytest.raises(ConfigurationError, match="without rows of") as said:
        recordings.record(results, report_rows.GPU, replace=True)
    assert not {"quickstart_gpu", "seminar_gpu"} & set(re.split("[ ,]+", str(said.value)))


def test_an_imprecise_time_is_not_recorded():
    row = {"run": "model=a", "status": "ok", "precision_percent": 26.0}
    [said] = unfit({"profile": [row], "environment": []})
    doubt = Said("trust.imprecise", {"count": 1, "run": "model=a"})
    assert said == Said("rows_unfit", {"table": "profile", "doubt": doubt})
    assert "±25" in str(said), "a key of the section of doubts"
    assert list(unfit({"profile": [row | {"precision_percent": 24.0}], "environment": []})) == []


def test_the_page_is_told_of_a_recording_whose_code_has_changed(results, recording):
    assert build.collect(reference=results / "reference").upkeep == []
    about = json.loads((recording / "recording.json").read_text())
    name = next(each for each in about["code"] if each.startswith("profile_step,"))
    about["code"][name]["timing"] = "0" * 16
    (recording / "recording.json").write_text(json.dumps(about))
    collected = build.collect(reference=results / "reference")
    assert collected.problems == []
    [problem] = collected.upkeep
    assert problem.key == "recording_aged"
    parts = {"parts": "profile_step (timing: 1)", "name": name}
    count = {"number": 1, "total": len(about["code"])}
    assert problem.numbers == {"folder": str(recording), **count, **parts}


def test_rows_without_a_commit_need_it_stated(results):
    for row in (results / report_rows.GPU).rglob("row.csv"):
        row.write_text(row.read_text().replace("0123abc", ""))
    with pytest.raises(ConfigurationError, match="give --commit"):
        recordings.record(results, report_rows.GPU)
    folder = recordings.record(results, report_rows.GPU, commit="4567def")
    assert json.loads((folder / "recording.json").read_text())["commit_was_stated"] == "4567def"
    assert {row["commit"] for row in lines(folder / "ceilings.csv")} == {"4567def"}
    assert check(folder) == []


def test_a_recording_is_never_overwritten_unasked(results, recording):
    before = (recording / "profile.csv").read_bytes()
    with pytest.raises(ConfigurationError, match="--replace"):
        recordings.record(results, report_rows.GPU)
    assert (recording / "profile.csv").read_bytes() == before
    assert main(["record", report_rows.GPU, "--results", str(results), "--replace"]) == 0


def test_a_machine_without_results_cannot_be_recorded(results):
    with pytest.raises(ConfigurationError, match="no finished runs"):
        recordings.record(results, "nvidia-nowhere")
    with pytest.raises(ConfigurationError, match="hardware=public: no name of a device"):
        recordings.record(results, "public")


@pytest.mark.parametrize(
    ("file", "column", "value", "complaint"),
    few(
        [
            ("profile", "commit", "", "names no commit"),
            ("profile", "commit", "fedcba9", "does not name its commit"),
            ("profile", "mfu_percent", "12.5", "mfu_percent is 12.5, the join gives"),
            ("profile", "flops_run", "model=other", "its FLOP count model=other is missing"),
            ("matmul", "ceiling", "fp8", "its ceiling fp8 is missing"),
            ("matmul", "hardware", "another", "was measured on another"),
            ("ceilings", "run", "twice", "run=twice: there twice"),
            ("profile", "time_s", "fast", "time_s='fast'"),
            ("profile", "tensor_active_percent", "140", "tensor_active_percent is 140.0 %"),
            ("environment", "run", "renamed", "environment/renamed is missing"),
        ],
        4,
    ),
)
def test_check_names_what_is_wrong(recording, file, column, value, complaint):
    rewrite(recording / f"{file}.csv", lambda row: row.update({column: value}))
    assert any(complaint in problem for problem in check(recording)), check(recording)


def test_check_wants_every_file_and_no_other(recording):
    (recording / "trace.json.gz").write_bytes(b"")
    assert check(recording) == ["trace.json.gz does not belong into a recording"]
    (recording / "configs.jsonl").unlink()
    assert "configs.jsonl is missing" in check(recording)


def test_joined_columns_follow_a_corrected_value(recording, results):
    rewrite(
        recording / "ceilings.csv",
        lambda row: row.update(
            computed_tflop_s=row["computed_tflop_s"] and str(2 * float(row["computed_tflop_s"]))
        ),
    )
    before = {row["run"]: row["mfu_spec_percent"] for row in lines(recording / "profile.csv")}
    assert any("mfu_spec_percent" in problem for problem in check(recording))
    assert main(["record", "--rejoin", "--results", str(results)]) == 0
    for row in lines(recording / "profile.csv"):
        if row["mfu_spec_percent"]:
            assert float(row["mfu_spec_percent"]) == pytest.approx(float(before[row["run"]]) / 2)


def test_every_recording_that_is_shipped_is_valid_and_small():
    shipped = recordings.recordings(ROOT / "results", None)
    assert [problem for folder in shipped for problem in check(folder)] == []
    for folder in shipped:  # a row of each run with its config
        rows = sum(len(lines(folder / f"{table}.csv")) for table in RECORDED)
        assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000 * rows, folder


@pytest.mark.parametrize(
    "name",
    [
        "",
        ",",
        "profile_step,os.system",
        "../../x,../../y",
        "a\0b,c\0d",
        "x" * 5000,
        "a,/etc/passwd",
    ],
)
def test_the_code_that_a_recording_names_is_read_and_never_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", pytest.fail)
    for digest in foundations(name, "here").values():
        assert re.fullmatch(r"[0-9a-f]{16}", digest)


@pytest.mark.parametrize("code", [[], "text", 5, None, {"profile_step,os.system": 1}, {"a": []}])
def test_a_recording_whose_digests_are_none_is_told(tmp_path, code):
    write_json(tmp_path / "here" / records.ABOUT, {"code": code})
    assert len(records.aged(tmp_path / "here")) == 1


def test_digests_of_an_older_form_name_no_part_that_changed(tmp_path, monkeypatch):
    name = "count_flops,torch.nn.Linear"
    current = {"counting": "1" * 16}
    monkeypatch.setattr(records, "foundations", lambda *_: current)
    code = {"ceilings,": "0" * 16, "read_trace,": current, name: {"counting": "0" * 16}}
    write_json(tmp_path / "here" / records.ABOUT, {"code": code})
    older, aged = records.aged(tmp_path / "here")
    about = {"folder": str(tmp_path / "here"), "total": 3, "number": 1}
    assert (older.key, older.numbers) == ("recording_of_older_form", about | {"name": "ceilings"})
    parts = {"parts": "count_flops (counting: 1)", "name": name}
    assert (aged.key, aged.numbers) == ("recording_aged", about | parts)


@pytest.mark.parametrize("config", [{}, {"model": []}, {"model": "x"}, {"kernel": {"_target_": 5}}])
def test_any_config_names_a_target_or_none(config):
    assert recordings._target(config) in ("", "5")
