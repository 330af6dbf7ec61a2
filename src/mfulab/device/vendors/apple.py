"""Apple's GPU, one a machine, `MPS-0`, through torch.mps, the I/O registry and zeus-apple-silicon; without root or
trace.

Run against stand-ins that answer as torch.mps, ioreg(8) and zeus_apple_silicon do; no Apple GPU has been met.
"""

import platform
import plistlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.parsers.expat import ExpatError

from mfulab.device import cpu, system
from mfulab.device.samplers.reading import Reading, Sampler, Watched, energy, missing, sampler
from mfulab.device.vendors import Gpu, GpuProperties, Memory, at_end
from mfulab.device.vendors.gpm import UNITS

KIND, PREFIX, SLUG = "mps", "MPS-", "apple.*-gpu$"
IS_AUTOMATIC, HAS_TF32 = False, False
SOURCE = "IOAccelerator's statistics"
FORMATS = ("fp32", "fp16", "bf16")  # no float64: what is compared with it cannot be had
NEEDS_ROOT = "macOS tells it to root alone (powermetrics)"
_ASK = ("ioreg", "-r", "-a", "-d", "1", "-c", "IOAccelerator")


def owns(device: Any) -> bool:
    """True for a torch.device of kind `mps`."""
    return bool(device.type == KIND)


def why_absent() -> str:
    """Empty on an Apple silicon Mac, else that this machine is none."""
    here = system.IS_MACOS and platform.machine() == "arm64"
    return "" if here else "this machine is no Mac with Apple silicon"


def gpus(environment: Mapping[str, str]) -> list[Gpu]:
    """The GPU of Apple's in this machine; empty elsewhere than on an Apple silicon Mac."""
    return [] if why_absent() else [Gpu(f"{cpu.cpu().name} GPU", f"{PREFIX}0")]


def why_silent() -> str:
    """Empty: a Mac shows its GPU."""
    return ""


def why_unfit(uuid: str) -> str:
    """Empty: all of torch's builds for macOS know the GPU."""
    return ""


def why_unusable(uuid: str) -> str:
    """Reason why torch cannot compute on the GPU: a build without it."""
    import torch

    return "" if torch.backends.mps.is_available() else f"torch {torch.__version__} was built without it"


def visible(uuids: Sequence[str]) -> dict[str, str]:
    """Gives no variable: the GPU is the machine's only one."""
    return {}


def uuid_of(device: Any) -> str:
    """The identifier of the machine's only GPU."""
    return f"{PREFIX}0"


def name_and_units(device: Any) -> tuple[str, int | None]:
    """Name of the machine's only GPU; torch tells no number of cores."""
    return gpus({})[0].name, None


def memory(device: Any) -> Memory:
    """Says why there is no peak: torch.mps counts none."""
    return _Memory(device)


class _Memory(Memory):
    def __init__(self, device: Any) -> None:
        """Begins nothing."""

    def forget(self) -> None:
        """Does nothing."""

    def read(self) -> Reading:
        """Empty, with what Metal held at the end."""
        import torch

        held = torch.mps.driver_allocated_memory()
        return Reading(None, "B", "torch.mps", reason=f"it counts no peak; Metal held {held} bytes at the end")


def last_cache_bytes(device: Any) -> int:
    """Bytes of the largest system-level cache, of an M2 Ultra: macOS does not report it."""
    return 96 << 20


def samplers(uuid: str, between: Sequence[Sampler], now: Callable[[], float] = time.perf_counter) -> list[Sampler]:
    """Samplers: energy over the window, those `between`, values at its end."""
    return [energy_sampler(now), *between, at_end(_line, SOURCE, NEEDS_ROOT)]


@sampler
def energy_sampler(now: Callable[[], float] = time.perf_counter) -> Watched:
    """The GPU's energy over the window, which IOReport counts; hardware counters are missing, with the reason."""
    monitor, reason = None, "IOReport counts none of this GPU"
    try:
        from zeus_apple_silicon import AppleEnergyMonitor  # type: ignore[import-not-found]

        monitor = AppleEnergyMonitor()
    except ImportError:
        reason = "pip install zeus-apple-silicon"
    except RuntimeError as error:  # of a Mac that shows no energy
        reason = f"IOReport: {error}"
    began_s = now()
    if monitor is not None:
        monitor.begin_window(SOURCE)
    yield
    counted = None if monitor is None else monitor.end_window(SOURCE).gpu_mj
    joule = None if counted is None else counted / 1e3
    counters = missing(UNITS, SOURCE, "Apple's GPUs show counters in Xcode's Instruments alone")
    return counters | energy(joule, "IOReport, by zeus-apple-silicon", now() - began_s, reason)


def _line() -> dict[str, float | None]:
    """Readings of the registry now. Memory is that of all processes; busy time is a mean that the driver keeps."""
    told = accelerator().get("PerformanceStatistics", {})
    known = {"utilization_percent": "Device Utilization %", "device_memory_bytes": "In use system memory"}
    hidden = ("memory_utilization_percent", "clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")
    return {
        **{column: None if (cell := told.get(name)) is None else float(cell) for column, name in known.items()},
        **dict.fromkeys((*hidden, "other_processes")),
    }


def accelerator() -> Mapping[str, Any]:
    """The registry's entry of the first accelerator with statistics; empty where ioreg does not answer."""
    try:
        told = plistlib.loads(subprocess.run(_ASK, capture_output=True, check=True, timeout=5).stdout)
    except (OSError, subprocess.SubprocessError, ValueError, ExpatError):
        return {}
    return next((one for one in told if "PerformanceStatistics" in one), {})


def probe(uuid: str, own: int | None) -> Callable[[], dict[str, float | None]]:
    """A function that reads the registry now; which processes compute is not told."""
    return _line


def clock_reader(uuid: str) -> Callable[[], float | None]:
    """A function that gives None: clocks need root."""
    return lambda: None


def restriction(uuid: str) -> str:
    """Gives an empty text: a Mac's GPU is not divided."""
    return ""


def properties(uuid: str, name: str, sms: int | None = None) -> GpuProperties:
    """The chip's name and number of cores: Apple prints no clock, and of few chips the rate of all cores in fp32."""
    return GpuProperties(name.removesuffix(" GPU"), sms or accelerator().get("gpu-core-count"), None)


def capability(uuid: str) -> None:
    """Gives None: compute capability is NVIDIA's."""


def describe_all() -> list[dict[str, object]]:
    """Columns of the environment's table for this machine's GPU; empty without one."""
    return [{"name": gpu.name, "uuid": gpu.uuid} for gpu in gpus({})]


def driver() -> None:
    """Gives None: the driver is macOS's own, whose version the column of the operating system holds."""
