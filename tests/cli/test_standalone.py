"""`mfulab run MEASUREMENT`: its help, what it composes, units, and one table of a sweep."""

import io
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console
from support.workflow_copy import ROOT

from mfulab.cli import standalone
from mfulab.cli.main import main
from mfulab.core.files import write_csv
from mfulab.core.language import LANGUAGES, verdicts
from mfulab.core.said import Said, as_told
from mfulab.device import identity
from mfulab.lab.planning.composition import complete
from mfulab.lab.runtime import client


def test_one_step_is_a_list_of_one():
    assert complete(["steps=profile_step"]) == ["steps=[profile_step]"]
    assert complete(["steps=profile_step,ceilings"]) == ["steps=[profile_step,ceilings]"]
    assert complete(["steps=[ceilings]"]) == ["steps=[ceilings]"]


@pytest.mark.parametrize(
    ("step", "choice"),
    [("profile_step", "resnet18"), ("count_flops", "resnet18"), ("bench_matmul", "numpy")],
)
def test_help_says_what_the_step_does_its_choices_and_flags(step, choice, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["run", step, "--help"]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("--cfg [job]", "--row", "-m, --multirun", choice))


def test_a_run_alone_has_its_own_values_and_no_sweep(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["run", "profile_step", "--cfg", "job", "batch_size=3"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["model"]["name"], shown["batch_size"]) == ("resnet18", 3)
    assert main(["run", "profile_step", "batch_size=3,4"]) == 2
    assert "batch_size=3,4: several values. Add -m" in capsys.readouterr().err


def test_estimates_of_a_sweep_read_each_earlier_row_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for size, process_s in ((1, 2.0), (2, 4.0)):
        row = tmp_path / f"results/count_flops/size={size}/row.csv"
        write_csv(row, [{"process_s": process_s}])
    monkeypatch.setattr(standalone, "read_csv", read := Mock(wraps=standalone.read_csv))
    for size in (3, 4):
        run = SimpleNamespace(folder=f"count_flops/size={size}")
        assert standalone.expected_s(run) == 3.0
    assert read.call_count == 2


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("forward_flops", 3_628_146_688, "3.63 GFLOP"),
        ("forward_macs", 1_814_073_344, "1.81 GMAC"),
        ("time_s", 0.0123, "12.3 ms"),
        ("mfu_percent", 41.2, "41 %"),
        ("tflop_s", 0.5, "500 GFLOP/s"),
        ("parameters", 11_689_512, "11,689,512"),
        ("memory_bytes", 2.5e8, "250 MB"),
        ("samples_per_s", 163.2, "163 /s"),
        ("idle_ms", 2.5, "2.50 ms"),
        ("model", "gpt2", "gpt2"),
    ],
)
def test_cells_have_units(name, value, shown):
    assert standalone.with_unit(name, value) == shown


def printed(rows, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(standalone.table_of("bench_matmul", rows, width))
    return console.file.getvalue().strip().splitlines()


def test_a_sweep_is_one_table_with_a_line_a_run():
    rows = [
        {"kernel": "torch", "size": size, "precision": "fp32", "status": "ok", "time_s": 1e-3}
        for size in (1, 2)
    ]
    heads, first, second, alike = printed(rows, 100)
    assert heads.split() == ["size"]
    assert (first.strip(), second.strip()) == ("1", "2")
    assert "kernel torch" in alike
    assert "time_s 1.00 ms" in alike


def test_columns_that_do_not_fit_are_named_not_squeezed():
    rows = [
        {
            "kernel": name,
            "size": 256,
            "precision": "fp32",
            "status": "ok",
            "time_s": time,
            "tflop_s": time,
            "flops": time,
        }
        for name, time in (("numba_cpu_blocked", 0.1), ("torch", 0.2))
    ]
    heads, *rest = printed(rows, 20)
    assert heads.split() == ["kernel"]
    assert "in row.csv of each run: time_s, tflop_s" in " ".join(line.strip() for line in rest)
    assert len(printed(rows[:1], 200)) == 2


@pytest.mark.parametrize(("device", "says"), [("auto", True), ("cpu", False)])
def test_a_gpu_that_auto_leaves_is_told_before_the_run(device, says, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        identity, "unused", lambda: as_told("Tesla T4: torch 2.13.0+cpu is built for CPUs alone")
    )
    monkeypatch.setattr(standalone.runs, "plan", lambda *_: SimpleNamespace(excluded=[], runs=[]))
    main(["run", "profile_step", f"device.type={device}"])
    found = "mfulab: the CPU is measured, not the GPU. Tesla T4: torch" in capsys.readouterr().err
    assert found is says


@pytest.mark.parametrize(
    ("words", "outer", "counts"),
    [
        (["-m", "batch_size=1,2"], None, 2),
        (["batch_size=1"], None, 1),
        (["-m", "batch_size=1"], None, 1),
        (["-m", "batch_size=1,2"], "/a/sweep", 2),
    ],
    ids=["several", "one", "one of a sweep", "beside a worker"],
)
def test_several_runs_are_forked_from_one_warm_worker(words, outer, counts, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv(client.SOCKET, raising=False)
    if outer:
        monkeypatch.setenv(client.SOCKET, outer)
    started, measured = [], []
    monkeypatch.setattr(standalone.lifetime, "start", lambda work: started.append(work))
    monkeypatch.setattr(standalone.atexit, "register", lambda call: None)
    monkeypatch.setattr(standalone, "_measure", lambda run, *_: measured.append(run.step))
    monkeypatch.setattr(standalone, "_joined", lambda *_: [])
    assert main(["run", "count_flops", "model=resnet18", *words]) == 0
    assert measured.count("count_flops") == counts
    # in a fresh checkout the environment is measured, too
    assert len(started) == (len(measured) > 1 and not outer)
    assert all(work.split()[0] == "rows" for work in started)


@pytest.fixture
def measured(monkeypatch):
    """The runs that the command would measure."""
    runs = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(standalone.lifetime, "start", lambda work: None)
    monkeypatch.setattr(standalone.atexit, "register", lambda call: None)
    monkeypatch.setattr(standalone, "_measure", lambda run, *_: runs.append(run))
    monkeypatch.setattr(standalone, "_joined", lambda *_: [])
    return runs


@pytest.mark.parametrize(
    ("words", "axis", "expected"),
    [
        # the default experiment leaves gpt2's training at this batch size out, and sweeps precisions
        (["profile_step", "model=gpt2", "batch_size=4,8"], "batch_size", [4, 8]),
        (["profile_step", "model=digit_cnn", "batch_size=4"], "batch_size", [4]),
        (["bench_matmul", "kernel=torch,numpy", "size=256"], "size", ["256", "256"]),
        (
            [
                "bench_matmul",
                "experiment=miniature",
                "kernel=torch",
                "precision=fp32",
                "size=96,40",
            ],
            "size",
            ["96", "40"],
        ),
    ],
)
def test_a_sweep_measures_the_asked_combinations_and_no_others(words, axis, expected, measured):
    step, *overrides = words
    assert main(["run", step, "-m", "device=cpu", *overrides]) == 0
    assert [run.config[axis] for run in measured if run.step == step] == expected


def test_a_named_experiment_keeps_its_own_axes_in_a_sweep(measured):
    words = ["experiment=quickstart", "device=cpu", "kernel=torch", "precision=fp32"]
    assert main(["run", "bench_matmul", "-m", *words]) == 0
    sizes = [run.config["size"] for run in measured if run.step == "bench_matmul"]
    assert sizes == ["128", "512", "1024"]


@pytest.mark.parametrize(
    "words",
    [
        ["--config-dir", "mine", "count_flops", "model=digit_cnn"],
        ["count_flops", "--config-dir=mine"],
        ["count_flops", "model=digit_cnn", "-cd", "mine"],
        ["count_flops", "-cn", "mine"],
        ["count_flops", "-m", "--config-path", "mine", "seed=0,1"],
    ],
)
def test_another_configuration_is_refused_with_what_to_do(words, capsys):
    assert main(["run", *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    for named in ("--config-dir", "mine", "config/experiment/", "experiment=NAME"):
        assert named in told


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("divisor", "is_said"), [(800, True), (1.2, False)])
def test_a_run_says_that_its_ceiling_is_far_below_the_computed_peak(
    language, divisor, is_said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(standalone, "RESULTS", tmp_path)
    monkeypatch.setattr(standalone, "usual_language", lambda: language)
    row = {"status": "ok", "model": "resnet18", "device": "cpu", "time_s": 0.1, "steps": 50}
    row |= {"utilization_percent": 99.0, "mfu_percent": 30.0, "mfu_basis": "measured"}
    row |= {"peak_tflop_s": 0.8, "ceiling_tflop_s": 0.8 / divisor}
    standalone._show(SimpleNamespace(step="profile_step", folder="a"), row, all_columns=False)
    said = verdicts.say(Said("far_ceiling", {"share": 100 / 800}), language)
    printed = "".join(capsys.readouterr().out.split())
    assert ("".join(said.split()) in printed) == is_said
