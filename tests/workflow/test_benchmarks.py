"""The output of `make bench`, and that the sweeps which it times still run."""

import csv
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from support import report_rows
from support.slow import few

from mfulab.cli.main import main
from mfulab.core.files import write_csv
from mfulab.core.language import Texts
from mfulab.core.language.verdicts import keys
from mfulab.core.rows import Status
from mfulab.lab.report import figures, frames, selection, trust
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.mfu.causes import BY_KEY
from mfulab.mfu.headroom import PARTS

pytestmark = pytest.mark.usefixtures("benchmark_scripts")


@pytest.mark.parametrize(("got", "holds"), [(0.15, "yes"), (0.1501, "no")])
def test_a_target_stands_beside_what_was_got(capsys, got, holds):
    from targets import HEADER, Target, report

    assert report(Target("a run", 0.15, "s"), got) == (holds == "yes")
    line = capsys.readouterr().out
    assert [cell.strip() for cell in line.split("|")] == ["a run ≤ 0.15 s", "0.15 s", holds]
    assert line.index("|") == HEADER.index("|")


def test_a_target_may_be_the_least():
    from targets import Target

    duty = Target("duty cycle", 60, "%", is_least=True)
    assert duty.holds(60)
    assert not duty.holds(59.9)


def pretend_to_run(folder: Path, *command: str, **environment: str):
    """Leaves behind what the command would have, at once: a row of each run, and what is said the
    second time."""
    from trivial import Cost

    words = " ".join(command)
    count = re.search(r"range\(1,(\d+)\)", words)
    runs = range(1, int(count[1])) if count else ["model=resnet18"]
    step = found[1] if (found := re.search(r"steps=\[(\w+)\]", words)) else "profile_step"
    if "snakemake" in words:
        for run in runs:
            (folder / f"results/cpu/{step}/{run}").mkdir(parents=True, exist_ok=True)
            (folder / f"results/cpu/{step}/{run}/row.csv").write_text("run,measured_s\na,15.0\n")
    (folder / "output").write_text("Nothing to be done")
    worker_off = environment.get("MFULAB_WORKER") == ""
    return Cost(time_s=40.0 if worker_off else 20.0, memory_bytes=500_000_000)


@pytest.mark.parametrize(("arguments", "targets"), [([], 5), (["--all"], 8)])
def test_the_pipeline_s_targets_are_a_line_each(arguments, targets, monkeypatch, capsys):
    import pipeline
    import trivial

    monkeypatch.setattr(trivial, "run", pretend_to_run)
    monkeypatch.setattr("sys.argv", ["pipeline.py", *arguments])
    assert pipeline.main() == 1  # 20 s of planning are more than 10
    _, header, *lines = capsys.readouterr().out.splitlines()
    got = {
        name.strip(): (value.strip(), holds.strip())
        for name, value, holds in (line.split("|") for line in lines)
    }
    assert header.startswith("target")
    assert len(got) == len(lines) == targets
    assert got["plan 5,000 runs from nothing ≤ 10 s"] == ("20 s", "no")
    assert got["memory of the planner, 20,000 runs ≤ 1 GB"] == ("0.5 GB", "yes")
    assert got["a run beyond its measuring, 200 runs, one core ≤ 0.1 s"] == ("0.1 s", "yes")
    assert got["with the worker ÷ without it (4.00 s) ≤ 0.1"] == ("0.025", "yes")
    if "--all" in arguments:
        assert got["5,000 trivial runs on 4 cores ≤ 300 s"] == ("20 s", "yes")
        assert got["5,000 runs, nothing to be done ≤ 3.5 s"] == ("20 s", "no")
        assert got["quickstart on the CPU, measuring ÷ the whole command ≥ 60 %"] == ("75 %", "yes")


def test_too_few_pairs_for_an_interval_are_refused_before_anything_is_measured(monkeypatch, capsys):
    import sampler_cost

    monkeypatch.setattr(sampler_cost, "prepare", None)
    monkeypatch.setattr("sys.argv", ["sampler_cost.py", "--pairs", "4"])
    with pytest.raises(SystemExit) as refused:
        sampler_cost.main()
    assert refused.value.code == 2
    assert "--pairs 4: 5 are the fewest that have an interval" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.workflow
def test_trivial_sweeps_have_a_row_a_run_and_nothing_to_do_afterwards():
    import trivial

    with trivial.copy() as folder:
        trivial.measure(folder, trivial.counts(3), 3, "2")
        trivial.measure_nothing(folder, trivial.counts(3), "2")
        configs = [path.parent.name for path in folder.glob("results/count_flops/*/config.json")]
        assert sorted(configs) == [f"model=linear_1024,batch_size={size}" for size in (1, 2, 3)]
        trivial.plan(folder, trivial.matmuls(2))
        assert len(list(folder.glob("results/*/bench_matmul/*/config.json"))) == 2


def test_repeated_sweeps_are_judged_by_what_compare_says(tmp_path, capsys):
    import repeatability

    from mfulab.core.files import write_csv

    for sweep, factor in (("a", 1.0), ("b", 1.001), ("c", 1.3)):
        for run in range(10):
            for replicate, time in enumerate((1.0, 1.002, 0.998), 1):
                name = f"size={run}" + (f",replicate={replicate}" if replicate > 1 else "")
                row = {
                    "hardware": "here",
                    "run": name,
                    "status": "ok",
                    "process_s": 4.0,
                    "measured_s": 3.0,
                    "time_s": factor * time,
                }
                folder = tmp_path / sweep / "results/here/bench_matmul" / name
                folder.mkdir(parents=True)
                (folder / "config.json").write_text("{}")
                write_csv(folder / "row.csv", [row])
    sweeps = {name: str(tmp_path / name) for name in "abc"}
    assert repeatability.main(["--existing", sweeps["a"], sweeps["b"]]) == 0
    lines = [
        [cell.strip() for cell in line.split("|")]
        for line in capsys.readouterr().out.splitlines()[2:]
    ]
    assert lines == [
        ["unchanged: called different, of 10 ≤ 5 %", "0 %", "yes"],
        ["unchanged: ambiguous ≤ 40 %", "0 %", "yes"],
        ["half the interval, median ≤ 8 %", lines[2][1], "yes"],
        ["intervals that hold the pooled median, of 20 ≥ 90 %", "100 %", "yes"],
        ["duty cycle of a sweep ≥ 65 %", "75 %", "yes"],
    ]
    assert repeatability.main(["--existing", sweeps["b"], sweeps["c"]]) == 1
    assert "of 10 ≤ 5 %" in (told := capsys.readouterr().out)
    assert "100 %" in told
    with pytest.raises(SystemExit):
        repeatability.main(["--existing", sweeps["a"]])


def test_what_was_measured_of_the_targets_is_kept_the_rest_left(tmp_path, capsys, monkeypatch):
    import repeatability

    from mfulab.core.files import write_json
    from mfulab.lab.tables.compare import Compared, write

    asked, clock = [], [0.0]

    def measure(part, out, overrides):
        asked.append(part.name)
        clock[0] += part.about_s
        out.mkdir(parents=True)
        runs = [
            Compared("profile_step", f"batch_size={size}", says, ratio=1.0)
            for size, says in enumerate(verdicts)
        ]
        write(runs, out / repeatability.COMPARED, out, out)
        write_json(out / repeatability.DONE, {"time_s": 200.0})

    verdicts = ["slower", "same", "slower", "slower"]
    monkeypatch.setattr(repeatability, "measure", measure)
    monkeypatch.setattr(repeatability, "sweep_of", lambda out: repeatability.Sweep(out, 200.0))
    monkeypatch.setattr(repeatability, "pairs", lambda sweeps: [])
    monkeypatch.setattr(repeatability.time, "monotonic", lambda: clock[0])
    wanted = ["--out", str(tmp_path)]
    # unchanged runs were called different
    assert repeatability.main([*wanted, "--minutes", "14"]) == 1
    assert asked == ["sweep-0", "sweep-1", "paired-0"]
    told = capsys.readouterr().out
    assert "paired, +0 %: called different, of 4 ≤ 5 %" in told
    assert "not measured yet: paired-10, paired-5, sweep-2." in told
    verdicts[1] = "slower"
    assert repeatability.main(wanted) == 1
    assert asked[3:] == ["paired-10", "paired-5", "sweep-2"]
    assert "paired, +10 %: found, of 4 ≥ 90 %" in capsys.readouterr().out


@pytest.mark.workflow
@pytest.mark.parametrize("name", few(["avx2", "one-core"]))
@pytest.mark.slow
def test_the_miniature_says_nothing_wrong_on_another_machine(name):
    import machines

    machine = machines.MACHINES[name]
    if reason := machine.missing():
        pytest.skip(reason)
    page = machines.swept(machine, "miniature", "batch_size=4", "kernel=torch", "size=64")
    # whether the sentence is true depends on what else this machine does meanwhile
    assert [line for line in page.wrongs if not line.startswith("the first sentence: ")] == []
    assert page.first
    assert page.full is not None
    assert 0 <= page.full <= 100
    assert page.cells["rows"] == str(2 * 2 * 2 + 2)  # a row for each run
    assert page.cells["the page begins"]


SOUND: dict[str, Any] = {
    "run": "model=a,precision=fp32",
    "hardware": "here",
    "status": "ok",
    "recorded": False,
    "precision": "fp32",
    "effective_precision": "fp32",
    "time_s": 1.0,
    "mfu_percent": 80.0,
    "verdict": "compute_bound",
    "verdict_reason": "compute_bound",
    "verdict_numbers": '{"share": 80}',
    "verdict_flags": "",
    "share_of_measured_percent": 90.0,
}
IN_BF16 = {"run": "model=a,precision=bf16", "precision": "bf16", "effective_precision": "bf16"}


PLANTED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    (IN_BF16, ["compute_bound in a format that the device emulates"]),
    (IN_BF16 | {"verdict": "emulated_format"}, []),
    ({"verdict": "emulated_format"}, ["emulated_format, of a format that the device has"]),
    (
        {"mfu_percent": 101.0, "verdict": "", "share_of_measured_percent": 100.0},
        ["above 100 % MFU without a flag"],
    ),
    (
        {"mfu_percent": 101.0, "verdict_flags": '{"above_peak": {"mfu": 101}}'},
        ["compute_bound above 100 % MFU"],
    ),
    (
        {"verdict": "under_used", "verdict_flags": '{"held_back": {"share": 50}}'},
        ["under_used, though a quota held it back"],
    ),
    ({"status": "failed"}, ["failed", "failed"]),
    ({"status": "incorrect"}, ["failed", "failed"]),
    ({"share_of_measured_percent": 101.0}, ["above 100 % of the measured ceiling"]),
]


@pytest.mark.parametrize(("changed", "words"), PLANTED)
def test_what_is_wrong_on_a_machine_without_bf16_units(changed, words):
    assert told_wrong([SOUND | changed]) == words


def test_planted_rows_have_keys_that_rows_still_have():
    """A renamed verdict, flag or status would make a check of `wrong` silent."""
    import machines

    for changed, _ in PLANTED:
        row = SOUND | changed
        assert row["verdict"] in {"", *BY_KEY}
        assert row["status"] in get_args(Status)
        assert keys(row["verdict_flags"]) <= {*trust.WORDS}
    assert {machine.flag for machine in machines.MACHINES.values()} <= {"", *trust.WORDS}


def test_a_ceiling_that_was_disturbed_bounds_nothing():
    assert told_wrong([SOUND], disturbed=1) == ["compute_bound by a ceiling that was disturbed"]


def told_wrong(rows: list[dict[str, Any]], disturbed: int = 0) -> list[str]:
    """What stands behind each run's name in the sentences of `wrong`."""
    import machines

    table = pd.DataFrame(rows)
    ceiling = {"ceiling": "fp32", "replicates": 1.0, "disturbed_replicates": float(disturbed)}
    tables = {"profile": table, "matmul": table, "ceilings": pd.DataFrame([ceiling])}
    found = machines.wrong(tables, frozenset({"bf16"}))
    return [line.split(": ", 1)[1] for line in found]


CELLS = {"minutes": "0.5", "rows": "24", "doubtful": "1", "not measured": "2", "MFU ≤": "60 %"}
CELLS |= {"matmuls ≤": "90 %", "estimate ÷ truth": "1.04", "the page begins": "MFU is 60 %."}


def rows_and_rest(capsys) -> tuple[list[dict[str, str]], list[str]]:
    """Splits the output of `machines.main` into rows by column, and the lines below the table."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    table = [line for line in lines if line.startswith("|") and "---" not in line]
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    return found, lines[lines.index(table[-1]) + 1 :]


def test_each_machine_is_a_row_and_one_that_cannot_be_had_says_why(monkeypatch, capsys):
    import machines

    page = machines.Page(dict(CELLS), ["a: failed"], 83.9)
    page.judge("true")
    monkeypatch.setattr(machines, "swept", lambda machine, experiment: page)
    missing = machines.Machine("AVX2", missing=lambda: "no avx2 here")
    monkeypatch.setattr(
        machines, "MACHINES", {"native": machines.MACHINES["native"], "avx2": missing}
    )
    assert machines.main(["--only", "native,avx2", "--markdown"]) == 1
    rows, rest = rows_and_rest(capsys)
    judged = {"marks full": "83 %", "first sentence": "true", "wrong": "1"}
    assert rows[0] == {"machine": "as it is", **CELLS, **judged}
    assert {name: cell for name, cell in rows[1].items() if cell} == {
        "machine": "AVX2",
        "the page begins": "no avx2 here",
    }
    assert {len(row) for row in rows} == {len(machines.COLUMNS)}
    assert rest[0] == "native: a: failed"
    for words in (["--only", "sparc"], ["--times", "0"]):
        with pytest.raises(SystemExit):
            machines.main(words)
        assert words[1] in capsys.readouterr().err


def test_a_machine_swept_several_times_is_as_many_rows_and_a_sum(monkeypatch, capsys):
    """A command that fails has no page, and is wrong."""
    import machines

    outcomes = iter([(79.9, "true"), (100.0, "compute_bound told, shape again"), None])

    def swept(machine, experiment):
        outcome = next(outcomes)
        if outcome is None:
            raise subprocess.CalledProcessError(7, "snakemake")
        page = machines.Page(dict(CELLS), [], outcome[0])
        page.judge(outcome[1])
        return page

    monkeypatch.setattr(machines, "swept", swept)
    assert machines.main(["--only", "native", "--times", "3"]) == 1
    rows, rest = rows_and_rest(capsys)
    assert [row["marks full"] for row in rows] == ["79 %", "100 %", ""]
    assert [row["wrong"] for row in rows] == ["0", "1", ""]
    assert [line.startswith("native: ") for line in rest] == [True, True, False]
    assert "compute_bound told, shape again" in rest[0]
    assert "7" in rest[1]
    assert re.findall(r"\d+", rest[2]) == ["1", "2", "79"]


def test_without_a_mark_no_share_of_them_is_full():
    import machines

    assert machines.full_percent(trust.Marks(0, 0)) is None
    assert machines.full_percent(trust.Marks(1, 5)) == 80
    assert machines.summed([]) == ""


TOLD: dict[str, Any] = {
    "status": "ok",
    "mfu_percent": 1.2,
    "utilization_percent": 99.0,
    "time_s": 1.0,
    "time_ci_low_s": 0.95,
    "time_ci_high_s": 1.05,
    "reach": 1.0,
    "verdict": "overhead",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"mfu_percent": 1.25, "utilization_percent": 95.0}, []),  # within both intervals
        ({"mfu_percent": 0.6}, ["MFU", "1.2", "0.6"]),
        ({"mfu_percent": 0.6, "reach": 1.9}, []),  # a doubtful row may be as far off
        ({"utilization_percent": 50.0}, ["utilization", "99", "50"]),
        ({"mfu_percent": float("nan")}, ["MFU", "1.2", "none"]),
        ({"verdict": "shape"}, ["overhead", "shape"]),
        ({"verdict": "shape", "mfu_percent": 2.4}, ["MFU", "overhead", "shape"]),
        ({"status": "failed"}, ["failed"]),
        # doubts that allow any value confirm nothing: the intervals alone count
        ({"reach": float("inf")}, []),
        ({"reach": float("inf"), "mfu_percent": 0.6}, ["MFU", "1.2", "0.6"]),
    ],
)
def test_a_first_sentence_is_true_if_the_run_is_the_same_again(changed, words):
    from first_sentence import TRUE, Told, judged

    said = judged(Told(pd.Series(TOLD)), pd.Series(TOLD | changed))
    assert (said == TRUE) == (not words)
    assert all(word in said for word in words)


def test_a_single_process_is_as_far_off_as_usual():
    from first_sentence import TRUE, Told, judged

    alone: dict[str, Any] = dict.fromkeys(["time_ci_low_s", "time_ci_high_s"], float("nan"))
    first = Told(pd.Series(TOLD | alone | {frames.USUAL: 0.1}))
    again = TOLD | alone | {frames.USUAL: 0.1}
    assert judged(first, pd.Series(again | {"mfu_percent": 1.2 * 1.2})) == TRUE
    assert judged(first, pd.Series(again | {"mfu_percent": 1.2 * 1.3})) != TRUE


def test_a_cause_that_the_page_shows_as_doubtful_may_turn():
    from first_sentence import TRUE, Told, judged

    first = Told(pd.Series(TOLD), may_turn=True)
    assert judged(first, pd.Series(TOLD | {"verdict": "shape"})) == TRUE
    assert judged(first, pd.Series(TOLD | {"verdict": "shape", "mfu_percent": 0.1})) != TRUE


@pytest.fixture
def invented_sweep(tmp_path: Path) -> tuple[Path, frames.Tables]:
    """Folder of a sweep of an invented machine, and its judged tables."""
    manifest = report_rows.lay_out(tmp_path, models=("resnet18",), sizes=(256,))
    read, _ = frames.read(report_rows.tabled(tmp_path, manifest))
    return tmp_path, trust.judged(read)


@pytest.mark.parametrize(("factor", "is_true"), [(1.0, True), (3.0, False)])
def test_the_run_of_the_first_sentence_alone_is_measured_again(invented_sweep, factor, is_true):
    from first_sentence import STEP, TRUE, measured_again, rows_of, told

    folder, tables = invented_sweep
    first = told(tables)
    assert first is not None
    [row] = rows_of(folder, first.row["run"])
    before = row.read_text()
    rows = set(folder.glob(f"results/*/{STEP}/*/row.csv"))
    replicate = row.parent.with_name(f"{first.row['run']},replicate=2") / "row.csv"
    replicate.parent.mkdir()
    replicate.write_text("as `mfulab refine` adds them")
    commands = []

    def run(*command: str) -> None:
        commands.append(command)
        if command == ("sweep",):
            assert set(folder.glob(f"results/*/{STEP}/*/row.csv")) == rows - {row}
            [cells] = csv.DictReader(before.splitlines())
            for name in ("time_s", "time_ci_low_s", "time_ci_high_s", "process_times_s"):
                cells[name] = json.dumps(scaled(json.loads(cells[name]), factor))
            write_csv(row, [cells])
        else:
            paths = [str(folder / word) if "/" in word else word for word in command[3:]]
            main(["tables", "--root", str(folder), *paths])

    assert (measured_again(folder, tables, run, "sweep") == TRUE) == is_true
    assert [command[:3] for command in commands] == [("sweep",), ("-m", "mfulab", "tables")]


def scaled(times: Any, factor: float) -> Any:
    """A time, or each time of a list, longer by a factor."""
    if isinstance(times, list):
        return [factor * time for time in times]
    return factor * times


def test_a_first_sentence_on_a_recorded_machine_or_no_run_is_not_true(invented_sweep):
    from first_sentence import TRUE, measured_again

    folder, tables = invented_sweep
    none = tables | {"profile": tables["profile"].head(0)}
    recorded = {}
    for name, rows in tables.items():
        recorded[name] = rows.assign(recorded=True) if "recorded" in rows else rows
    for changed in (none, recorded):
        said = measured_again(folder, changed, lambda *command: pytest.fail("no run to measure"))
        assert said != TRUE


def test_a_cause_is_shown_as_doubtful_where_two_losses_are_close(invented_sweep):
    from first_sentence import told

    _, tables = invented_sweep
    first = told(tables)
    assert first is not None
    assert not first.may_turn
    parts = {f"{part}_ms": 1.0 for part in PARTS}
    is_first = tables["profile"]["run"] == first.row["run"]
    flags = tables["profile"]["verdict_flags"].mask(is_first, '{"beside": {"share": 30.0}}')
    close = tables["profile"].drop(columns=[*frames.JUDGED]).assign(verdict_flags=flags, **parts)
    only = trust.judged(tables | {"profile": close[is_first]})
    again = told(only)
    assert again is not None
    assert again.row["run"] == first.row["run"]
    assert again.may_turn


def test_a_page_that_begins_with_anything_else_is_wrong(invented_sweep, monkeypatch):
    import machines

    folder, tables = invented_sweep
    monkeypatch.setattr(machines, "estimate", lambda folder: "")  # configs are too bare for it
    rows = selection.drawable(mfu_versus_utilization, tables)
    sentence = figures.finding(
        mfu_versus_utilization, rows, Texts(section="mfu_versus_utilization")
    )
    (folder / "reports").mkdir()
    page = folder / "reports/report.html"
    machine = machines.Machine("planted", lacks=frozenset({"bf16"}))
    flagged = machines.Machine("planted", lacks=frozenset({"bf16"}), flag="held_back")
    page.write_text(f"<h1>{html.escape(sentence).replace(' %', '&nbsp;%')}</h1>")
    usual = machines.found(folder, machine, tables)
    assert usual.cells["the page begins"] == sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert not any("begin" in line for line in usual.wrongs)
    page.write_text("<h1>Nothing was measured.</h1>")
    [more] = set(machines.found(folder, machine, tables).wrongs) - set(usual.wrongs)
    assert "Nothing was measured." in more
    page.write_text("")
    assert len(machines.found(folder, machine, tables).wrongs) == len(usual.wrongs) + 1
    assert len(machines.found(folder, flagged, tables).wrongs) == len(usual.wrongs) + 2


def test_marks_of_a_page_are_counted_as_the_page_counts_them(invented_sweep, monkeypatch):
    import machines

    _, tables = invented_sweep
    steps = len(selection.drawable(mfu_versus_utilization, tables))
    shown = {
        "mfu_versus_utilization": None,
        "computational_graph": tables["profile"].assign(doubtful=True),
    }
    monkeypatch.setattr(figures, "page_rows", lambda tables: shown)
    counted = machines.marks(tables)
    assert counted.total == steps > 0  # counts of operators have no marks that could be hollow
    hollow = tables["profile"].assign(utilization_percent=0.01, doubtful=True)
    assert machines.marks(tables | {"profile": hollow}).hollow == steps


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="cgroups are Linux's")
def test_a_cgroup_that_cannot_be_made_is_a_reason(monkeypatch, tmp_path):
    import machines

    monkeypatch.setattr(machines, "CGROUPS", tmp_path / "none")
    assert (
        machines.MACHINES["half-a-cpu"].missing().startswith("needs the right to make a cgroup: ")
    )


SPINS = """
import os, sys, time
if os.fork() == 0 and os.fork() == 0:
    while time.process_time() < 0.4:
        pass
os._exit(0)
"""


def test_processes_that_outlive_a_command_are_counted(tmp_path, monkeypatch, capsys):
    """Without the right to make a cgroup, a sentence says so."""
    import peers

    command = [sys.executable, "-S", "-c", SPINS]
    monkeypatch.setattr(peers, "snakemake", lambda count: peers.cpu_s(tmp_path, command) * count)
    monkeypatch.setattr(peers, "run", lambda count: 0.1 * count)
    monkeypatch.setattr(peers, "plain_hydra", lambda count: 0.1 * count)
    reason = ""
    try:
        peers.main(["--sizes", "0", "1", "--times", "1"])
    except SystemExit as error:
        reason = str(error)
    if reason:
        assert "needs the right to make a cgroup" in reason
        return
    [line] = [line for line in capsys.readouterr().out.splitlines() if "snakemake" in line]
    assert float(line.split("|")[2]) >= 0.4


def test_a_configuration_costs_the_difference_of_two_sweeps():
    import peers

    asked = []

    def sweep(count: int) -> float:
        asked.append(count)
        return 5 + 0.1 * count + len(asked)  # later ones take longer: the least counts

    assert peers.a_configuration(sweep, (20, 120), 3) == pytest.approx((0.1 * 100 + 3) / 100)
    assert asked == [20] * 3 + [120] * 3


def test_each_peer_is_a_row_with_its_ratio(monkeypatch, capsys):
    import peers

    costs = {"snakemake": 0.1, "run": 0.05, "plain_hydra": 0.2, "optimum": 7.0}
    for name, cost in costs.items():
        monkeypatch.setattr(peers, name, lambda *given, cost=cost: cost * given[-1])
    peers.main(["--optimum", "python", "--sizes", "1", "2"])
    cells = [line.split("|")[2:4] for line in capsys.readouterr().out.splitlines()[3:]]
    found = [(float(cost), float(ratio)) for cost, ratio in cells]
    assert found == [(0.1, 1), (0.05, 0.5), (0.2, 2), (7, 70)]


@pytest.mark.parametrize("text", ["PLAIN", "ALIKE"])
@pytest.mark.slow
def test_a_plain_workflow_finds_nothing_to_do(text, monkeypatch):
    import peers

    def timed(folder, command, **environment):
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (folder / "output").write_bytes(done.stdout + done.stderr)
        return 1.0

    monkeypatch.setattr(peers, "cpu_s", timed)
    assert peers.nothing_plain(getattr(peers, text), 3, 1) > 0
