"""A replicate that needs no measuring: the one before could not be, or all before are precise enough."""

import pytest

from mfulab.runtime.run import _as_before
from mfulab.schema.configs import BenchMatmulConfig
from mfulab.schema.files import write_csv

KERNEL = {"name": "torch", "_target_": "mfulab.kernels.torch_matmul.Torch"}


def config(precision: float | None, **timing) -> BenchMatmulConfig:
    content = {"kernel": KERNEL, "size": 64, "precision": {"name": "fp32", "dtype": "float32"}}
    return BenchMatmulConfig.model_validate(content | {"timing": {"relative_precision": precision, **timing}})


@pytest.fixture
def before(tmp_path):
    def folder(*rows: dict):
        for replicate, row in enumerate(rows, 1):
            name = "size=64" + (f",replicate={replicate}" if replicate > 1 else "")
            write_csv(tmp_path / name / "row.csv", [{"status": "ok", "message": "", "time_s": None} | row])
        return tmp_path / f"size=64,replicate={len(rows) + 1}"

    return folder


def test_processes_stop_once_they_are_precise(before):
    times = [{"time_s": 1.000}, {"time_s": 1.001}, {"time_s": 1.002}]
    found = _as_before("bench_matmul", config(0.02), before(*times))
    assert (found.row.status, found.row.time_s) == ("ok", None)
    assert found.row.message.startswith("not measured: 3 processes reach 0.00")
    assert _as_before("bench_matmul", config(None), before(*times)) is None
    # one that was left out before is left out of the next one's judgement, too
    assert _as_before("bench_matmul", config(0.02), before(*times, {"time_s": None})) is not None


@pytest.mark.parametrize("times", [[1.0, 1.0], [1.0, 1.2, 1.1]], ids=["two agree by chance", "apart"])
def test_processes_go_on_until_then(before, times):
    assert _as_before("bench_matmul", config(0.02), before(*({"time_s": time} for time in times))) is None


def test_a_run_that_failed_is_not_tried_again(before):
    found = _as_before("bench_matmul", config(0.02), before({"status": "out_of_memory", "message": "too large"}))
    assert (found.row.status, found.row.message) == ("out_of_memory", "too large")


def test_a_precision_without_patience_is_refused():
    with pytest.raises(ValueError, match=r"relative_precision=0\.02 with patience_s=0"):
        config(0.02, patience_s=0)
