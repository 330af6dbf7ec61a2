"""Several processes train one model: a real job of two over the loopback, and the row that ranks make."""

import json

import pytest
import torch

from mfulab.schema.configs import ProfileStepConfig
from mfulab.steps import profile_step, ranks
from mfulab.steps.base import UnsupportedError

STEP = {
    "model": {
        "name": "wide",
        "_target_": "torch.nn.Linear",
        "arguments": {"in_features": 1024, "out_features": 1024},
        "input_shape": [1024],
    },
    "batch_size": 4,
    "workload": {"name": "training", "optimizer": "sgd"},
    "precision": {"name": "fp32", "dtype": "float32"},
    "execution": {"name": "eager"},
    "device": {"type": "cpu", "threads": 1},
    "parallel": {"processes": 2, "slowed_rank": 1},
    "timing": {"windows": 2, "window_time_s": 0.1, "warm_up_time_s": 0.1},
}


def config(**changes) -> ProfileStepConfig:
    return ProfileStepConfig.model_validate({**STEP, **changes})


def test_a_job_of_two_sends_what_the_formula_says_and_names_the_slowed_rank(tmp_path, monkeypatch):
    from mfulab.models import parallel

    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    row = profile_step.measure(config(), tmp_path).row
    assert row.status == "ok"
    assert row.devices == 2
    gradients = 4 * (1024 * 1024 + 1024)
    assert row.predicted_sent_bytes == gradients
    assert row.sent_bytes == pytest.approx(gradients, rel=0.02)
    assert row.slowest_rank == 1
    assert row.waiting_percent > row.transfer_percent
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


def rank(time_s: float, collectives: list[int], **more) -> dict:
    """What a rank tells of one traced step."""
    told = {"steps": 1, "length": 100, "communication": 40, "exposed": 10, "samples": []}
    return {"row": {"time_s": time_s, "memory_bytes": more.pop("memory_bytes", 5)}, **told, **more} | {
        "collectives": {"gloo:all_reduce": collectives}
    }


def test_the_row_of_a_job_is_the_slowest_rank_s_time_and_the_largest_memory():
    row = ranks._job([rank(2.0, [10, 30]), rank(3.0, [10, 10], memory_bytes=9, exposed=4)], devices=2)
    assert (row.time_s, row.memory_bytes, row.slowest_rank) == (3.0, 9, 1)
    assert (row.transfer_percent, row.waiting_percent) == (20.0, 20.0)
    assert row.exposed_communication_ms == pytest.approx(10e-6)


def test_ranks_without_a_trace_tell_their_times_alone():
    untraced = {"row": {"time_s": 1.0}, "samples": [], **ranks._communication(None)}
    row = ranks._job([untraced, untraced], devices=1)
    assert (row.slowest_rank, row.exposed_communication_ms, row.waiting_percent) == (None, None, None)
    assert [set(each) for each in json.loads(row.ranks)] == [{"rank", "time_ms", "memory_bytes"}] * 2


def test_a_rank_that_fails_fails_the_job_with_its_message(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise torch.multiprocessing.ProcessRaisedException("\n\n-- Process 1 --\nValueError: no such thing", 1, 42)

    monkeypatch.setattr(ranks.processes, "start_processes", fail)
    monkeypatch.setattr(ranks.parallel, "usable_cores", lambda: 2)
    with pytest.raises(RuntimeError, match="rank 1: ValueError: no such thing"):
        profile_step.measure(config(), tmp_path)
