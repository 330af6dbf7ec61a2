"""Rows become tables: planned, copied from another machine, recorded; broken ones say so."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import report_rows
from support.slow import few

from mfulab.cli.main import main
from mfulab.core.files import read_csv, write_csv
from mfulab.core.language import verdicts
from mfulab.core.said import Said, of_cell
from mfulab.lab.report import frames
from mfulab.lab.runtime import forked
from mfulab.lab.tables import build, records
from mfulab.lab.tables.columns import columns
from mfulab.lab.tables.records import read_row
from mfulab.measurements import manifest
from mfulab.measurements.registry import MEASUREMENTS, TABLES
from mfulab.mfu import job


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The manifest of a small experiment that a test may change."""
    return report_rows.lay_out(tmp_path, models=("resnet18",), sizes=(256,))


def make(manifest: Path, *more: str) -> Path:
    root = manifest.parents[3]
    folder = root / "results/tables"
    main(["tables", "--root", str(root), "--manifest", str(manifest), "--out", str(folder), *more])
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the planned experiment, made once."""
    return make(report_rows.lay_out(tmp_path_factory.mktemp("planned")))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux forks safely with the libraries loaded"
)
def test_tables_made_by_several_processes_are_those_of_one(planned, monkeypatch):
    runs = [run for run in json.loads(planned.read_text())["runs"] if run["step"] == "profile_step"]
    root = planned.parents[3]
    (root / runs[0]["folder"] / "row.csv").write_text("nonsense")
    (root / runs[1]["folder"] / "config.json").write_text("{")
    alone = {path.name: path.read_bytes() for path in make(planned).iterdir()}
    monkeypatch.setattr(forked, "usable_cores", lambda: 3)
    monkeypatch.setattr(forked, "PART", 7)
    readers = []
    monkeypatch.setattr(
        records, "read_row", lambda *named: readers.append(named) or read_row(*named)
    )
    together = {path.name: path.read_bytes() for path in make(planned).iterdir()}
    assert together == alone
    assert not readers, "rows are read by other processes"


ONE_STEP = "model == 'resnet18' and batch_size == 4 and mode == 'training' and precision == 'fp32'"


def test_a_planned_experiment_becomes_tables(tables):
    found, problems = frames.read(tables)
    assert problems == []
    assert {name: len(found[name]) for name in TABLES} == {
        "environment": 1,
        "ceilings": 3,
        "flops": 9,
        "counters": 12,
        "profile": 42,
        "matmul": 25,
        "readings": 10,
        "memory": 50,
        "formats": 5,
        "published": 20,
        "quality": 13,
        "serving": 9,
        "split": 7,
        "traces": 0,
    }
    row = found["profile"].query(ONE_STEP).iloc[0]
    assert row["flops"] == 3 * 4 * 3_628_146_688
    assert row["mfu_percent"] == pytest.approx(100 * row["flops"] / row["time_s"] / 0.55e12)
    seen = (row["mfu_basis"], row["experiment"], bool(row["recorded"]))
    assert seen == ("measured", "invented", False)


def test_out_of_memory_has_a_row_and_no_speed(tables):
    profile = frames.read(tables)[0]["profile"]
    failed = profile[profile["status"] == "out_of_memory"]
    assert len(failed) == 2
    assert failed[["time_s", "tflop_s", "mfu_percent", "samples_per_s"]].isna().all(axis=None)
    assert failed["flops"].notna().all()


@pytest.mark.parametrize(
    "damage",
    few(
        [
            "",
            "hardware,run,time_s\nx,y,0.1\nx,y,0.2\n",
            "started_at\n2999-01-01T00:00:00+00:00\n",
            "hardware,run\n",
            "hardware,time_s\nx,fast\n",
            "process_s\ninf\n",
            "process_s\n-1\n",
        ],
        3,
    ),
)
def test_a_broken_row_is_a_failed_row_that_names_its_file(planned, damage):
    folder = next((planned.parents[1] / "profile_step").iterdir())
    (folder / "row.csv").write_text(damage)
    profile = frames.read(make(planned))[0]["profile"]
    broken = profile[profile["run"] == folder.name].iloc[0]
    assert broken["status"] == "failed"
    said = of_cell(broken["message"])
    assert said.key == "row_unreadable"
    assert said.numbers["reason"].numbers["source"] == str(folder / "row.csv")


@pytest.mark.parametrize(("days", "is_said"), few([(0.9, False), (1.5, True), (300, True)], 2))
def test_a_clock_that_was_ahead_costs_no_row_and_is_told(planned, days, is_said):
    folder = next((planned.parents[1] / "profile_step").iterdir())
    [cells] = read_csv(folder / "row.csv")
    ahead = datetime.now(UTC) + timedelta(days=days)
    write_csv(folder / "row.csv", [cells | {"started_at": ahead.isoformat(timespec="seconds")}])
    profile = frames.read(make(planned))[0]["profile"]
    row = profile[profile["run"] == folder.name].iloc[0]
    assert row["status"] == cells["status"]
    told = f"started_at={ahead.isoformat(timespec='seconds')}"
    assert (told in str(verdicts.message(row["message"]))) is is_said


@pytest.mark.parametrize(
    ("commit", "later_commit", "later_at", "counts"),
    [
        ("abc", "abc", "2026-01-01", True),
        ("abc", "abc", "2026-01-03", True),
        ("abc", "def", "2026-01-01", False),
        ("abc-dirty", "abc-dirty", "2026-01-01", False),
        ("", "", "2026-01-01", False),
        ("", "", "2026-01-03", True),
    ],
)
def test_a_further_process_counts_by_its_code_alone(commit, later_commit, later_at, counts):
    row = {"commit": commit, "started_at": "2026-01-02"}
    later = {"commit": later_commit, "started_at": later_at}
    origin = records._Origin.of(row)
    assert origin.may_precede(records._Origin.of(later)) is counts


class Asked(list[str]):
    """Planned folders that are asked about, never gone through: that would be once a run."""

    __iter__ = None


def test_a_runs_smaller_batches_are_found_without_going_through_the_plan(tmp_path):
    folder = "results/cpu/profile_step/batch_size=4"
    run = manifest.PlannedRun(step="profile_step", run="batch_size=4", folder=folder)
    assert not [*records._smaller(tmp_path, run, Asked([folder]))]


def test_a_missing_row_is_a_failed_row(planned):
    folder = next((planned.parents[1] / "bench_matmul").iterdir())
    (folder / "row.csv").unlink()
    matmul = frames.read(make(planned))[0]["matmul"]
    message = matmul[matmul["run"] == folder.name].iloc[0]["message"]
    assert of_cell(message) == Said("row_absent", {"path": str(folder / "row.csv")})


def test_an_effective_precision_without_a_ceiling_gets_no_mfu(planned):
    folder = next(
        path for path in (planned.parents[1] / "profile_step").iterdir() if "fp32" in path.name
    )
    text = (folder / "row.csv").read_text().replace(",eager,fp32,", ",eager,tf32,")
    (folder / "row.csv").write_text(text)
    profile = frames.read(make(planned))[0]["profile"]
    row = profile[profile["run"] == folder.name].iloc[0]
    assert row["mfu_percent"] != row["mfu_percent"]
    assert "no peak is known for tf32" in verdicts.note(row)


HERE = {"hardware": "cpu", "recorded": False, "status": "ok"}
CPU = HERE | {"device": "cpu"}
PRODUCT = HERE | {"m": 1, "n": 2, "k": 3, "kernel": "torch"}


def joined(ceilings, matmuls=(), profile=(), flops=(), environment=CPU):
    """Joined rows of one machine."""
    records = {"environment": [environment], "ceilings": [*ceilings], "flops": [*flops]}
    return build.joined(records | {"profile": [*profile], "matmul": [*matmuls]})


def ceiling_of(name, **more):
    return HERE | {"run": f"ceiling={name}", "ceiling": name, "format": name} | more


def test_a_matmul_faster_than_its_gpu_is_incorrect_and_has_no_speed():
    gpu = {"hardware": "some-gpu"}
    ceiling = ceiling_of("bf16", **gpu, max_clock_tflop_s=1.0)
    product = {"ceiling": "bf16", "effective_precision": "bf16", "time_s": 1.0, "flops": 2e12}
    environment = HERE | gpu | {"device": "cuda"}
    (row,) = joined([ceiling], [HERE | gpu | product], environment=environment)["matmul"]
    assert (row["status"], row["tflop_s"]) == ("incorrect", None)
    assert "highest clock" in verdicts.message(row["message"])


def test_a_run_is_held_against_the_ceiling_of_its_own_threads():
    speeds = {"fp32": 4.0, "fp32,device.threads=1": 2.0}
    alike = {"ceiling": "fp32", "format": "fp32"}
    ceilings = [
        ceiling_of(name, **{**alike, "measured_tflop_s": speed}) for name, speed in speeds.items()
    ]
    for used, shares in (("fp32", [25.0, 50.0]), (None, [25.0, 50.0]), ("bf16", [None, None])):
        run = PRODUCT | {"flops": 1e12, "time_s": 1.0, "effective_precision": used}
        matmuls = [run | {"run": name, "ceiling": name} for name in speeds]
        rows = joined(ceilings, matmuls)["matmul"]
        assert [row["share_of_measured_percent"] for row in rows] == shares


def test_a_matmul_above_the_measured_ceiling_becomes_it():
    """The ceiling's seconds may have been disturbed; an incorrect matmul or another format's
    changes nothing."""
    shape = PRODUCT | {"run": "one", "flops": 2e12, "ceiling": "fp32"}
    fp32, bf16 = ({"effective_precision": name} for name in ("fp32", "bf16"))
    matmuls = [
        shape | fp32 | {"kernel": "slow", "time_s": 2.0},
        shape | fp32 | {"kernel": "fast", "time_s": 0.5},
        shape | fp32 | {"kernel": "wrong", "time_s": 0.1, "status": "incorrect"},
        shape | bf16 | {"kernel": "other", "time_s": 0.1},
    ]
    ceiling = ceiling_of("fp32", measured_tflop_s=3.0, measured_with="torch")
    shares = [row["share_of_measured_percent"] for row in joined([ceiling], matmuls)["matmul"]]
    found = (ceiling["measured_tflop_s"], ceiling["measured_with"], ceiling["measured_shape"])
    assert found == (4.0, "fast", "1x2x3")
    assert (ceiling["swept_tflop_s"], ceiling["raised_by"]) == (3.0, "one")
    assert shares == [25, 100, None, None]


def joined_formats(rates, steps, matmuls, emulated):
    """Joined rows of a CPU with these ceilings; `steps` and `matmuls` are (format, TFLOP,
    seconds)."""
    sure = {"replicates": 4, "disturbed_replicates": 0, "computed_tflop_s": 1.0}
    ceilings = []
    for name, rate in rates.items():
        measured = None if name in emulated else rate
        known = {"emulated": name in emulated, "measured_tflop_s": measured}
        ceilings.append(ceiling_of(name, **sure, **known))
    step = HERE | {"model": "net", "mode": "inference", "dtype": "float32"}
    profile, flops, products = [], [], []
    for place, (name, work, time) in enumerate(steps):
        run = f"step={place},precision={name}"
        format_ = {"ceiling": name, "effective_precision": name}
        profile.append(step | format_ | {"run": run, "flops_run": run, "time_s": time})
        counts = dict.fromkeys(("inference_flops", "forward_flops"), 1e12 * work)
        flops.append({"run": run, "recorded": False, **counts})
    for place, (name, work, time) in enumerate(matmuls):
        format_ = dict.fromkeys(("ceiling", "effective_precision", "precision"), name)
        measured = {"run": f"matmul={place}", "flops": 1e12 * work, "time_s": time}
        products.append(PRODUCT | format_ | measured)
    return joined(ceilings, products, profile, flops)


def test_an_emulated_format_is_divided_by_fp32_s_ceiling():
    steps = [("fp32", 1.0, 1.0), ("bf16", 1.0, 40.0)]
    records = joined_formats({"fp32": 2.0, "bf16": 0.01}, steps, [("bf16", 1.0, 20.0)], {"bf16"})
    fp32, bf16 = records["profile"]
    assert (fp32["mfu_percent"], bf16["mfu_percent"]) == (50.0, 1.25)
    assert (fp32["peak_precision"], bf16["peak_precision"]) == ("fp32", "fp32")
    assert records["matmul"][0]["share_of_measured_percent"] == 2.5
    assert records["matmul"][0]["peak_precision"] == "fp32"
    assert bf16["ceiling_tflop_s"] == 2.0


def test_the_same_step_in_fp32_says_how_much_slower_emulating_is():
    records = joined_formats(
        {"fp32": 2.0, "bf16": None}, [("fp32", 1.0, 1.0), ("bf16", 1.0, 40.0)], [], {"bf16"}
    )
    records["profile"][0]["run"] = records["profile"][1]["run"].replace("bf16", "fp32")
    fp32, bf16 = build.joined(records)["profile"]
    assert fp32["slower_than_fp32"] is None
    assert bf16["slower_than_fp32"] == 40.0
    assert bf16["verdict"] == "emulated_format"
    records["profile"][0]["status"] = "failed"
    assert build.joined(records)["profile"][1]["slower_than_fp32"] is None


def test_without_fp32_s_ceiling_an_emulated_format_has_no_mfu():
    (row,) = joined_formats({"bf16": None}, [("bf16", 1.0, 40.0)], [], {"bf16"})["profile"]
    assert row["mfu_percent"] is None
    assert row["mfu_note"] == "no_peak"


def test_a_step_above_the_ceiling_becomes_it_and_is_flagged():
    records = joined_formats({"fp32": 1.0}, [("fp32", 2.0, 1.0), ("fp32", 0.8, 1.0)], [], set())
    first, second = records["profile"]
    assert (first["mfu_percent"], second["mfu_percent"]) == (100.0, 40.0)
    assert (first["verdict"], first["ceiling_raised_percent"]) == ("doubtful_ceiling", 200.0)
    assert "set_ceiling" in first["verdict_flags"]
    assert second["ceiling_raised_percent"] is None
    (ceiling,) = records["ceilings"]
    assert (ceiling["swept_tflop_s"], ceiling["raised_by"]) == (1.0, first["run"])


POSITIVE = st.floats(1e-3, 1e3)
RUNS = st.lists(
    st.tuples(st.sampled_from(["fp32", "bf16", "int8"]), POSITIVE, POSITIVE), max_size=5
)


@given(
    rates=st.fixed_dictionaries(dict.fromkeys(("fp32", "bf16", "int8"), POSITIVE)),
    steps=RUNS,
    matmuls=RUNS,
    emulated=st.sets(st.sampled_from(["bf16", "int8"])),
)
def test_no_row_exceeds_its_ceiling(rates, steps, matmuls, emulated):
    """Whatever was measured; who set the ceiling is flagged, and nobody is compute-bound against
    one of his own."""
    records = joined_formats(rates, steps, matmuls, emulated)
    for row in records["profile"]:
        assert row["mfu_percent"] <= 100.0001
        assert row["hfu_percent"] <= 100.0001
        expected = "fp32" if row["effective_precision"] in emulated else row["effective_precision"]
        assert row["peak_precision"] == expected
        if row["ceiling_raised_percent"] is not None:
            assert "set_ceiling" in row["verdict_flags"]
            assert row["verdict"] != "compute_bound"
    assert all(row["share_of_measured_percent"] <= 100.0001 for row in records["matmul"])
    fp32 = next(row for row in records["ceilings"] if row["ceiling"] == "fp32")
    own = [work / time for name, work, time in (*steps, *matmuls) if name == "fp32"]
    assert fp32["measured_tflop_s"] == pytest.approx(max([rates["fp32"], *own]))


def test_a_folder_copied_from_another_machine_is_joined_by_equal_configs(planned):
    root = planned.parents[3]
    report_rows.lay_out(root, report_rows.GPU).unlink()
    planned = report_rows.lay_out(root)
    profile = frames.read(make(planned, "--results", str(root / "results")))[0]["profile"]
    foreign = profile[profile["hardware"] == report_rows.GPU]
    assert len(foreign) == 42
    assert set(foreign["mfu_basis"]) == {"spec"}
    good = foreign[foreign["status"] == "ok"]
    assert good["mfu_percent"].notna().all()


def test_recorded_tables_are_joined_anew_and_marked(planned):
    folder = make(planned)
    root = planned.parents[3]
    reference = root / "results/reference" / report_rows.CPU
    reference.mkdir(parents=True)
    for name in TABLES:
        (folder / f"{name}.csv").rename(reference / f"{name}.csv")
    ceilings = (reference / "ceilings.csv").read_text().replace("0.55,", "1.1,")
    (reference / "ceilings.csv").write_text(ceilings)
    main(["tables", "--reference", str(root / "results/reference"), "--out", str(folder)])
    profile = frames.read(folder)[0]["profile"]
    assert profile["recorded"].all()
    row = profile.query(ONE_STEP).iloc[0]
    assert row["mfu_percent"] == pytest.approx(100 * row["flops"] / row["time_s"] / 1.1e12)


@pytest.mark.slow
def test_one_recording_of_several_can_be_read_alone():
    reference = Path(__file__).parents[3] / "results/reference"
    gpus = {"nvidia-h100-80gb-hbm3", "nvidia-h200"}
    for recorded, expected in (("amd-epyc-2c", {"amd-epyc-2c"}), ("", {"amd-epyc-2c", *gpus})):
        records = build.collect(reference=reference, recorded=recorded).records
        assert {row["hardware"] for row in records["matmul"]} == expected
        found = any("MI300X" in (row["device"] or "") for row in records["traces"])
        assert found is not bool(recorded)
        assert records["published"]


def test_a_broken_line_of_a_recorded_table_is_left_out_and_named(tmp_path):
    folder = tmp_path / "reference/machine"
    folder.mkdir(parents=True)
    (folder / "profile.csv").write_text("hardware,run,time_s\nmachine,a,0.5\nmachine,b,fast\n")
    collected = build.collect(reference=tmp_path / "reference")
    assert [row["run"] for row in collected.records["profile"]] == ["a"]
    first = collected.upkeep[0]
    assert (first.key, first.numbers["line"]) == ("line_unreadable", 3)
    assert "time_s='fast'" in str(first)


def test_tables_have_the_columns_that_are_promised(tables):
    for name in TABLES:
        with (tables / f"{name}.csv").open() as file:
            assert next(csv.reader(file)) == columns(name)


def test_missing_is_empty_and_never_zero(tables):
    with (tables / "profile.csv").open() as file:
        for row in csv.DictReader(file):
            assert row["energy_j"] == ""


@pytest.mark.parametrize("name", few(sorted(TABLES), 2))
@pytest.mark.parametrize("content", few([None, "\x00\xff", "", "a,b\n1,2\n", 'hardware\n"open'], 2))
def test_any_table_may_be_broken(tables, tmp_path, name, content):
    folder = shutil.copytree(tables, tmp_path / "tables")
    path = folder / f"{name}.csv"
    path.unlink() if content is None else path.write_text(content, encoding="latin-1")
    found, problems = frames.read(folder)
    assert any(f"{name}.csv" in problem.text for problem in problems)
    assert list(found[name].columns) == columns(name)


def test_the_manifest_alone_decides_what_belongs_to_an_experiment(planned):
    plan = json.loads(planned.read_text())
    plan["runs"] = [run for run in plan["runs"] if run["step"] != "bench_matmul"]
    planned.write_text(json.dumps(plan))
    assert frames.read(make(planned))[0]["matmul"].empty


def test_the_terminal_names_a_run_by_its_values():
    from mfulab.lab.planning.naming import short

    assert short("model=gpt2,workload=training,batch_size=4") == "gpt2 training 4"
    assert short("kernel=torch,size=64,timing=short,timing.windows=2,seed=3") == "torch 64 3"
    assert short("all") == "all"


def test_long_names_leave_the_numbers_their_room():
    from rich.console import Console

    from mfulab.lab.report import summary

    runs = [
        f"model=simple_cnn,workload=training_loaded,batch_size=8,workload.loader_workers={n}"
        for n in (0, 4)
    ]
    row = {"recorded": False, "status": "ok", "time_s": 0.02, "tflop_s": 1.0, "mfu_percent": 50.0}
    rows = pd.DataFrame([{"run": run, "utilization_percent": 99.0, **row} for run in runs])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary.table(rows, rows.iloc[:0], console.width))
    heading, *lines = console.export_text().splitlines()
    assert heading.startswith("run, all simple_cnn training_loaded 8")
    assert [line.split()[0] for line in lines] == ["loader_workers=0", "loader_workers=4"]
    assert all("20.0 ms" in line and "50 %" in line and "99 %" in line for line in lines)


def test_the_terminal_names_a_page_that_is_there_alone(planned, tmp_path, capsys):

    folder, page = make(planned), tmp_path / "report.html"
    os.utime(folder / "profile.csv", (2**32, 2**32))  # newer than every row
    for is_there in (False, True):
        main(["summary", "--tables", str(folder), "--page", str(page)])
        assert (page.name in capsys.readouterr().out) == is_there
        page.touch()


def test_the_terminal_shows_no_older_table_after_runs_alone(tmp_path, capsys):
    from mfulab.lab.report import summary

    row = tmp_path / "results" / "machine" / "profile_step" / "run" / "row.csv"
    table = tmp_path / "results" / "tables" / "profile.csv"
    for path, seconds in ((table, 1), (row, 2)):
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (seconds, seconds))
    main(["summary", "--tables", str(table.parent)])
    assert "measured runs that no table shows yet: 1" in capsys.readouterr().out
    os.utime(table, (3, 3))
    assert summary.left_out(table.parent) == 0


@pytest.mark.parametrize(
    ("change", "key", "numbers"),
    [
        (
            lambda header, cells: (f"{header},status", f"{cells},ok"),
            "columns_alike",
            {"name": "'status'"},
        ),
        (lambda header, cells: (header, cells.replace(",ok,", ",,", 1)), "status_empty", {}),
        (
            lambda header, cells: (header, cells.replace("xeon-4c", "elsewhere", 1)),
            "row_of_another",
            {"run": "all", "hardware": "elsewhere"},
        ),
    ],
)
def test_a_row_that_says_two_things_none_or_another_machines_is_named(
    tmp_path, change, key, numbers
):
    folder = tmp_path / "xeon-4c/environment/all"
    folder.mkdir(parents=True)
    row = MEASUREMENTS["environment"].row(hardware="xeon-4c", run="all", device="cpu")
    write_csv(folder / "row.csv", [row.model_dump()])
    assert read_row(folder, "environment")["status"] == "ok"
    header, cells = (folder / "row.csv").read_text().splitlines()
    (folder / "row.csv").write_text("\n".join([*change(header, cells), ""]))
    found = read_row(folder, "environment")
    assert found["status"] == "failed"
    reason = of_cell(found["message"]).numbers["reason"].numbers["reason"]
    assert (reason.key, reason.numbers) == (key, numbers)


def test_a_rank_that_is_no_number_costs_its_row(tmp_path):
    row = HERE | {"ranks": '[{"time_ms": NaN}]', "run": "r"}
    with pytest.raises(ValueError, match="finite"):
        job.rank_rows(row)


@pytest.mark.parametrize("encoding", few(["cp949", "ascii", "latin-1"], 0))
def test_a_terminal_without_our_letters_shows_what_it_can(tables, tmp_path, encoding):
    """The page is there by then; its summary must not make the status 1."""
    options = ["--tables", str(tables), "--page", str(tmp_path)]
    command = [sys.executable, "-m", "mfulab", "summary", *options]
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"linear_1024" in done.stdout or done.stdout
