"""NVIDIA's GPUs, through NVML; a GPU is known by its UUID, with or without its prefix (GPU or MIG)."""

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml

from mfulab.device.samplers.reading import Sampler
from mfulab.device.vendors import Gpu, GpuProperties, Memory, NoDeviceError, RefusedError, cupti, dcgm, gpm, nvml
from mfulab.device.vendors.nvml_sampler import fields, nvml_at_end, nvml_sampler, other_processes

SOURCE = "NVML"
# NVML still calls some by their line alone, such as Tesla T4.
KIND, PREFIX, SLUG = "cuda", "", "nvidia|tesla|quadro|geforce|titan|grid"
IS_AUTOMATIC, FORMATS, HAS_TF32 = True, (), True
memory = Memory


def why_absent() -> str | None:
    """Reason why NVML does not answer."""
    return nvml.why_absent()


def owns(device: Any) -> bool:
    """True for a CUDA device of a torch that is not built for HIP."""
    import torch

    return device.type == KIND and torch.version.hip is None


def gpus(environment: Mapping[str, str]) -> list[Gpu]:
    """The devices that CUDA would see, in its order; empty if no driver answers or all are hidden. Makes no context.

    Raises NoDeviceError if several different GPUs are numbered by CUDA's own "fastest first" order, which NVML does not
    know.
    """
    if nvml.why_absent():
        return []
    whole = [_named(handle) for handle in nvml.handles()]
    instances = [[_named(instance) for instance in nvml.mig_instances(handle)] for handle in nvml.handles()]
    in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return seen(whole, instances, environment.get("CUDA_VISIBLE_DEVICES"), in_bus_order)


def seen(gpus: list[Gpu], instances: list[list[Gpu]], visible: str | None, in_bus_order: bool) -> list[Gpu]:
    """CUDA's rules: a list of indices or UUID prefixes, cut off at the first that is not valid."""
    # A GPU in MIG mode is only seen through its instances, and without a list only through the first.
    shown = [own[0] if own else gpu for gpu, own in zip(gpus, instances, strict=True)]
    entries = list(map(str, range(len(shown)))) if visible is None else [each.strip() for each in visible.split(",")]
    chosen = []
    for entry in entries:
        if entry.isdigit() and int(entry) < len(shown):
            if not in_bus_order and len(names := {device.name for device in shown}) > 1:
                raise NoDeviceError(
                    f"there are different GPUs here ({', '.join(sorted(names))}), and CUDA numbers them fastest first: "
                    "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID (nvidia-smi -L lists them)"
                )
            chosen.append(shown[int(entry)])
            continue
        is_uuid = entry.startswith(("GPU-", "MIG-"))
        matching = [each for each in (*gpus, *itertools.chain(*instances)) if is_uuid and each.uuid.startswith(entry)]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen


def _named(handle: object) -> Gpu:
    name = nvml.optional(pynvml.nvmlDeviceGetName, handle) or "nvidia"
    return Gpu(name, nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or "")


def why_unusable() -> str:
    """Reason why torch cannot use the GPU that the driver shows; empty where it can."""
    import torch

    if torch.cuda.is_available():
        return ""
    return (
        f"torch {torch.__version__} cannot use the GPU that the driver shows (is the driver "
        f"older than torch's CUDA {torch.version.cuda}?)"
    )


def visible(uuids: Sequence[str]) -> dict[str, str]:
    """CUDA's variable, which takes UUIDs."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def uuid_of(device: Any) -> str:
    """The UUID of a torch.device without its prefix (GPU or MIG): torch gives none."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-").removeprefix("MIG-")


def name_and_units(device: Any) -> tuple[str, int | None]:
    """Name and number of SMs, as torch tells them."""
    import torch

    facts = torch.cuda.get_device_properties(device)
    return facts.name, facts.multi_processor_count


def last_cache_bytes(device: Any) -> int:
    """Bytes of the L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def samplers(uuid: str, between: Sequence[Sampler], now: Callable[[], float] = time.perf_counter) -> list[Sampler]:
    """Samplers, the strictest first: GPM, DCGM or CUPTI, NVML's counters, those `between`, NVML at the window's end.

    Raises RefusedError where NVML does not know the GPU.
    """
    handle = nvml.handle_by_uuid(uuid)
    named = nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or uuid
    counters: Sampler
    if without := gpm.why_unsupported(handle):
        counters = dcgm.dcgm_sampler(named, without)
        if dcgm.page(named) is None:
            absent = f"{without}, no dcgm-exporter shows this GPU's counters at {dcgm.address()}"
            counters = cupti.PmSampler(named, absent, now)
    else:  # two that read the same counters disturb one another
        beside = f"{gpm.SOURCE}, disturbed by a dcgm-exporter" if dcgm.page(named) else gpm.SOURCE
        counters = gpm.GpmSampler(handle, now, beside)
    return [counters, nvml_sampler(handle), *between, nvml_at_end(handle)]


def clock_reader(uuid: str) -> Callable[[], float | None]:
    """A function that reads the SM clock in MHz now; None if it is not reported."""
    handle = _handle(uuid)
    whole = None if handle is None else nvml.parent(handle)  # NVML tells no clock of a MIG instance
    return lambda: nvml.optional(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_SM)


def restriction(uuid: str) -> str:
    """Restriction that hides some values: `MIG instance`, `vGPU` or nothing."""
    handle = _handle(uuid)
    return "" if handle is None else nvml.restriction(handle)


def properties(uuid: str, name: str, sms: int | None = None) -> GpuProperties:
    """Properties that decide peaks; None if NVML hides them. `sms`: where known, else those of a MIG instance."""
    handle = _handle(uuid)
    if sms is None and handle is not None and nvml.is_mig(handle):
        sms = getattr(nvml.optional(pynvml.nvmlDeviceGetAttributes, handle), "multiprocessorCount", None)
    whole = None if handle is None else nvml.parent(handle)
    pci = nvml.optional(pynvml.nvmlDeviceGetPciInfo, whole)
    return GpuProperties(
        name=name,
        sms=sms,
        max_sm_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_SM),
        max_memory_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_MEM),
        bus_bits=nvml.optional(pynvml.nvmlDeviceGetMemoryBusWidth, whole),
        pci_id=None if pci is None else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
    )


def capability(uuid: str) -> tuple[int, int] | None:
    """Compute capability, of a MIG instance that of its GPU; None if NVML does not report it."""
    handle = _handle(uuid)
    found = None if handle is None else nvml.optional(pynvml.nvmlDeviceGetCudaComputeCapability, nvml.parent(handle))
    return None if found is None else (found[0], found[1])


def describe_all() -> list[dict[str, object]]:
    """Columns of the environment's table for each GPU of this machine; empty without a driver."""
    described: list[dict[str, object]] = []
    for handle in nvml.handles():
        asked = _asker(handle)
        capability, memory = asked(pynvml.nvmlDeviceGetCudaComputeCapability), asked(pynvml.nvmlDeviceGetMemoryInfo)
        limit, mig = asked(pynvml.nvmlDeviceGetPowerManagementLimit), asked(pynvml.nvmlDeviceGetMigMode)
        mode = asked(pynvml.nvmlDeviceGetVirtualizationMode)
        described.append(
            {
                "name": asked(pynvml.nvmlDeviceGetName),
                "uuid": asked(pynvml.nvmlDeviceGetUUID),
                "compute_capability": capability and ".".join(map(str, capability)),
                "max_sm_clock_mhz": asked(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
                "max_memory_clock_mhz": asked(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
                "memory_bus_bits": asked(pynvml.nvmlDeviceGetMemoryBusWidth),
                "memory_bytes": memory and memory.total,
                "power_limit_w": limit and limit / 1e3,
                "mig": mig and bool(mig[0]),
                "virtual": None if mode is None else mode in nvml.VIRTUAL,
            }
        )
    return described


def _asker(handle: Any) -> Callable[..., Any]:
    """A function that asks NVML of one GPU; it gives None where NVML refuses."""
    return lambda call, *arguments: nvml.optional(call, handle, *arguments)


def driver() -> str | None:
    """The driver's version; None without one."""
    return nvml.optional(pynvml.nvmlSystemGetDriverVersion)  # type: ignore[no-any-return]


def probe(uuid: str, own: int | None) -> Callable[[], dict[str, float | None]]:
    """A function that reads what NVML reports now; what it refuses is empty. `own` is no "other process"."""
    handle = nvml.handle_by_uuid(uuid)
    asked, of_whole = _asker(handle), _asker(nvml.parent(handle))

    def now() -> dict[str, float | None]:
        rates, memory = asked(pynvml.nvmlDeviceGetUtilizationRates), asked(pynvml.nvmlDeviceGetMemoryInfo)
        (instant,) = fields(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
        power = asked(pynvml.nvmlDeviceGetPowerUsage)
        return {
            "utilization_percent": rates and rates.gpu,
            "memory_utilization_percent": rates and rates.memory,
            "clock_mhz": of_whole(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": of_whole(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            "power_w": power and power / 1e3,
            "instant_power_w": instant.value and instant.value / 1e3,  # the other is a mean, on Hopper over 1 s
            "temperature_c": of_whole(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            "device_memory_bytes": memory and memory.used,
            "other_processes": other_processes(handle, own)[0],
        }

    return now


def _handle(uuid: str) -> Any:
    """NVML's handle of a GPU that it knows, otherwise None."""
    with contextlib.suppress(RefusedError):
        return nvml.handle_by_uuid(uuid)
    return None
