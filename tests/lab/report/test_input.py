"""Feeding the model: the sentence from rows of loaders."""

import pytest
from support.drawn import step, tables
from support.said import heard

from mfulab.lab.report.figures import input as figure


def row(samples_per_s: float, **changes) -> dict:
    """A step with its batch on the device; with `loader_source` one that is fed."""
    shape = {"model": "simple_cnn", "batch_size": 8, "input": "device"}
    speeds = {
        "samples_per_s": samples_per_s,
        "time_s": 8 / samples_per_s,
        "mfu_percent": samples_per_s / 10,
    }
    return {**step(), **shape, **speeds, **changes}


def fed(
    samples_per_s: float, wait: float, workers: int = 0, source: str = "decode", **changes
) -> dict:
    loader = {"loader_source": source, "loader_workers": workers, "input_wait_percent": wait}
    return row(samples_per_s, input="host", workload="training_loaded", **loader, **changes)


def said(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(figure, tables(tmp_path, *rows))


def kept(told: list[dict]) -> tuple[float, float]:
    """Workers of a case, and the share of MFU that they keep."""
    [case] = told
    return case["row"]["loader_workers"], pytest.approx(case["row"]["kept"])


def test_one_loader_says_its_wait_and_what_is_left(tmp_path):
    told = said(tmp_path, row(200.0), fed(50.0, 70.0))
    assert told.keys() == {"finding", "tracks"}
    worst = told["finding"][0]["worst"]
    assert (worst["mfu_percent"], worst["mfu_percent_device"]) == (5.0, 20.0)
    assert worst["input_wait_percent"] == 70.0
    assert told["tracks"] == [{"deviation": "5.0", "count": 1}]


def test_workers_that_help_and_those_that_are_too_many(tmp_path):
    told = said(
        tmp_path,
        row(200.0),
        fed(50.0, 75.0),
        fed(150.0, 10.0, 1),
        fed(100.0, 5.0, 8),
        fed(90.0, 9.0, 0, "file"),
    )
    assert (kept(told["best"]), kept(told["beyond"])) == ((1, 75), (8, 50))


def test_equal_workers_are_not_called_better(tmp_path):
    told = said(tmp_path, row(200.0), fed(50.0, 75.0), fed(50.0, 75.0, 2))
    assert "no_better" in told
    assert "best" not in told


def test_workers_are_told_apart_by_their_intervals_alone(tmp_path):
    def near(samples_per_s: float, workers: int, *bounds: float) -> dict:
        ends = dict(zip(("time_ci_low_s", "time_ci_high_s"), bounds, strict=True))
        return fed(samples_per_s, 75.0, workers, **ends)

    slow = near(50.0, 0, 0.1, 0.2)  # 160 ms per step
    told = said(tmp_path, row(200.0), slow, near(150.0, 1, 0.05, 0.15), near(140.0, 2, 0.055, 0.06))
    assert kept(told["best"]) == (2, 70)
    told = said(
        tmp_path, row(200.0), slow, near(150.0, 1, 0.05, 0.06), near(140.0, 8, 0.055, 0.065)
    )
    assert (kept(told["best"]), kept(told["beyond_alike"])) == ((1, 75), (8, 70))
    assert "no_better" in said(tmp_path, row(200.0), slow, near(150.0, 1, 0.05, 0.15))
    device = row(200.0, time_ci_low_s=0.03, time_ci_high_s=0.11)
    assert "finding_alike" in said(tmp_path, device, slow)


def test_without_a_batch_on_the_device_there_is_nothing_to_hold_against(tmp_path):
    assert figure.rows(tables(tmp_path, fed(50.0, 70.0))).empty
    assert figure.rows(tables(tmp_path, row(50.0))).empty
