"""Peak memory of a CPU stretch: what was held at most, not what is held at the end."""

from types import SimpleNamespace

import pytest

from mfulab.measurement import memory
from mfulab.measurement.memory import PeakMemory

CPU = SimpleNamespace(type="cpu")


def test_a_peak_that_is_gone_still_counts():
    peak = PeakMemory(CPU)
    held = b"x" * (64 << 20)
    del held
    assert peak.read().value == pytest.approx(64 << 20, rel=0.2)


def test_a_process_that_did_not_grow_has_no_peak(monkeypatch):
    monkeypatch.setattr(memory, "_status_bytes", lambda key: 1)
    reading = PeakMemory(CPU).read()
    assert reading.value is None
    assert "reused memory" in reading.reason


def test_a_system_that_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    assert "no /proc" in PeakMemory(CPU).read().reason
