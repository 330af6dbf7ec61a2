"""Peak memory of a CPU stretch: what was held at most, not what is held at the end."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from mfulab.device import system
from mfulab.device.samplers.memory import peak_memory

CPU = SimpleNamespace(type="cpu")


SCRIPT = """
from types import SimpleNamespace
from mfulab.device.samplers.memory import peak_memory

peak = peak_memory(SimpleNamespace(type="cpu"))
held = b"x" * (64 << 20)
del held
print(peak.read().value)
"""


FORGETFUL = """
from types import SimpleNamespace
from mfulab.device.samplers.memory import peak_memory

peak = peak_memory(SimpleNamespace(type="cpu"))
kept = b"x" * (32 << 20)
gone = b"x" * (96 << 20)
del gone
peak.forget()
print(peak.read().value)
"""


def printed_by(script: str, *words: str) -> float:
    """What a process of its own prints: here the system may take back what other tests left."""
    command = [sys.executable, "-c", script, *words]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_what_was_forgotten_does_not_count_and_what_is_held_does():
    assert printed_by(FORGETFUL) == pytest.approx(32 << 20, rel=0.2)


def test_a_peak_that_is_gone_still_counts():
    assert printed_by(SCRIPT) == pytest.approx(64 << 20, rel=0.2)


FILES = """
import mmap, sys
from types import SimpleNamespace
from mfulab.device.samplers.memory import peak_memory

with open(sys.argv[1], "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    peak = peak_memory(SimpleNamespace(type="cpu"))
    held = b"x" * (32 << 20)
    touched = sum(mapping[place] for place in range(0, len(mapping), 4096))
    print(peak.read().value)
"""


@pytest.mark.skipif(not system.IS_LINUX, reason="only Linux reports pages of files apart")
def test_pages_of_files_do_not_count(tmp_path):
    (tmp_path / "library").write_bytes(b"x" * (96 << 20))
    peak = printed_by(FILES, str(tmp_path / "library"))
    assert peak == pytest.approx(32 << 20, rel=0.2)


def test_a_process_that_did_not_grow_has_no_peak(monkeypatch):
    monkeypatch.setattr(system, "peak_memory_bytes", lambda: 1)
    reading = peak_memory(CPU).read()
    assert reading.value is None
    assert reading.reason.key == "memory_reused"


def test_a_system_that_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "ROOT", tmp_path)
    assert peak_memory(CPU).read().reason.key == "no_peak_rss"


def test_macos_tells_it_in_bytes(monkeypatch, tmp_path):
    import resource

    monkeypatch.setattr(system, "ROOT", str(tmp_path))
    monkeypatch.setattr(system, "IS_MACOS", True)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=1 << 40))
    assert system.peak_memory_bytes() == 1 << 40
