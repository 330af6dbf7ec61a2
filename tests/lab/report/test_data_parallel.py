"""Scaling: the sentence from rows of jobs, and a figure in which no text covers another."""

import json

import pytest
from support.drawn import overlaps, step, tables
from support.said import heard
from support.slow import few

from mfulab.lab.report import figures
from mfulab.lab.report.figures import data_parallel


def row(samples_per_s: float, **changes) -> dict:
    """One process that trains, or with `processes` a job of several."""
    shape = {"model": "resnet18", "batch_size": 4, "ceiling": "fp32"}
    speeds = {"samples_per_s": samples_per_s, "time_s": 0.1, "mfu_percent": 40.0}
    return {**step(), **shape, **speeds, **changes}


def job(samples_per_s: float, **changes) -> dict:
    ranks = [
        {"rank": 0, "time_ms": 90.0, "exposed_ms": 20.0},
        {"rank": 1, "time_ms": 100.0, "exposed_ms": 10.0},
    ]
    own = {"processes": 2, "wrapper": "ddp", "bucket_mb": 25.0, "ranks": json.dumps(ranks)}
    return row(samples_per_s, **{**own, "exposed_communication_ms": 20.0, **changes})


def said(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(data_parallel, tables(tmp_path, *rows))


def test_one_job_says_its_efficiency_and_what_is_not_hidden(tmp_path):
    told = said(tmp_path, row(10.0), job(16.0))
    assert told.keys() == {"series", "setup", "bucket", "one", "exposed"}
    best, exposed = told["one"][0]["best"], told["exposed"][0]
    found = [*best[["model", "processes", "wrapper", "batch_size", "bucket_mb"]]]
    assert found == [*("resnet18", 2, "ddp", 4, 25)]
    assert best["efficiency"] == 80
    assert (exposed["worst"]["exposed_communication_ms"], exposed["step"]) == (20, 100)


def test_communication_is_the_budget_s_and_a_waiting_rank_s_is_told_beside(tmp_path):
    told = said(tmp_path, row(10.0), job(16.0, communication_ms=12.0))
    assert told["exposed"][0]["worst"]["not_hidden"] == 12
    assert told["exposed_most"][0]["worst"]["exposed_communication_ms"] == 20
    drawn = data_parallel.rows(tables(tmp_path, row(10.0), job(16.0, communication_ms=12.0)))
    assert drawn["not_hidden"].tolist() == [12]


OTHER_SERIES = {
    "batch": {"batch_size": 16},
    "model": {"model": "gpt2"},
    "format": {"precision": "bf16"},
    "length": {"sequence_length": 128},
}


@pytest.mark.parametrize("other", OTHER_SERIES.values(), ids=OTHER_SERIES)
def test_jobs_with_other_work_on_each_process_are_not_compared(tmp_path, other):
    """The better job of another series is neither the best nor in the same panel."""
    few = [row(10.0, **other), job(19.0, **other)]
    read = tables(tmp_path, *few, row(10.0), job(16.0), job(12.0, bucket_mb=1.0))
    told = heard(data_parallel, read)
    said = told["finding"][0]
    assert (said["best"]["efficiency"], told["worst"][0]["worst"]["efficiency"]) == (80, 60)
    [(name, value)] = other.items()
    assert said["best"][name] != value
    drawn = figures.render("data_parallel", read).figure
    bars = [
        sorted(bar.get_width() for bar in axes.patches)
        for axes in drawn.axes[::2]  # those of efficiency
    ]
    assert sorted(bars) == [[60, 80], [95]]


def test_best_and_worst_bytes_and_the_slowed_rank(tmp_path):
    small = job(12.0, bucket_mb=1.0, sent_bytes=1.02e6, predicted_sent_bytes=1e6)
    slowed = job(5.0, slowed_rank=1, slowest_rank=1)
    told = said(tmp_path, row(10.0), job(16.0, mfu_percent=""), small, slowed)
    best, worst = told["finding_without"][0]["best"], told["worst"][0]["worst"]
    assert (best["bucket_mb"], best["efficiency"]) == (25, 80)
    assert (worst["bucket_mb"], worst["efficiency"]) == (1, 60)
    [sent], [named] = told["sent"], told["named"]
    assert (sent["sent"], sent["deviation"]) == (1.02e6, pytest.approx(2))
    assert (named["job"]["slowed_rank"], named["job"]["slowest_rank"]) == (1, 1)


def test_equal_jobs_and_one_without_a_trace(tmp_path):
    fsdp = job(20.0, wrapper="fsdp2", exposed_communication_ms="")
    told = said(tmp_path, row(10.0), fsdp, job(20.0, exposed_communication_ms=""))
    assert told["alike"][0]["best"]["efficiency"] == 100
    assert {"finding", "worst", "exposed"}.isdisjoint(told)
    near = {"time_ci_low_s": 0.08, "time_ci_high_s": 0.12}
    jobs = [job(16.0, **near), job(15.0, bucket_mb=1.0, **near), job(5.0, bucket_mb=5.0, **near)]
    [best] = said(tmp_path, row(10.0), *jobs)["finding"]
    assert (best["tied"], best["best"]["efficiency"]) == (2, 80)


@pytest.mark.parametrize(("time_s", "key"), [(0.2, "sharded"), (0.05, "sharded_faster")])
def test_fsdp_is_held_against_ddp_where_their_intervals_lie_apart(tmp_path, time_s, key):
    known = {"time_ci_low_s": 0.09, "time_ci_high_s": 0.11}
    sharded = job(16.0 * 0.1 / time_s, wrapper="fsdp2", time_s=time_s)
    ddp = job(16.0, **known)
    about = {"time_ci_low_s": 0.9 * time_s, "time_ci_high_s": 1.1 * time_s}
    small = job(15.0, bucket_mb=1.0, time_s=0.107, **known)
    [held] = said(tmp_path, row(10.0), {**sharded, **about}, small, ddp)[key]
    assert held["ratio"] == pytest.approx(2)
    unknown = {"time_ci_low_s": 0.01, "time_ci_high_s": 1.0}
    assert key not in said(tmp_path, row(10.0), {**sharded, **unknown}, ddp)


def test_jobs_whose_intervals_meet_are_not_ranked(tmp_path):
    wide = {"time_ci_low_s": 0.07, "time_ci_high_s": 0.14}
    jobs = job(16.0, **wide), job(12.0, bucket_mb=1.0, **wide)
    told = said(tmp_path, row(10.0), *jobs)
    assert {"finding", "worst"}.isdisjoint(told)
    assert told["alike"][0]["best"]["efficiency"] == 80
    slow = job(2.0, bucket_mb=1.0, **wide)
    assert "finding" in said(tmp_path, row(10.0), job(16.0, **wide), slow)


def test_a_job_is_held_against_one_process_with_the_same_threads_and_batch(tmp_path):
    assert data_parallel.rows(
        tables(tmp_path, row(10.0, ceiling="fp32,device.threads=1"), job(16.0))
    ).empty
    assert data_parallel.rows(tables(tmp_path, row(10.0, batch_size=8), job(16.0))).empty
    assert data_parallel.rows(tables(tmp_path, row(10.0))).empty


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_every_job_fits(tmp_path, language):
    jobs = [
        job(8.0 + 2 * place, batch_size=4, wrapper=wrapper, bucket_mb=bucket, processes=processes)
        for place, (wrapper, bucket, processes) in enumerate(
            [
                ("ddp", 1.0, 2),
                ("ddp", 25.0, 2),
                ("fsdp2", 25.0, 2),
                ("ddp", 25.0, 4),
                ("fsdp2", 25.0, 4),
            ]
        )
    ]
    drawn = figures.render(
        "data_parallel", tables(tmp_path, row(10.0), *jobs, job(9.0, slowed_rank=0)), language
    )
    assert overlaps(drawn.figure) == []
