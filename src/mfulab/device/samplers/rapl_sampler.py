"""Energy of the CPU packages from their own counters (RAPL), which bare metal shows and virtual machines do not."""

import time
from collections.abc import Callable
from pathlib import Path

from mfulab.device import system
from mfulab.device.samplers.reading import Reading, Readings, missing

SOURCE = "RAPL package counters"
UNITS = {"window_energy_j": "J", "power_w": "W"}


class RaplSampler:
    """Energy and mean power of all CPU packages between start and stop, this process's or not."""

    def __init__(self, root: Path | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        root = root or Path(system.ROOT, "sys/class/powercap")
        # Sub-domains (cores, DRAM) have a second colon and are part of, or beside, their package.
        self._packages = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
        self._begin: list[int] = []
        self._began_s = 0.0
        self._refusal = "" if self._packages else "this system shows no RAPL counters, as virtual machines do not"

    def start(self) -> None:
        self._begin, self._began_s = self._read(), self._now()

    def stop(self) -> Readings:
        end, window_s = self._read(), self._now() - self._began_s
        if self._refusal:
            return missing(UNITS, SOURCE, self._refusal)
        microjoules = 0
        for package, before, after in zip(self._packages, self._begin, end, strict=True):
            # The counter wraps at a range of its own, after a minute or more of full load.
            wrapped = int((package / "max_energy_range_uj").read_text()) if after < before else 0
            microjoules += after + wrapped - before
        joule = microjoules / 1e6
        return {
            "window_energy_j": Reading(joule, "J", SOURCE, window_s),
            "power_w": Reading(joule / window_s, "W", f"{SOURCE} ÷ time", window_s),
        }

    def _read(self) -> list[int]:
        try:
            return [int((package / "energy_uj").read_text()) for package in self._packages]
        except OSError as error:
            self._refusal = f"{error.filename}: {error.strerror} (only root may read it since Linux 5.10)"
            return []
