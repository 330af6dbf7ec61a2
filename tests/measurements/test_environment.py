"""The environment row of this machine."""

import json
import platform

from mfulab.core.groups import DeviceConfig
from mfulab.measurements.environment import EnvironmentConfig
from mfulab.measurements.environment import measure as environment


def test_describes_this_machine(tmp_path):
    row = environment.measure(EnvironmentConfig(device=DeviceConfig(type="cpu")), tmp_path).row
    assert (row.device, row.python) == ("cpu", platform.python_version())
    assert row.cpu_name
    assert 1 <= row.cpu_physical_cores <= row.cpu_logical_cores <= row.cpu_machine_cores
    assert row.memory_total_bytes > 1 << 28
    assert "torch" in json.loads(row.packages)
    assert json.loads(row.blas_threads)["torch"] >= 1


def test_packages_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "surely-not-installed"))
    assert list(environment.packages()) == ["torch"]
