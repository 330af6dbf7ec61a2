"""A run whose machine lacks what measuring reads is a row that says so."""

import json
import sys

import pytest

from mfulab.device import system
from mfulab.runtime import run


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_without_proc_the_row_says_what_to_do(tmp_path, monkeypatch):
    config = tmp_path / "machine/bench_matmul/size=8/config.json"
    config.parent.mkdir(parents=True)
    kernel = {"name": "numpy", "_target_": "mfulab.kernels.cpu_numpy.NumPy"}
    config.write_text(json.dumps({"kernel": kernel, "size": 8, "precision": {"name": "fp32", "dtype": "float32"}}))
    monkeypatch.setattr(run, "check_device", lambda *_: "machine")
    monkeypatch.setattr(system, "ROOT", str(tmp_path))  # an empty /proc
    row = run.measure("bench_matmul", config)
    assert row.status == "unsupported"
    assert row.message.startswith("/proc is not mounted")
    assert "Mount it" in row.message
