"""Several processes train one model: a real job of two, and the row that ranks make."""

import json
import os
import sys

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.measurements.profile_step import ProfileStepConfig, ranks
from mfulab.measurements.profile_step import measure as profile_step
from mfulab.measurements.registry import MEASUREMENTS

# The loopback counts the bytes of every process: tests whose ranks send over it follow one another.
pytestmark = pytest.mark.xdist_group("ranks")
STEP = {
    "model": {
        "name": "wide",
        "_target_": "torch.nn.Linear",
        "arguments": {"in_features": 1024, "out_features": 1024},
        "input_shape": [1024],
    },
    "batch_size": 4,
    "workload": {"name": "training", "optimizer": "sgd", "gradient_accumulation": 2},
    "precision": {"name": "fp32", "dtype": "float32"},
    "execution": {"name": "eager"},
    "device": {"type": "cpu", "threads": 1},
    "parallel": {"processes": 2, "slowed_rank": 1},
    "timing": {"windows": 2, "window_time_s": 0.1, "warm_up_time_s": 0.1},
}


def config(**changes) -> ProfileStepConfig:
    return ProfileStepConfig.model_validate({**STEP, **changes})


@pytest.mark.slow
def test_a_job_of_two_sends_what_the_formula_says_and_names_the_slowed_rank(tmp_path, monkeypatch):
    from mfulab.models import parallel

    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    # A busy machine may once slow the other rank by more than a third of its step.
    rows = (profile_step.measure(config(), tmp_path).row for _ in range(3))
    row = next(row for row in rows if row.status != "ok" or row.slowest_rank == 1)
    assert row.status == "ok"
    assert row.devices == 2
    gradients = 4 * (1024 * 1024 + 1024)
    assert row.predicted_sent_bytes == gradients
    assert row.sent_bytes == pytest.approx(gradients, rel=0.02)
    assert row.waiting_percent > 0 < row.transfer_percent
    first, second = json.loads(row.ranks)
    assert first["waiting_ms"] > second["waiting_ms"]
    assert 0 < first["exposed_ms"] <= first["communication_ms"] + 1e-6
    assert row.exposed_communication_ms == max(first["exposed_ms"], second["exposed_ms"])
    assert row.time_s == max(first["time_ms"], second["time_ms"]) / 1e3
    assert row.time_s > parallel.SLOWED_S


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"execution": {"name": "compile", "mode": "compile"}}, "several processes run eagerly"),
        ({"parallel": {"processes": 64}}, "64: each needs 1 CPU core"),
    ],
)
def test_what_a_job_cannot_do(changes, reason, tmp_path):
    with pytest.raises(UnsupportedError, match=reason):
        profile_step.measure(config(**changes), tmp_path)


SRUN = """#!{python}
# Stands for srun: starts the command once a task, with what SLURM tells each; the machine is a single one.
import os, subprocess, sys
nodes, tasks = (int(word.partition("=")[2]) for word in sys.argv[1:3])
command = sys.argv[4:]
told = [dict(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank % (tasks // nodes))) for rank in range(tasks)]
started = [subprocess.Popen(command, env=os.environ | each) for each in told]
sys.exit(max(each.wait() for each in started))
"""


@pytest.fixture
def srun(tmp_path, monkeypatch):
    place = tmp_path / "bin"
    place.mkdir()
    (place / "srun").write_text(SRUN.format(python=sys.executable))
    (place / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


@pytest.mark.slow
def test_ranks_on_several_nodes_meet_at_a_store(tmp_path, srun, monkeypatch):
    from mfulab.models import parallel

    monkeypatch.setattr(parallel, "usable_cores", lambda: 1)
    monkeypatch.setenv(parallel.INTERFACE, parallel.LOOPBACK)
    plain = {"operators": False}
    row = profile_step.measure(
        config(parallel={"processes": 2, "nodes": 2}, profile=plain), tmp_path
    ).row
    found = (row.status, row.devices, row.sent_bytes)
    assert found == ("ok", 2, pytest.approx(row.predicted_sent_bytes, rel=0.02))
    assert [each["rank"] for each in json.loads(row.ranks)] == [0, 1]
    assert not (tmp_path / "ranks").exists()


@pytest.mark.slow
def test_a_rank_that_fails_on_another_node_is_told(tmp_path, srun):
    with pytest.raises(
        RuntimeError, match=r"a rank failed: .*No such file or directory: '.*job\.json'"
    ):
        ranks._over_nodes(config(parallel={"processes": 2, "nodes": 2}).parallel, tmp_path)


def test_without_slurm_several_nodes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused(UnsupportedError, "no_srun", nodes="2"):
        profile_step.measure(config(parallel={"processes": 2, "nodes": 2}), tmp_path)


def rank(time_s: float, collectives: list[int], **more) -> dict:
    """A rank's report of one traced step."""
    told = {
        "meter": "here",
        "steps": 1,
        "length": 100,
        "communication": 40,
        "exposed": 10,
        "samples": [],
    }
    return {
        "row": {"time_s": time_s, "memory_bytes": more.pop("memory_bytes", 5)},
        **told,
        **more,
    } | {"collectives": {"gloo:all_reduce": collectives}}


def test_the_row_of_a_job_is_the_slowest_rank_s_time_and_the_largest_memory():
    row = ranks._row(
        [rank(2.0, [10, 30]), rank(3.0, [10, 10], memory_bytes=9, exposed=4)], devices=2, nodes=1
    )
    assert (row.time_s, row.memory_bytes, row.slowest_rank) == (3.0, 9, 1)
    assert (row.transfer_percent, row.waiting_percent) == (20.0, 20.0)
    assert row.exposed_communication_ms == pytest.approx(10e-6)


def test_ranks_without_a_trace_tell_their_times_alone():
    untraced = {"row": {"time_s": 1.0}, "meter": 0, "samples": [], **ranks._communication(None)}
    row = ranks._row([untraced, untraced], devices=1, nodes=1)
    found = (row.slowest_rank, row.exposed_communication_ms, row.waiting_percent)
    assert found == (None, None, None)
    seen = [set(each) for each in json.loads(row.ranks)]
    assert seen == [{"rank", "time_ms", "memory_bytes"}] * 2


def test_a_rank_that_fails_fails_the_job_with_its_message(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise torch.multiprocessing.ProcessRaisedException(
            "\n\n-- Process 1 --\nValueError: no such thing", 1, 42
        )

    monkeypatch.setattr(ranks.parallel.processes, "start_processes", fail)
    monkeypatch.setattr(ranks.parallel, "usable_cores", lambda: 2)
    with pytest.raises(RuntimeError, match="rank 1: ValueError: no such thing"):
        profile_step.measure(config(), tmp_path)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # system's time, and what a rank takes for others': 47 + 46 are the job's
        ([(95.0, 48.0), (95.0, 49.0)], 2.0),
        ([(60.0, 31.0), (60.0, 29.0)], 0.0),
        ([(95.0, 48.0), (95.0, None)], None),
    ],
)
def test_ranks_are_no_other_processes_to_their_job(seen, expected):
    row = MEASUREMENTS["profile_step"].row
    rows = [
        row(system_utilization_percent=system, other_processes_percent=others)
        for system, others in seen
    ]
    assert ranks.others_of_job(rows) == expected


def metered(meter, energy_j, power_w=100.0):
    reasons = (
        {"reasons": json.dumps({"energy_j": {"refused_by_driver": {}}})} if energy_j is None else {}
    )
    sources = json.dumps({"energy_j": "NVML ÷ 2 steps", "power_w": "NVML"})
    row = {"time_s": 1.0, "energy_j": energy_j, "power_w": power_w, "sources": sources, **reasons}
    return {"row": row, "meter": meter, **ranks._communication(None)}


def test_a_jobs_energy_and_power_are_those_of_all_its_devices():
    of_two = ranks._row([metered(0, 3.0, 100.0), metered(1, 5.0, 150.0)], 2, 1)
    assert (of_two.energy_j, of_two.power_w) == (8.0, 250.0)
    assert json.loads(of_two.sources)["energy_j"] == "NVML ÷ 2 steps, the sum of 2"
    same_machine = ranks._row(
        [metered("here", 3.0), metered("here", 3.0), metered("there", 4.0)], 3, 2
    )
    assert same_machine.energy_j == 7.0


def test_a_device_whose_energy_is_unknown_leaves_the_jobs_empty_with_its_reason():
    row = ranks._row([metered(0, 3.0), metered(1, None)], 2, 1)
    assert (row.energy_j, row.power_w) == (None, 200.0)
    assert json.loads(row.reasons)["energy_j"] == {"refused_by_driver": {}}
    assert "energy_j" not in json.loads(row.sources)
