"""A replicate that needs no measuring: the one before failed, or all are precise enough."""

import pytest
from support.said import numbers

from mfulab.core.files import write_csv
from mfulab.core.language import verdicts
from mfulab.lab.runtime import client, endings
from mfulab.lab.runtime.run import _as_before
from mfulab.measurements.bench_matmul import BenchMatmulConfig

KERNEL = {"name": "torch", "_target_": "mfulab.kernels.torch_matmul.Torch"}


def config(precision: float | None, **timing) -> BenchMatmulConfig:
    content = {"kernel": KERNEL, "size": 64, "precision": {"name": "fp32", "dtype": "float32"}}
    return BenchMatmulConfig.model_validate(
        content | {"timing": {"relative_precision": precision, **timing}}
    )


@pytest.fixture
def before(tmp_path):
    def folder(*rows: dict):
        for replicate, row in enumerate(rows, 1):
            name = "size=64" + (f",replicate={replicate}" if replicate > 1 else "")
            write_csv(
                tmp_path / name / "row.csv",
                [{"status": "ok", "message": "", "ended_by": "", "time_s": None} | row],
            )
        return tmp_path / f"size=64,replicate={len(rows) + 1}"

    return folder


def test_processes_stop_once_they_are_precise(before):
    times = [{"time_s": 1.000}, {"time_s": 1.001}, {"time_s": 1.002}]
    found = _as_before("bench_matmul", config(0.02), before(*times))
    assert (found.row.status, found.row.time_s) == ("ok", None)
    precise = numbers(found.row.message, "precise_enough")
    assert (precise["count"], precise["wanted"]) == (3, 0.02)
    assert precise["reached"] < 0.01
    assert _as_before("bench_matmul", config(None), before(*times)) is None
    # one that was left out before is left out of the next one's judgement, too
    assert _as_before("bench_matmul", config(0.02), before(*times, {"time_s": None})) is not None


@pytest.mark.parametrize(
    "times", [[1.0, 1.0], [1.0, 1.2, 1.1]], ids=["two agree by chance", "apart"]
)
def test_processes_go_on_until_then(before, times):
    found = _as_before("bench_matmul", config(0.02), before(*({"time_s": time} for time in times)))
    assert found is None


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("out_of_memory", "too large"),
        ("unsupported", "no tensor cores"),
        ("incorrect", "the loss is not finite"),
        ("failed", "ValueError: no such layer"),
        ("failed", "took longer than timing.time_limit_s=600"),
        ("failed", "the run's process ended with exit status 3 and wrote no row"),
    ],
)
def test_a_run_that_would_end_as_before_is_not_tried_again(before, status, message):
    found = _as_before("bench_matmul", config(0.02), before({"status": status, "message": message}))
    assert (found.row.status, verdicts.message(found.row.message)) == (status, message)


@pytest.mark.parametrize(
    "ended_by",
    [client._failure(-9, False), client._failure(-2, True), endings.ending(endings.UNSUPERVISED)],
)
def test_a_process_that_was_killed_is_one_of_several(before, ended_by):
    killed = {"status": "failed", "message": "was ended", "ended_by": ended_by}
    assert _as_before("bench_matmul", config(None), before(killed)) is None
    assert _as_before("bench_matmul", config(None), before({"time_s": 1.0}, killed)) is None


def test_what_a_budget_left_out_is_no_outcome(before):
    left_out = {
        "status": "not_measured",
        "ended_by": endings.ending(endings.LEFT_OUT, budget_min=3.5),
    }
    assert _as_before("bench_matmul", config(None), before({"time_s": 1.0}, left_out)) is None
    too_large = {"status": "out_of_memory", "message": "too large"}
    found = _as_before("bench_matmul", config(None), before(too_large, left_out)).row.status
    assert found == "out_of_memory"


def test_memory_that_ran_out_is_no_chance(before):
    row = {"status": "out_of_memory", "ended_by": client._failure(-9, True)}
    found = _as_before("bench_matmul", config(None), before(row))
    assert endings.key_of(found.row.ended_by) == endings.MEMORY


def test_a_precision_without_patience_is_refused():
    with pytest.raises(ValueError, match=r"relative_precision=0\.02 with patience_s=0"):
        config(0.02, patience_s=0)
