"""Emulates `amdsmi` 7.0: names, dictionaries, units and errors, with a settable clock."""

from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any

NOT_REPORTED = "N/A"


class AmdSmiException(Exception):  # noqa: N818
    """Base of the package's exceptions."""


class AmdSmiClkType(IntEnum):
    GFX, MEM = 1, 4


class AmdSmiTemperatureType(IntEnum):
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


@dataclass(eq=False)
class Gpu:
    """Emulated GPU. Violations accumulate one sample per millisecond."""

    name: str = "AMD Instinct MI300X OAM"
    address: str = "0000:c1:00.0"
    hip_id: int | str = 0
    units: int = 304
    power_w: float = 700.0
    capped_share: float = 0.25
    busy: int | str = 97
    pids: list[int] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)


class StandIn:
    """Emulated package with some GPUs. `install` makes `import amdsmi` find it during a test."""

    def __init__(self, *gpus: Gpu, fails: Exception | None = None) -> None:
        self.gpus, self.fails, self.now = list(gpus), fails, 100.0

    def install(self, monkeypatch: Any) -> "StandIn":
        """Installs the emulation for `mfulab.device.vendors.amd`, without an NVIDIA driver."""
        import sys

        from mfulab.device.vendors import amd, nvml

        module = ModuleType("amdsmi")
        for kind in (
            AmdSmiException,
            AmdSmiClkType,
            AmdSmiTemperatureType,
            AmdSmiTemperatureMetric,
        ):
            setattr(module, kind.__name__, kind)
        for name in dir(self):
            if name.startswith("amdsmi_"):
                setattr(module, name, self._guarded(name))
        monkeypatch.setitem(sys.modules, "amdsmi", module)
        monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers")
        amd._opened.cache_clear()
        monkeypatch.setattr(amd, "_opened", amd._opened.__wrapped__)
        return self

    def _guarded(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if arguments and name in getattr(arguments[0], "refused", ()):
                raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
            return getattr(self, name)(*arguments)

        return call

    def amdsmi_init(self) -> None:
        if self.fails:
            raise self.fails

    def amdsmi_get_processor_handles(self) -> list[Gpu]:
        return self.gpus

    def amdsmi_get_gpu_enumeration_info(self, gpu: Gpu) -> dict[str, Any]:
        return {
            "drm_render": 128,
            "hsa_id": 1,
            "hip_id": gpu.hip_id,
            "hip_uuid": "GPU-0123456789abcdef",
        }

    def amdsmi_get_gpu_asic_info(self, gpu: Gpu) -> dict[str, Any]:
        return {"market_name": gpu.name, "vendor_id": "0x1002", "num_compute_units": gpu.units}

    def amdsmi_get_gpu_device_bdf(self, gpu: Gpu) -> str:
        return gpu.address

    def amdsmi_get_gpu_activity(self, gpu: Gpu) -> dict[str, Any]:
        return {"gfx_activity": gpu.busy, "umc_activity": 40, "mm_activity": NOT_REPORTED}

    def amdsmi_get_power_info(self, gpu: Gpu) -> dict[str, Any]:
        return {
            "current_socket_power": round(gpu.power_w),
            "average_socket_power": NOT_REPORTED,
            "power_limit": 750,
        }

    def amdsmi_get_energy_count(self, gpu: Gpu) -> dict[str, Any]:
        resolution = 15.259
        counted = round(gpu.power_w * self.now * 1e6 / resolution)
        return {
            "energy_accumulator": counted,
            "counter_resolution": resolution,
            "timestamp": round(self.now * 1e9),
        }

    def amdsmi_get_violation_status(self, gpu: Gpu) -> dict[str, Any]:
        samples = round(self.now * 1000)
        capped = round(gpu.capped_share * samples)
        heat = {
            "acc_prochot_thrm": 0,
            "acc_socket_thrm": 0,
            "acc_vr_thrm": NOT_REPORTED,
            "acc_hbm_thrm": 0,
        }
        return {"acc_counter": samples, "acc_ppt_pwr": capped, **heat}

    def amdsmi_get_clock_info(self, gpu: Gpu, kind: AmdSmiClkType) -> dict[str, Any]:
        clock, highest = (1850, 2100) if kind is AmdSmiClkType.GFX else (1300, 1300)
        return {
            "clk": clock,
            "min_clk": 132,
            "max_clk": highest,
            "clk_locked": False,
            "clk_deep_sleep": NOT_REPORTED,
        }

    def amdsmi_get_temp_metric(self, gpu: Gpu, sensor: Any, metric: Any) -> int:
        return 61

    def amdsmi_get_gpu_vram_usage(self, gpu: Gpu) -> dict[str, int]:
        return {"vram_total": 196592, "vram_used": 8192}

    def amdsmi_get_gpu_process_list(self, gpu: Gpu) -> list[dict[str, Any]]:
        return [{"name": "python", "pid": pid, "mem": 0} for pid in gpu.pids]

    def amdsmi_get_power_cap_info(self, gpu: Gpu) -> dict[str, int]:
        return {"power_cap": 750_000_000, "max_power_cap": 750_000_000}

    def amdsmi_get_gpu_driver_info(self, gpu: Gpu) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": NOT_REPORTED}
