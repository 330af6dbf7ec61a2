"""Apple's GPU, one per machine, identified as `MPS-0`. Read through torch.mps, the I/O registry and
zeus-apple-silicon, without root. Tested against stand-ins for torch.mps, ioreg(8) and
zeus_apple_silicon, not yet on a real Apple GPU."""

import platform
import plistlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.parsers.expat import ExpatError

from mfulab.core.said import Said, of_source
from mfulab.device import cpu, system
from mfulab.device.samplers.reading import (
    Line,
    Now,
    Probe,
    Reading,
    Sampler,
    Watched,
    energy,
    missing,
    sampler,
)
from mfulab.device.vendors import Gpu, GpuProperties, Memory, Vendor, at_end
from mfulab.device.vendors.gpm import UNITS

if TYPE_CHECKING:
    import torch

SOURCE = "IOAccelerator's statistics"
NEEDS_ROOT = Said("root_alone")
_ASK = ("ioreg", "-r", "-a", "-d", "1", "-c", "IOAccelerator")


class _Memory(Memory):
    """Always an empty reading, because torch.mps does not track a peak."""

    def __init__(self, device: "torch.device") -> None: ...

    def forget(self) -> None: ...

    def read(self) -> Reading:
        import torch

        held = torch.mps.driver_allocated_memory()
        return Reading(None, "B", "torch.mps", reason=Said("metal_no_peak", held=held))


@sampler
def energy_sampler(now: Now = time.perf_counter) -> Watched:
    """Energy of the GPU over the window, from IOReport. Hardware counters are empty, with the
    reason."""
    monitor = None
    reason = Said("ioreport_counts_none")
    try:
        from zeus_apple_silicon import AppleEnergyMonitor  # type: ignore[import-not-found]

        monitor = AppleEnergyMonitor()
    except ImportError:
        reason = Said("install", package="zeus-apple-silicon")
    except RuntimeError as error:  # on a Mac that does not report energy
        reason = of_source("IOReport", str(error))
    began_s = now()
    if monitor is not None:
        monitor.begin_window(SOURCE)
    yield
    counted = None if monitor is None else monitor.end_window(SOURCE).gpu_mj
    joule = None if counted is None else counted / 1e3
    counters = missing(UNITS, SOURCE, Said("xcode_alone"))
    return counters | energy(joule, "IOReport, by zeus-apple-silicon", now() - began_s, reason)


def _line() -> Line:
    """Current readings of the registry. Memory is that of all processes; utilization is a mean kept
    by the driver."""
    statistics = accelerator().get("PerformanceStatistics", {})
    names = {
        "utilization_percent": "Device Utilization %",
        "device_memory_bytes": "In use system memory",
    }
    hidden = (
        "memory_utilization_percent",
        "clock_mhz",
        "memory_clock_mhz",
        "power_w",
        "temperature_c",
    )
    return {
        **{
            column: None if (cell := statistics.get(name)) is None else float(cell)
            for column, name in names.items()
        },
        **dict.fromkeys((*hidden, "other_processes")),
    }


def accelerator() -> Mapping[str, Any]:
    """First registry entry of an accelerator that has statistics. Empty if ioreg fails."""
    try:
        entries = plistlib.loads(
            subprocess.run(_ASK, capture_output=True, check=True, timeout=5).stdout
        )
    except (OSError, subprocess.SubprocessError, ValueError, ExpatError):
        return {}
    return next((entry for entry in entries if "PerformanceStatistics" in entry), {})


class Apple(Vendor):
    """GPU of a Mac with Apple silicon. Reading its clocks needs root. Its driver version is that of
    macOS, so none is reported."""

    KIND = "mps"
    PREFIX = "MPS-"
    SLUG = "apple.*-gpu$"
    SOURCE = SOURCE
    IS_AUTOMATIC = False
    HAS_TF32 = False
    FORMATS = ("fp32", "fp16", "bf16")  # no float64, so nothing can be compared with it

    def owns(self, device: "torch.device") -> bool:
        return bool(device.type == self.KIND)

    def why_absent(self) -> Said | None:
        here = system.IS_MACOS and platform.machine() == "arm64"
        return None if here else Said("no_apple_silicon")

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        if self.why_absent():
            return []
        return [Gpu(f"{cpu.cpu().name} GPU", f"{self.PREFIX}0")]

    def why_unusable(self, uuid: str) -> Said | None:
        import torch

        if torch.backends.mps.is_available():
            return None
        return Said("built_without", torch=torch.__version__)

    def uuid_of(self, device: "torch.device") -> str:
        return f"{self.PREFIX}0"

    def name_and_units(self, device: "torch.device") -> tuple[str, int | None]:
        return self.gpus({})[0].name, None

    def memory(self, device: "torch.device") -> Memory:
        return _Memory(device)

    def last_cache_bytes(self, device: "torch.device") -> int:
        # macOS does not report it: this is the largest system-level cache, an M2 Ultra's
        return 96 << 20

    def certain_cache_bytes(self, device: "torch.device") -> int:
        return 8 << 20  # an M1's system-level cache, the smallest

    def samplers(
        self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter
    ) -> list[Sampler]:
        return [energy_sampler(now), *between, at_end(_line, SOURCE, NEEDS_ROOT)]

    def probe(self, uuid: str, own: int | None) -> Probe:
        return _line

    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        # Apple publishes no clocks, and fp32 rates of few chips only.
        return GpuProperties(
            name.removesuffix(" GPU"), sms or accelerator().get("gpu-core-count"), None
        )

    def describe_all(self) -> list[dict[str, Any]]:
        return [{"name": gpu.name, "uuid": gpu.uuid} for gpu in self.gpus({})]
