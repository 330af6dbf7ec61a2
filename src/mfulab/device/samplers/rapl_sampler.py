"""Energy of the CPU packages from their own counters (RAPL), which bare metal shows and virtual machines do not."""

import time
from collections.abc import Callable, Generator
from pathlib import Path

from mfulab.device import system
from mfulab.device.samplers.reading import Readings, energy, sampler

SOURCE = "RAPL package counters"


@sampler
def rapl_sampler(
    root: Path | None = None, now: Callable[[], float] = time.perf_counter
) -> Generator[None, None, Readings]:
    """Energy and mean power of all CPU packages between start and stop, this process's or not."""
    folders = (root or Path(system.ROOT, "sys/class/powercap")).glob("intel-rapl:*")
    # Sub-domains (cores, DRAM) have a second colon and are part of, or beside, their package.
    packages = sorted(path for path in folders if path.name.count(":") == 1)
    refusal = "" if packages else "this system shows no RAPL counters, as virtual machines do not"

    def read() -> list[int]:
        nonlocal refusal
        try:
            return [int((package / "energy_uj").read_text()) for package in packages]
        except OSError as error:
            refusal = f"{error.filename}: {error.strerror} (only root may read it since Linux 5.10)"
            return []

    begin, began_s = read(), now()
    yield
    end, window_s = read(), now() - began_s
    if refusal:
        return energy(None, SOURCE, window_s, refusal)
    microjoules = 0
    for package, before, after in zip(packages, begin, end, strict=True):
        # The counter wraps at a range of its own, after a minute or more of full load.
        wrapped = int((package / "max_energy_range_uj").read_text()) if after < before else 0
        microjoules += after + wrapped - before
    return energy(microjoules / 1e6, SOURCE, window_s)
