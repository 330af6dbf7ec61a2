"""The output of `make bench`, and that the sweeps which it times still run."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.slow import few

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
    cells, wrong = machines.swept(machine, "miniature", "batch_size=4", "kernel=torch", "size=64")
    assert wrong == []
    assert cells[1] == str(2 * 2 * 2 + 2)  # a row for each run
    assert "MFU" in cells[-1]


SOUND = {
    "run": "model=a,precision=fp32",
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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
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
        ({"share_of_measured_percent": 101.0}, ["above 100 % of the measured ceiling"]),
    ],
)
def test_what_is_wrong_on_a_machine_without_bf16_units(changed, words):
    assert told_wrong([SOUND | changed]) == words


def test_a_lower_precision_is_no_advice_where_it_was_slower(monkeypatch):
    import machines

    advised = pd.Series([True, False])
    monkeypatch.setattr(machines, "_advises", lambda rows: advised)
    slower = SOUND | IN_BF16 | {"time_s": 40.0, "verdict": "emulated_format"}
    assert told_wrong([SOUND, slower]) == ["advises a lower precision, which was slower"]
    assert told_wrong([SOUND, slower | {"time_s": 0.5}]) == []


def test_a_ceiling_that_was_disturbed_bounds_nothing():
    assert told_wrong([SOUND], disturbed=1) == ["compute_bound by a ceiling that was disturbed"]


def told_wrong(rows: list[dict[str, object]], disturbed: int = 0) -> list[str]:
    """What stands behind each run's name in the sentences of `wrong`."""
    import machines

    table = pd.DataFrame(rows)
    ceilings = pd.DataFrame(
        [{"ceiling": "fp32", "replicates": 1.0, "disturbed_replicates": float(disturbed)}]
    )
    found = machines.wrong(
        {"profile": table, "matmul": table, "ceilings": ceilings}, frozenset({"bf16"})
    )
    return [line.split(": ", 1)[1] for line in found]


def test_each_machine_is_a_row_and_one_that_cannot_be_had_says_why(monkeypatch, capsys):
    import machines

    wanted = ["0.5", "24", "1", "2", "60 %", "90 %", "1", "1.04", "MFU is 60 %."]
    monkeypatch.setattr(machines, "swept", lambda machine, experiment: (wanted, ["a: failed"]))
    missing = machines.Machine("AVX2", missing=lambda: "no avx2 here")
    monkeypatch.setattr(
        machines, "MACHINES", {"native": machines.MACHINES["native"], "avx2": missing}
    )
    assert machines.main(["--only", "native,avx2", "--markdown"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    assert cells[2:] == [["as it is", *wanted], ["AVX2", *[""] * 8, "no avx2 here"]]
    assert {len(row) for row in cells} == {len(machines.COLUMNS)}
    assert lines[-1] == "native: a: failed"
    with pytest.raises(SystemExit):
        machines.main(["--only", "sparc"])
    assert "'sparc' is none of native, avx2" in capsys.readouterr().err


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
