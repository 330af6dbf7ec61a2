"""Ranks of a job by hand: its MFU, who waits for whom, and the bandwidth of its collectives."""

import json

import pytest

from mfulab.mfu.job import (
    RankShare,
    bandwidths,
    joined,
    link_bytes,
    rank_rows,
    rows_of_jobs,
    shares_of,
    waits,
)

RANKS = (RankShare(0.5, 1e12, 2e12, 10.0, 4.0), RankShare(0.25, 3e12, 4e12, 10.0, 12.0))


def sizes(*collectives):
    return {"collective_sizes": json.dumps(collectives), "steps": 2}


def read(rank, **more):
    row = {"status": "ok", "job": "a", "first_step": 1, "last_step": 2, "time_s": 1.0, "rank": rank}
    return {**row, "window_s": 2.0, "steps": 2, **more}


def test_the_mfu_of_a_job_by_hand():
    job = shares_of(RANKS)
    assert (job.slowest, job.time_s, job.tflop_s) == (0, 0.5, 8.0)
    assert job.mfu_percent == pytest.approx(100 * 8 / 16)
    assert job.hfu_percent == pytest.approx(100 * 12 / 16)


@pytest.mark.parametrize("unknown", [RankShare(), RankShare(0.1, 1e12, 1e12, None, 4.0)])
def test_what_one_rank_does_not_know_the_job_does_not(unknown):
    job = shares_of([*RANKS, unknown])
    assert (job.slowest, job.mfu_percent, job.hfu_percent) == (0, None, None)


def test_the_time_of_a_rank_of_a_profiled_job_tells_its_mfu():
    ranks = json.dumps([{"rank": 0, "time_ms": 500.0}, {"rank": 1, "time_ms": None}])
    one, other = rank_rows({"ranks": ranks, "mfu_percent": 10.0, "time_s": 1.0})
    assert (one["rank"], one["mfu_percent"]) == (0, pytest.approx(20.0))
    assert other["mfu_percent"] is None
    for missing in ("mfu_percent", "time_s"):
        [first, _] = rank_rows({"ranks": ranks, "mfu_percent": 10.0, "time_s": 1.0, missing: None})
        assert first["mfu_percent"] is None
    assert rank_rows({}) == []


def test_rows_of_one_job_and_its_steps_belong_together():
    ranks = [read(1), read(0), read(0, device_index=1), read(0)]
    [job] = rows_of_jobs(ranks)
    assert job == [ranks[1], ranks[2], ranks[0]]
    assert job[0] is ranks[1]
    for alone in ({"job": "b"}, {"first_step": 2}, {"last_step": 3}, {"recorded": True}):
        assert rows_of_jobs([read(0), read(1, **alone)]) == []
    for left_out in ({"status": "failed"}, {"job": None}, {"time_s": None}):
        assert rows_of_jobs([read(0), read(1, **left_out)]) == []
    assert rows_of_jobs([read(0), read(None)]) == []


def test_the_shortest_call_is_the_transfer_and_the_rest_is_waiting():
    calls = {"a": {"reduce": [5, 9], "send": [3]}, "b": {"reduce": [8, 4], "send": [3, 3]}}
    assert waits(calls) == {"a": (9, 5), "b": (9, 3)}
    assert waits({"a": {"send": [3]}, "b": {}}) == {}


def test_a_job_waits_for_the_rank_that_waits_least():
    rows = [
        read(0, collectives='{"reduce": [8e8, 9e8]}'),
        read(1, collectives='{"reduce": [5e8, 5e8]}', time_s=0.9),
    ]
    joined(rows)
    assert [row["job_ranks"] for row in rows] == [2, 2]
    assert [row["job_slowest_rank"] for row in rows] == [1, 1]
    assert [row["transfer_percent"] for row in rows] == [50.0, 50.0]
    assert [row["waiting_percent"] for row in rows] == pytest.approx([35.0, 0.0])
    alone = [read(0)]
    joined(alone)
    assert alone[0]["job_ranks"] is None
    assert alone[0]["transfer_percent"] is None


def test_collectives_of_ranks_side_by_side():
    """The shortest times of each three calls are 2, 4 and 3 ms of 6 MB, 2 GB/s."""
    ranks = [
        sizes(["allreduce", 6_000_000, 4, 100 * [2e6, 5e6, 3e6]]),
        sizes(["allreduce", 6_000_000, 4, 100 * [6e6, 4e6, 7e6]]),
    ]
    [told] = json.loads(bandwidths(ranks))
    assert (told["calls"], told["ms"], told["algorithm_gb_s"]) == (300, 3.0, 2.0)
    assert told["bus_gb_s"] == 3.0
    assert told["wait_ms"] == pytest.approx(8 / 3)
    fewer = sizes(["allreduce", 6_000_000, 4, [6e6]])
    [alone] = json.loads(bandwidths([ranks[0], fewer]))
    assert (alone["ms"], alone["wait_ms"]) == (3.0, None)
    assert bandwidths([{}]) is None


def test_the_longest_twenty_kinds_of_collectives_are_kept():
    many = sizes(*(["send", size, None, [1e6 * size]] for size in range(1, 31)))
    told = json.loads(bandwidths([many]))
    assert [one["bytes"] for one in told] == list(range(30, 10, -1))
    [instant] = json.loads(bandwidths([sizes(["send", 8, 2, [0]])]))
    assert (instant["algorithm_gb_s"], instant["bus_gb_s"]) == (None, None)


def test_bytes_over_a_link_by_hand():
    sent = sizes(["allgather", 100, 4, [1, 1]], ["send", 8, 2, [1]], ["allreduce", 8, None, [1]])
    assert link_bytes(sent) == (2 * 75 + 8 + 8) / 2
    assert link_bytes({**sent, "steps": 0}) is None
    assert link_bytes({}) is None
