"""AMD's GPUs through AMD SMI (package `amdsmi` of the ROCm release), identified as
`HIP-<number>-<bus address>`. The number is for HIP_VISIBLE_DEVICES, the address for AMD SMI. Tested
against a stand-in for amdsmi 7.0, not yet on a real AMD GPU."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mfulab.core.said import Said, of_source
from mfulab.device import system
from mfulab.device.samplers.reading import (
    REFUSED_BY_DRIVER,
    Line,
    Now,
    Probe,
    Reading,
    Readings,
    Sampler,
    Watched,
    energy,
    largest,
    missing,
    sampler,
)
from mfulab.device.vendors import Gpu, GpuProperties, RefusedError, Vendor, at_end, torch_build
from mfulab.device.vendors.gpm import UNITS
from mfulab.device.vendors.nvidia import Nvidia
from mfulab.device.vendors.nvml_sampler import ENERGY_WINDOW_S, count_others

if TYPE_CHECKING:
    import torch

SOURCE = "AMD SMI"
NOT_REPORTED = "N/A"
# HIP reports the L2 of one die. Behind it lies the Infinity Cache: 256 MiB on MI300X and MI355X (rocminfo's L3 of
# 262144 KB), less on all others. MI325X and MI350X have the same (AMD's data sheets).
INFINITY_CACHE_BYTES = 256 << 20
HAVE_IT_WHOLE = ("MI300", "MI325", "MI350", "MI355")
PCI_VENDOR = "0x1002"
# Throttling column → accumulators of `amdsmi_get_violation_status`. The column is the largest.
VIOLATIONS = {
    "power_capped_percent": ("acc_ppt_pwr",),
    "hardware_thermal_percent": (
        "acc_prochot_thrm",
        "acc_socket_thrm",
        "acc_vr_thrm",
        "acc_hbm_thrm",
    ),
}


@functools.cache
def _opened() -> tuple[Any, Said | None]:
    try:
        import amdsmi  # type: ignore[import-not-found]

        amdsmi.amdsmi_init()
    except ImportError:
        return None, Said("no_amdsmi")
    except Exception as error:  # KeyError without ROCm's library, amdsmi's own without a driver
        message = f"{type(error).__name__}: {error}"
        return None, Said("does_not_answer", source=SOURCE, error=message)
    return amdsmi, None


def ask(name: str, *arguments: Any, cell: str = "") -> Any:
    """Calls a function of `amdsmi` and returns its answer, or one field of it. Raises RefusedError
    if there is none."""
    smi, absent = _opened()
    if absent:
        raise RefusedError(absent)
    try:
        answer = getattr(smi, name)(*arguments)
        answer = answer[cell] if cell else answer
    except (smi.AmdSmiException, AttributeError, KeyError) as error:
        raise RefusedError(of_source(name, str(error))) from error
    if answer == NOT_REPORTED:
        raise RefusedError(Said("reports_no", call=name, cell=cell))
    return answer


def optional(name: str, *arguments: Any, cell: str = "") -> Any:
    """Same as `ask`, but returns None if the call is refused."""
    with suppress(RefusedError):
        return ask(name, *arguments, cell=cell)
    return None


def _numbers(listed: str | None, count: int) -> list[int]:
    if listed is None:
        return list(range(count))
    numbers = (system.place_in(entry, count) for entry in listed.split(","))
    return list(itertools.takewhile(lambda number: number < count, numbers))


def handle_of(uuid: str) -> Any:
    """AMD SMI's handle for a GPU. Raises RefusedError if there is none at the GPU's bus address."""
    address = uuid.removeprefix(Amd.PREFIX).partition("-")[2]
    for handle in ask("amdsmi_get_processor_handles"):
        if optional("amdsmi_get_gpu_device_bdf", handle) == address:
            return handle
    raise RefusedError(Said("knows_no_gpu", source=SOURCE, address=address))


@sampler
def accumulators(handle: Any, now: Now) -> Watched:
    """Energy and throttling over the window. Readings that AMD SMI does not count are empty, with
    the reason."""
    counted = ("amdsmi_get_energy_count", "amdsmi_get_violation_status")
    began_s = now()
    before = [optional(name, handle) for name in counted]
    yield
    window_s = now() - began_s
    after = [optional(name, handle) for name in counted]
    readings = missing(UNITS, SOURCE, Said("no_amd_counter"))
    return (
        readings
        | _energy(before[0], after[0], window_s)
        | _violations(before[1], after[1], window_s)
    )


def _energy(before: Any, after: Any, window_s: float) -> Readings:
    """Energy and mean power from `energy_accumulator` × `counter_resolution` µJ (amdsmi.h,
    amdsmi_get_energy_count)."""
    source = f"{SOURCE} energy counter"
    joule = None
    reason: Said | None = Said("call_refused", call="amdsmi_get_energy_count")
    if before and after:
        counted = after["energy_accumulator"] - before["energy_accumulator"]
        joule = counted * after["counter_resolution"] / 1e6
        reason = None
        if window_s < ENERGY_WINDOW_S:
            joule = None
            reason = Said("window_below_ticks", least=ENERGY_WINDOW_S)
        elif counted <= 0:
            joule = None
            reason = Said("energy_still_or_reset")
    return energy(joule, source, window_s, reason)


def _violations(before: Any, after: Any, window_s: float) -> Readings:
    source = f"{SOURCE} violations"
    readings = {}
    for name, counters in VIOLATIONS.items():
        reason: Said | None = Said("call_refused", call="amdsmi_get_violation_status")
        shares = []
        if before and after:
            shares = [
                share for key in counters if (share := _share(before, after, key)) is not None
            ]
            reason = None if shares else Said("reports_none_of", counters=", ".join(counters))
        readings[name] = Reading(max(shares, default=None), "%", source, window_s, reason)
    return readings | {"throttled_percent": largest(readings, source)}


def _share(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> float | None:
    cells = [moment.get(name) for name in (key, "acc_counter") for moment in (after, before)]
    counts = [cell for cell in cells if isinstance(cell, int)]
    if len(counts) < len(cells):
        return None
    held = counts[0] - counts[1]
    samples = counts[2] - counts[3]
    if samples > 0 and 0 <= held <= samples:
        return 100 * held / samples
    return None


def _clock(handle: Any, kind: str, cell: str = "clk") -> float | None:
    of = getattr(_opened()[0].AmdSmiClkType, kind)
    return optional("amdsmi_get_clock_info", handle, of, cell=cell)  # type: ignore[no-any-return]


class Amd(Vendor):
    """AMD's GPUs, which AMD SMI finds by the bus address in their identifier."""

    KIND = "cuda"
    PREFIX = "HIP-"
    SLUG = r"amd-(instinct|radeon|gpu)|radeon|instinct|mi\d+|gfx\d"
    SOURCE = SOURCE
    HAS_TF32 = False
    why_unusable = Nvidia.why_unusable  # torch.cuda serves both vendors

    def why_absent(self) -> Said | None:
        return _opened()[1]

    def why_silent(self) -> Said | None:
        absent = self.why_absent()
        if absent is None:
            return None
        build = torch_build.installed()
        classes: tuple[str, ...] = (system.ACCELERATOR,)
        if build is not None and build.hip:  # else a GPU that only draws the screen
            classes = (system.DISPLAY, system.ACCELERATOR)
        for address in system.pci_devices((PCI_VENDOR,), classes):
            return Said("amd_shows_no_gpu", address=address, why=absent)
        return None

    def why_unfit(self, uuid: str) -> Said | None:
        build = torch_build.installed()
        if build is None or build.hip != "":
            return None
        kind = Said("for_cpus" if build.is_for_cpus else "for_nvidia")
        return Said("built_for", torch=build.version, kind=kind, instead=Said("install_rocm"))

    def owns(self, device: "torch.device") -> bool:
        import torch

        return device.type == self.KIND and torch.version.hip is not None

    def last_cache_bytes(self, device: "torch.device") -> int:
        return max(super().last_cache_bytes(device), INFINITY_CACHE_BYTES)

    def certain_cache_bytes(self, device: "torch.device") -> int:
        name, _ = self.name_and_units(device)
        if any(model in name for model in HAVE_IT_WHOLE):
            return INFINITY_CACHE_BYTES
        return super().last_cache_bytes(device)

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        return {"HIP_VISIBLE_DEVICES": ",".join(uuid.split("-")[1] for uuid in uuids)}

    def uuid_of(self, device: "torch.device") -> str:
        import torch

        place = torch.cuda.current_device() if device.index is None else device.index
        return self.gpus(os.environ)[place].uuid  # HIP's UUIDs differ from AMD SMI's

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        # ROCR_VISIBLE_DEVICES filters and renumbers first, then HIP_VISIBLE_DEVICES, or
        # CUDA_VISIBLE_DEVICES if that is not set.
        processes = []
        for place, handle in enumerate(optional("amdsmi_get_processor_handles") or ()):
            number = optional("amdsmi_get_gpu_enumeration_info", handle, cell="hip_id")
            name = optional("amdsmi_get_gpu_asic_info", handle, cell="market_name") or "AMD GPU"
            if address := optional("amdsmi_get_gpu_device_bdf", handle):
                processes.append((place if number is None else number, name, address))
        seen = [(name, address) for _, name, address in sorted(processes)]
        seen = [
            seen[number] for number in _numbers(environment.get("ROCR_VISIBLE_DEVICES"), len(seen))
        ]
        hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
        return [
            Gpu(seen[number][0], f"{self.PREFIX}{number}-{seen[number][1]}")
            for number in _numbers(hip, len(seen))
        ]

    def samplers(
        self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter
    ) -> list[Sampler]:
        last = at_end(self.probe(uuid, os.getpid()), SOURCE, REFUSED_BY_DRIVER)
        return [accumulators(handle_of(uuid), now), *between, last]

    def probe(self, uuid: str, own: int | None) -> Probe:
        handle = handle_of(uuid)
        smi = _opened()[0]
        hottest = (smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT)

        def now() -> Line:
            memory = optional("amdsmi_get_gpu_vram_usage", handle, cell="vram_used")
            # only Instinct reports the current power, others a mean
            power = optional("amdsmi_get_power_info", handle, cell="current_socket_power")
            listed = optional("amdsmi_get_gpu_process_list", handle)
            pids = None if listed is None else [process["pid"] for process in listed]
            return {
                "utilization_percent": optional(
                    "amdsmi_get_gpu_activity", handle, cell="gfx_activity"
                ),
                "memory_utilization_percent": optional(
                    "amdsmi_get_gpu_activity", handle, cell="umc_activity"
                ),
                "clock_mhz": _clock(handle, "GFX"),
                "memory_clock_mhz": _clock(handle, "MEM"),
                "power_w": power
                or optional("amdsmi_get_power_info", handle, cell="average_socket_power"),
                "temperature_c": optional("amdsmi_get_temp_metric", handle, *hottest),
                "device_memory_bytes": None if memory is None else memory << 20,
                "other_processes": None if pids is None else count_others(pids, own),
            }

        return now

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        with suppress(RefusedError):
            handle = handle_of(uuid)
            return lambda: _clock(handle, "GFX")
        return lambda: None

    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        try:
            handle = handle_of(uuid)
        except RefusedError:
            return GpuProperties(name, sms, None)
        return GpuProperties(
            name=name,
            sms=sms or optional("amdsmi_get_gpu_asic_info", handle, cell="num_compute_units"),
            max_sm_clock_mhz=_clock(handle, "GFX", "max_clk"),
            # no bus width: the number of transfers per clock depends on the type of memory
            max_memory_clock_mhz=_clock(handle, "MEM", "max_clk"),
        )

    def describe_all(self) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        for gpu in self.gpus({}):
            handle = handle_of(gpu.uuid)
            properties = self.properties(gpu.uuid, gpu.name)
            cap = optional("amdsmi_get_power_cap_info", handle, cell="power_cap")
            memory = optional("amdsmi_get_gpu_vram_usage", handle, cell="vram_total")
            clocks = {
                "max_sm_clock_mhz": properties.max_sm_clock_mhz,
                "max_memory_clock_mhz": properties.max_memory_clock_mhz,
            }
            limits = {"memory_bytes": memory and memory << 20, "power_limit_w": cap and cap / 1e6}
            described.append(
                {"name": gpu.name, "uuid": gpu.uuid, "sms": properties.sms, **clocks, **limits}
            )
        return described

    def driver(self) -> str | None:
        handles = optional("amdsmi_get_processor_handles")
        if handles:
            return optional("amdsmi_get_gpu_driver_info", handles[0], cell="driver_version")
        return None  # type: ignore[no-any-return]
