"""Batches of waiting requests: when one starts, its size, and the columns computed from it."""

from types import SimpleNamespace

import pytest

from mfulab.core.groups import ModelConfig
from mfulab.measurements.serve_requests import ServeRequestsConfig
from mfulab.measurements.serve_requests.measure import (
    Answered,
    Batching,
    arrivals,
    measure,
    serve,
    serving_columns,
)

SMALL = {
    "name": "small",
    "_target_": "mfulab.models.pruning.perceptron",
    "arguments": {"width": 16, "hidden": 32, "depth": 1},
    "input_shape": [16],
}


@pytest.mark.parametrize(
    ("largest", "wait_s", "first", "start_s"),
    [
        (1, 0.0, 0, 1.0),  # one by one: as it arrives
        (2, 0.5, 0, 1.2),  # full before the wait is over
        (3, 0.5, 0, 1.5),  # the third comes too late
        (3, 5.0, 0, 2.0),  # as the third arrives
        (4, 0.3, 2, 2.3),  # no fourth comes at all
    ],
)
def test_a_batch_starts_when_it_is_full_or_its_first_has_waited(largest, wait_s, first, start_s):
    assert Batching(largest, wait_s).start_s([1.0, 1.2, 2.0], first) == pytest.approx(start_s)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by what is slept alone."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    scripted = SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("mfulab.measurements.serve_requests.measure.time", scripted)
    return scripted


def test_each_request_is_answered_once_after_its_arrival_in_batches_of_what_waits(clock):
    arrived = [0.0, 0.0, 0.0, 0.0, 0.0, 0.05]
    sizes = []
    answers = serve(sizes.append, arrived, Batching(4, 0.0))
    assert sizes == [4, 1, 1]
    assert [each.arrived_s for each in answers] == arrived
    assert all(each.arrived_s <= each.started_s <= each.answered_s for each in answers)


def test_a_slow_model_keeps_no_request_from_arriving(clock):
    sizes = []

    def slow(count: int) -> None:
        sizes.append(count)
        clock.sleep(0.1)

    serve(slow, [0.0, 0.01, 0.02, 0.03], Batching(16, 0.0))
    assert sizes == [1, 3]


def test_columns_of_known_answers():
    answers = [Answered(0.0, 0.0, 1.0, 1), Answered(0.5, 1.0, 3.0, 2), Answered(1.0, 1.0, 3.0, 2)]
    row = serving_columns(answers)
    assert row["batches"] == 2
    assert row["mean_batch"] == pytest.approx(1.5)
    assert row["latency_p50_s"] == pytest.approx(2.0)
    assert row["answered_per_s"] == pytest.approx(1.0)
    assert row["serving_percent"] == pytest.approx(100.0)


def test_arrivals_are_those_of_their_seed_at_the_rate_that_is_asked_for():
    drawn = arrivals(50, 20_000, seed=3)
    assert drawn == sorted(drawn) == arrivals(50, 20_000, seed=3)
    assert len(drawn) / drawn[-1] == pytest.approx(50, rel=0.05)
    assert arrivals(50, 9, seed=4) != drawn[:9]


def test_a_real_model_answers_all(tmp_path):
    device = {"type": "cpu"}
    config = ServeRequestsConfig(
        model=ModelConfig.model_validate(SMALL), requests=40, largest_batch=4, device=device
    )
    measured = measure(config, tmp_path)
    row = measured.row
    assert (row.model, row.requests, len(measured.samples)) == ("small", 40, 40)
    assert 1 <= row.mean_batch <= 4
    assert row.latency_p50_s <= row.latency_p95_s
    others = row.other_processes_percent  # None where the clock of CPU time did not tick
    assert others is None or 0 <= others <= 100
