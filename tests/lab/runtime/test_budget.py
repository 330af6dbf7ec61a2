"""A sweep's time: what runs are predicted to cost, what is left out, and what follows."""

import csv
import importlib.util
import itertools
import json
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.slow import few

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import write_csv
from mfulab.core.language import verdicts
from mfulab.core.replicates import numbered
from mfulab.device import system
from mfulab.lab.planning import costs
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.load import device_of
from mfulab.lab.planning.runs import Plan, Run, plan
from mfulab.lab.planning.workflow import Workflow
from mfulab.lab.runtime import budget, client, endings
from mfulab.lab.runtime.ledger import Ledger
from mfulab.lab.runtime.run import record_failure
from mfulab.lab.tables.replicates import merge_rows

pytestmark = pytest.mark.usefixtures("run_of_a_sweep")
CONFIG = Path(__file__).parents[3] / "config"
BENCHMARK = Path(__file__).parents[3] / "benchmarks/estimates.py"
RUN = "cpu/bench_matmul/kernel=numpy,size=64"
COST = {"group": "bench_matmul numpy", "s": 2.0, "flops": None, "always": False}
MODEL = {
    **COST,
    "group": "profile_step fp32",
    "flops": "results/count_flops/a/row.csv",
    "ceiling": "results/cpu/ceilings/fp32/row.csv",
    "columns": ["forward_flops", "backward_flops"],
    "default_s": 1.5,
    "steps": 7,
}


@pytest.fixture
def run_of_a_sweep(monkeypatch):
    """This process belongs to a run of a sweep with a budget."""
    monkeypatch.setenv(budget.VARIABLE, budget.PLAN)


def sweep(took=(), begun=None, **more) -> budget.Budget:
    values = {
        "begun": time.time() if begun is None else begun,
        "budget_min": 3,
        "finish_s": 20,
        "due": 0,
    }
    runs = {
        RUN: COST,
        numbered(RUN, 2): COST,
        "cpu/profile_step/a": MODEL,
        "cpu/ceilings/a": {**COST, "always": True},
    }
    taken = {
        f"cpu/{group}/{number}": (group, *times) for number, (group, *times) in enumerate(took)
    }
    return budget.Budget({**values, "command": "COMMAND", "runs": runs, **more}, taken)


def quickstart(*overrides: str) -> Plan:
    [composition] = compose_experiments(["experiment=quickstart", "device=cpu", *overrides], CONFIG)
    return plan(composition, *device_of(composition.base))


def test_what_fits_is_measured_and_what_does_not_says_so():
    assert sweep().why_not(RUN) == ""
    says = sweep(begun=time.time() - 159).why_not(RUN)
    numbers = endings.numbers_of(says)
    assert endings.key_of(says) == endings.LEFT_OUT
    assert (numbers["budget_min"], numbers["needed_s"], numbers["command"]) == (3, 2, "COMMAND")
    assert 0 < numbers["left_s"] <= 1
    found = sweep(begun=time.time() - 999).why_not("cpu/ceilings/a")
    assert found == "", "the headline divides by it"
    assert sweep(begun=time.time() - 999).limit_s("cpu/ceilings/a") is None
    assert sweep(due=200).left_s() == pytest.approx(180 - 20 - 200 * budget.LEFT_OUT_S, abs=1)


@pytest.mark.parametrize(
    ("page_s", "reserved_s"),
    [(18.0, 40), (9.0, 25), (6.0, 20), (3.0, 15), (0.0, 10)],
)
def test_the_first_page_tells_what_is_reserved_for_the_last(page_s, reserved_s):
    """Longer for a slow one and shorter for a quick one, by half of its deviation."""
    first_page = [(budget.PAGE, 6.0, page_s)]
    assert sweep(first_page).left_s() == pytest.approx(180 - reserved_s, abs=1)
    runs = [("bench_matmul numpy", 2.0, 9.0)]
    assert sweep(first_page + runs).left_s() == pytest.approx(180 - reserved_s, abs=1)


def test_flops_and_ceiling_predict_a_model_once_they_are_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sweep().predicted_s("cpu/profile_step/a") == 2.0 + 1.5
    write_csv(
        Path(MODEL["flops"]), [{"forward_flops": 1e9, "backward_flops": 2e9, "process_s": 0.5}]
    )
    write_csv(Path(MODEL["ceiling"]), [{"measured_tflop_s": 0.1}])
    steps = 7 * 3e9 / (budget.SHARE * 1e11)
    assert sweep().predicted_s("cpu/profile_step/a") == pytest.approx(2.0 + 0.5 + steps)


def test_a_second_process_is_known_from_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    second = numbered(RUN, 2)
    assert sweep().predicted_s(second) == 2.0
    write_csv(tmp_path / "results" / RUN / "row.csv", [{"process_s": 7.5}])  # of an earlier command
    assert sweep([("bench_matmul numpy", 2.0, 40.0)]).predicted_s(second) == 7.5


def test_what_a_run_took_corrects_alike_runs_most(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/plan").mkdir(parents=True)
    Path(budget.PLAN).write_text(json.dumps(sweep().plan))
    budget.read().note(RUN, 8.0)
    same, other = budget.read().predicted_s(RUN), budget.read().predicted_s("cpu/profile_step/a")
    assert 2.0 * 1.5 < same < 8.0
    assert 3.5 < other < 3.5 * same / 2.0
    assert budget.read().predicted_s(numbered(RUN, 2)) == 8.0


SEEN = st.tuples(st.sampled_from(["profile_step fp32", "bench_matmul numpy"]), st.floats(0.1, 100))


@given(st.lists(SEEN, max_size=9))
def test_a_correction_lies_between_the_prediction_and_what_was_seen(seen):
    ratios = [1.0, *(ratio for _, ratio in seen)]
    found = sweep([(group, 2.0, 2.0 * ratio) for group, ratio in seen]).predicted_s(RUN) / 2.0
    assert min(ratios) * 0.999 <= found <= max(ratios) * 1.001


@pytest.mark.parametrize("runs", [1, 10, 1000])
def test_many_runs_of_one_measurement_tell_little_of_another(runs):
    ledger = Ledger(usual_s=2.0)
    for _ in range(runs):
        ledger.note("count_flops fp32", 1.0, 0.1)
    assert ledger.slower("profile_step fp32") == pytest.approx((0.1 + 1) / 2)
    assert ledger.slower("count_flops fp32") < 0.1 + 2.0 / runs


def test_a_group_of_many_long_runs_counts_once_for_an_unseen_group():
    ledger = Ledger(usual_s=2.0)
    for _ in range(50):
        ledger.note("bench_matmul naive", 2.0, 20.0)
    ledger.note("bench_matmul numpy", 2.0, 2.0)
    of_any = ((10 + 1) / 2 + 1) / 2
    assert ledger.slower("bench_matmul torch") == pytest.approx((10 + 1 + of_any) / 3)
    assert ledger.slower("bench_matmul naive") == pytest.approx(10, rel=0.02)


def test_what_is_left_begins_with_the_estimate(tmp_path, monkeypatch):
    found = quickstart()
    monkeypatch.chdir(tmp_path)
    folders = [run.folder for run in found.runs]
    rest = costs.Sweep([found], 0).rest(folders)
    first = next(each for each in folders if "/environment/" in each)
    estimate_s = rest.estimate_s()
    begin_s = costs.worker_s([found]) + costs.START_S["cpu"]["environment"]
    # It waited for the imports: what it took says that all goes as predicted.
    assert rest.after(first, begin_s, begin_s) == pytest.approx(estimate_s - begin_s)
    alone_s = costs.Sweep([found], 0).rest(folders, has_page=False).estimate_s()
    assert alone_s == pytest.approx(estimate_s - costs.finish_s([found]))


TIMES = st.lists(st.floats(0.1, 20), min_size=2, max_size=12)


@given(TIMES, st.floats(0.2, 5), st.floats(0.1, 9))
def test_what_is_left_lies_between_the_estimate_and_the_pace(times, slowdown, worker_s):
    """All runs are as late: each that has ended brings what is left nearer to their pace."""
    runs_s = dict(zip(map(str, range(len(times))), times, strict=True))
    rest = budget.Rest(runs_s, dict.fromkeys(runs_s, "profile_step"), worker_s, 0.0)
    elapsed_s = worker_s * slowdown
    missed = abs(slowdown - 1)
    for done, seconds in enumerate(times[:-1], start=1):
        began = worker_s * slowdown if done == 1 else 0.0  # the first one waits for the imports
        elapsed_s += seconds * slowdown
        left_s = rest.after(str(done - 1), began + seconds * slowdown, elapsed_s)
        late = abs(slowdown - left_s / sum(times[done:]))
        assert late <= missed + 1e-6
        missed = late
    assert rest.after(str(len(times) - 1), times[-1], elapsed_s) == pytest.approx(0, abs=1e-6)


MACHINES = {  # how many times as long as predicted each measurement and the end takes there
    "slow": {"ceilings": 3.0, "count_flops": 4.0, "profile_step": 3.0, "bench_matmul": 2.5},
    "fast": {"ceilings": 0.4, "count_flops": 0.3, "profile_step": 0.35, "bench_matmul": 0.5},
    "vector": {"ceilings": 1.0, "count_flops": 1.0, "profile_step": 3.0, "bench_matmul": 0.6},
}


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("machine", MACHINES)
def test_ten_runs_tell_what_a_machine_never_seen_takes(machine, at_once):
    factors = MACHINES[machine]
    predicted = {"ceilings": 2.0, "count_flops": 1.0, "profile_step": 3.0, "bench_matmul": 1.2}
    runs_s = {f"cpu/{step}/{run}": s for run in range(20) for step, s in predicted.items()}
    jitter = itertools.cycle([0.8, 1.3, 1.0, 0.9])
    took_s = {run: runs_s[run] * factors[run.split("/")[1]] * next(jitter) for run in runs_s}
    end = sum(took_s.values()) / sum(runs_s.values())
    groups = {run: run.split("/")[1] for run in runs_s}
    rest = budget.Rest(dict(runs_s), groups, 6.0, 10.0)
    first, *others = list(runs_s)[:10]
    elapsed_s = 6.0 * end + took_s[first]
    rest.after(first, elapsed_s, elapsed_s / at_once)
    for run in others:
        elapsed_s += took_s[run]
        left_s = rest.after(run, took_s[run], elapsed_s / at_once)
    truth_s = sum(took_s[run] for run in list(runs_s)[10:]) / at_once + 10.0 * end
    assert left_s == pytest.approx(truth_s, rel=0.3)


@pytest.fixture(scope="module")
def estimates():
    spec = importlib.util.spec_from_file_location("estimates", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["estimates"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_recorded_sweeps_are_told_after_ten_runs(estimates):
    found = list(estimates.replays("as recorded"))
    held = [each for each in found if each.holds]
    assert len(held) >= 0.9 * len(found) > 15


def test_the_document_counts_the_estimates_that_hold(estimates):
    found = []
    for machine in estimates.MACHINES:
        found += estimates.replays(machine)
    told = (BENCHMARK.parents[1] / "docs/scale.md").read_text(encoding="utf-8")
    after_ten = f"So {sum(each.holds for each in found)} of {len(found)}"
    before = f"{sum(each.first_holds for each in found)} of {len(found)} before the first run"
    assert f"{after_ten}, and {before}" in told


def test_a_sweep_s_own_rows_are_replayed(estimates, tmp_path):
    """Planned runs that measured, by the time of their start."""
    seconds = {"0": "4.0", "1": "0.5", "2": "0.25", "left_out": "", "further": "9.0"}
    plan = []
    for start, (name, process_s) in enumerate(reversed(seconds.items())):
        folder = f"results/cpu/count_flops/{name}"
        row = {"started_at": f"2026-01-01T00:00:0{start}+00:00", "process_s": process_s}
        write_csv(tmp_path / folder / "row.csv", [row])
        (tmp_path / folder / "config.json").write_text("{}")
        if name != "further":
            plan.append({"step": "count_flops", "run": name, "folder": folder})
    plan.append({"step": "count_flops", "run": "not begun", "folder": "results/cpu/not_begun"})
    manifest = tmp_path / "results/cpu/plan/quickstart.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"runs": plan}))
    found = estimates.measured(tmp_path)
    assert [(run.folder[-1], run.predicted_s, run.took_s) for run in found] == [
        ("2", costs.OTHER_S, 0.25),
        ("1", costs.OTHER_S, 0.5),
        ("0", costs.OTHER_S, 4.0),
    ]


@pytest.mark.parametrize("experiment", ["quickstart", "quickstart_gpu"])
def test_a_recorded_first_sweep_is_told_after_ten_runs(estimates, experiment):
    [sweep] = [each for each in estimates.replays("as recorded") if each.experiment == experiment]
    assert sweep.holds


@given(TIMES, st.integers(2, 8))
def test_runs_side_by_side_shorten_what_is_left(times, at_once):
    names = [str(number) for number in range(len(times))]
    groups = dict.fromkeys(names, "profile_step")
    one, several = (
        budget.Rest(dict(zip(names, times, strict=True)), groups, 1.0, 0.0) for _ in range(2)
    )
    for name, elapsed_s in zip(names, itertools.accumulate(times), strict=True):
        alone_s = one.after(name, times[int(name)], elapsed_s)
        found = several.after(name, times[int(name)], elapsed_s / at_once)
        assert found == pytest.approx(alone_s / at_once)


def test_a_broken_plan_or_ledger_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert budget.read() is None
    (tmp_path / "results/plan").mkdir(parents=True)
    Path(budget.PLAN).write_text("{")
    assert budget.read() is None
    Path(budget.PLAN).write_text(json.dumps(sweep().plan))
    Path(budget.LEDGER).write_text('["half a li')
    assert budget.read().why_not(RUN) == ""


def test_the_headline_is_first_and_within_reach():
    found = quickstart()
    first = costs.headline(found)
    steps = [folder.split("/")[-2] for folder in first]
    assert {"environment", "ceilings", "count_flops", "profile_step"} == set(steps)
    assert all("precision=fp32" in folder for folder in first if "profile_step" in folder)
    assert not any("replicate" in folder or "bf16" in folder for folder in first)
    seen = {folder.split("model=")[1].split(",")[0] for folder in first if "profile_step" in folder}
    assert seen == {"simple_cnn", "resnet18", "gpt2"}
    assert 60 * (found.budget_min or 0) > 3 * costs.least_s([found])
    turns = costs.Sweep([found], 0).turns
    run = "model=simple_cnn,workload={},batch_size={},precision=fp32,execution=eager,timing=short"
    model = f"{{}}profile_step/{run}".format
    machine = f"{found.hardware}/"
    ordered = [
        turns[model(machine, *each)]
        for each in (("inference", 1), ("training", 1), ("training", 4))
    ]
    assert 1 >= ordered[0] > ordered[1] > ordered[2] > 0.5


def test_a_budget_is_no_part_of_a_run():
    runs = [
        [(run.folder, run.text) for run in quickstart(f"budget_min={each}").runs]
        for each in ("2", "null")
    ]
    assert runs[0] == runs[1]
    assert quickstart("budget_min=2").overrides == ["device=cpu"]


def test_the_command_that_goes_on_gives_every_nested_key_to_overrides():
    sweep = costs.Sweep([quickstart("kernel.block=[16,16]")], 0)
    words = "device=cpu budget_min=null 'overrides=kernel.block=[16,16] report.language=ko'"
    assert sweep.command("report.language=ko", "budget_min=null").endswith(
        f"--config experiment=quickstart {words}"
    )


@pytest.mark.parametrize(
    ("targets", "named"), few([((), "report"), ({"rows"}, "rows"), ({"b", "a"}, "a b")])
)
def test_the_command_that_goes_on_names_what_was_asked_for(tmp_path, monkeypatch, targets, named):
    (tmp_path / "config").symlink_to(CONFIG)
    monkeypatch.chdir(tmp_path)
    lab = Workflow({"experiment": "quickstart", "device": "cpu"})
    lab.begin(targets)
    assert json.loads(Path(budget.PLAN).read_text())["command"].startswith(
        f"snakemake --cores 1 {named} --config "
    )


def test_plans_of_one_command_share_the_largest_budget_and_none_is_no_end():
    with_2, with_5, without = (quickstart(f"budget_min={each}") for each in ("2", "5", "null"))
    assert costs.Sweep([with_2, with_5], 0).budget_min == 5
    assert costs.Sweep([with_2, without], 0).budget_min == float("inf")
    assert costs.Sweep([with_2, without], 0).headline == {}
    with pytest.raises(
        ConfigurationError,
        match=r"budget_min=0\.1: environment, ceilings and page alone need about",
    ):
        costs.Sweep([quickstart("budget_min=0.1")], 0)


def test_a_run_whose_time_is_over_is_a_row_and_is_stopped_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Path("results") / RUN / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    limits, failures = [], []

    def execute(command, environment, limit):
        limits.append(limit)
        failures.append(command[command.index("--failed") + 1] if "--failed" in command else "")
        raise TimeoutError

    monkeypatch.setattr(client, "_execute", execute)
    monkeypatch.setattr(
        client, "_fail", lambda command, failure, *more: failures.append(failure) or 0
    )
    (tmp_path / "results/plan").mkdir()
    Path(budget.PLAN).write_text(json.dumps(sweep(begun=time.time() - 100).plan))
    assert client._measure(["script", "--config", str(config)], {}) == 0
    assert 50 < limits[0] < 61
    assert endings.key_of(failures[1]) == endings.STOPPED
    assert endings.budget_min(failures[1]) == 3
    Path(budget.PLAN).write_text(json.dumps(sweep(begun=0).plan))
    with pytest.raises(TimeoutError):
        client._measure(["script", "--config", str(config)], {})
    assert endings.key_of(failures[2]) == endings.LEFT_OUT
    assert limits[1] is None


def test_a_budget_is_that_of_its_own_sweep(tmp_path, monkeypatch):
    """Another command's run, in the same folder, has none."""
    monkeypatch.chdir(tmp_path)
    Path(budget.PLAN).parent.mkdir(parents=True)
    Path(budget.PLAN).write_text(json.dumps(sweep(begun=0).plan))
    assert budget.read().why_not(RUN)
    monkeypatch.delenv(budget.VARIABLE)
    assert budget.read() is None


def test_a_sweep_s_commands_alone_are_told_of_its_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, is_told in ((["budget_min=50"], True), (["budget_min=null"], False)):
        planned = costs.Sweep([quickstart(*words)], time.time())
        planned.write(1)
        assert (os.environ.get(budget.VARIABLE) == budget.PLAN) is is_told
        assert Path(budget.PLAN).exists() is is_told


@pytest.mark.parametrize(
    ("waits", "waited_s"),
    [([], 0), ([(0, 60)], 60), ([(0, 60), (30, 90)], 90), ([(0, 60), (10, 20), (80, 90)], 70)],
)
def test_waiting_for_a_device_spends_no_budget(tmp_path, monkeypatch, waits, waited_s):
    """Of several that wait at once, each second counts once."""
    monkeypatch.chdir(tmp_path)
    Path(budget.PLAN).parent.mkdir(parents=True)
    Path(budget.PLAN).write_text(json.dumps(sweep(begun=time.time() - 100).plan))
    before_s = budget.read().left_s()
    for wait in waits:
        budget.read().note_wait(*wait)
    assert budget.read().left_s() - before_s == pytest.approx(waited_s, abs=1)


def test_a_client_that_waits_for_its_device_says_so_to_the_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Path("results") / RUN / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    Path(budget.PLAN).parent.mkdir(parents=True)
    Path(budget.PLAN).write_text(json.dumps(sweep().plan))
    elapsed_s = iter([5.0, 65.0, 65.0, *[65.0] * 100])
    monkeypatch.setattr(budget.Budget, "elapsed_s", lambda _: next(elapsed_s))
    monkeypatch.setattr(client, "_execute", lambda *_: 0)
    monkeypatch.setattr(client, "_fail", lambda *_: 0)
    client._measure(["script", "--config", str(config)], {})
    [line] = map(json.loads, Path(budget.LEDGER).read_text().splitlines()[:1])
    assert line == [budget.WAIT, budget.WAIT, 5.0, 65.0]


@pytest.mark.parametrize("set_by_s", [-86_400, 86_400])
def test_a_clock_that_is_set_meanwhile_spends_no_budget(monkeypatch, set_by_s):
    began = time.time()
    clocks = {"boot": system.boot(), "begun_monotonic": time.monotonic()}
    within = sweep(begun=began, **clocks)
    before_s = within.left_s()
    monkeypatch.setattr(budget.time, "time", lambda: began + set_by_s)
    assert within.left_s() == pytest.approx(before_s, abs=1)


def test_a_row_left_out_has_its_status_and_leaves_a_run_with_fewer_processes(tmp_path):
    config = tmp_path / "results/count_flops/model=a/config.json"
    config.parent.mkdir(parents=True)
    model = {"name": "a", "_target_": "torch.nn.Linear", "input_shape": [4]}
    config.write_text(json.dumps({"model": model, "batch_size": 1}))
    ended_by = sweep(begun=time.time() - 159).why_not(RUN)
    row = record_failure("count_flops", config, ended_by)
    found = verdicts.message(row.message)
    told = {"budget_min": 3, "needed_s": 2, "command": "COMMAND"}
    assert found == verdicts.sentence("left_out_for_budget", told)
    assert (row.status, row.process_s) == ("not_measured", None)
    with (config.parent / "row.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["status"] == "not_measured"
    measured = {
        "hardware": "a",
        "recorded": False,
        "message": "",
        "time_s": 1.0,
        "run": "size=1",
        "status": "ok",
    }
    left_out = {**measured, "status": "not_measured", "message": "budget_min=3: no", "time_s": None}
    [merged] = merge_rows([measured, {**left_out, "run": "size=1,replicate=2"}])
    seen = (merged["status"], verdicts.message(merged["message"]), merged["replicates"])
    assert seen == ("ok", "", 1)
    [merged] = merge_rows([left_out, {**left_out, "run": "size=1,replicate=2"}])
    expected = ("not_measured", "budget_min=3: no")
    assert (merged["status"], verdicts.message(merged["message"])) == expected


REFERENCE = Path(__file__).parents[3] / "results/reference"
CPU_S = (
    "quickstart",
    "seminar",
    "attention_length",
    "autograd",
    "training",
    "execution",
    "decoding",
    "generation",
)


@pytest.mark.parametrize(
    ("machine", "experiment"),
    [
        *(("amd-epyc-2c", experiment) for experiment in CPU_S),
        *(("nvidia-h100-80gb-hbm3", experiment) for experiment in ("gpu_record", "kernels")),
    ],
)
def test_estimates_of_recorded_experiments_are_within_30_percent(
    machine, experiment, tmp_path, monkeypatch
):
    """What their runs took, a process, on the machine that the constants are of; a run alone may be
    further off."""
    monkeypatch.chdir(tmp_path)
    reference = REFERENCE / machine
    tables = {
        name: list(csv.DictReader((reference / f"{name}.csv").open()))
        for name in ("profile", "matmul")
    }
    for table, step in (("flops", "count_flops"), ("ceilings", "ceilings")):
        for row in csv.DictReader((reference / f"{table}.csv").open()):
            write_csv(Path("results", step, row["run"], "row.csv"), [row])
    lines = map(json.loads, (reference / "configs.jsonl").read_text().splitlines())
    configs = {(line["table"], line["run"]): line["config"] for line in lines}
    predicted, took = 0.0, 0.0
    for table, step in (("profile", "profile_step"), ("matmul", "bench_matmul")):
        for row in tables[table]:
            if (row["experiment"], row["status"]) != (experiment, "ok"):
                continue
            needs = {"flops": f"count_flops/{row['flops_run']}"} if step == "profile_step" else {}
            needs["compute"] = f"ceilings/ceiling={row['ceiling']}"
            text = json.dumps(configs[table, row["run"]])
            predicted += budget._cost_s(
                costs.cost(Run(step, row["run"], row["run"], text, needs), False)
            )
            took += float(row["process_s"]) / (
                int(row["replicates"] or 1) + int(row["left_out_replicates"] or 0)
            )
    assert took > 10
    assert 0.7 < predicted / took < 1.3
