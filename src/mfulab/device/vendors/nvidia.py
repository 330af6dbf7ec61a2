"""NVIDIA's GPUs, through NVML."""

import contextlib
import functools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml

from mfulab.device import system
from mfulab.device.samplers.reading import Sampler
from mfulab.device.vendors import (
    Gpu,
    GpuProperties,
    NoDeviceError,
    Now,
    RefusedError,
    Vendor,
    cuda_driver,
    cupti,
    dcgm,
    gpm,
    nvml,
    torch_build,
)
from mfulab.device.vendors.nvml_sampler import fields, nvml_at_end, nvml_sampler, other_processes

# What the default wheels run on: CUDA 13, and compute capabilities from Turing's on; those for CUDA 12.6 have older,
# and run on every driver of CUDA 12.
NEW_CUDA, OLD_CUDA, TURING, NEWEST, NEWEST_OF_OLD = 13000, 12000, (7, 5), (12, 1), (9, 0)
OLD_WHEELS = " --index-url https://download.pytorch.org/whl/cu126"


def _listed_by_cuda(environment: Mapping[str, str]) -> list[Gpu]:
    return [Gpu(device["name"], device["uuid"]) for device in cuda_driver.devices(environment)]


def seen(gpus: Sequence[tuple[Gpu, list[Gpu]]], visible: str | None, in_bus_order: bool) -> list[Gpu]:
    """CUDA's rules of `gpus` with their MIG instances: indices or UUID prefixes, up to the first that is not valid."""
    # A GPU in MIG mode is only seen through its instances, and without a list only through the first.
    shown = [(*own, gpu)[0] for gpu, own in gpus]
    entries = list(map(str, range(len(shown)))) if visible is None else [entry.strip() for entry in visible.split(",")]
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
        matching = [gpu for whole, own in gpus for gpu in (whole, *own) if is_uuid and gpu.uuid.startswith(entry)]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen


def _named(handle: object) -> Gpu:
    name = nvml.optional(pynvml.nvmlDeviceGetName, handle) or "nvidia"
    return Gpu(name, nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or "")


@functools.cache
def _asked_of_torch(uuid: str) -> str:
    """Reason of `why_unusable` from a process that imports torch; empty where that fails, as each run then says why."""
    program = f"from mfulab.device.vendors import nvidia; print(nvidia.Nvidia().why_unusable({uuid!r}))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def has_code(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """True if one of torch's architectures runs on a GPU: machine code of its generation, or PTX of any before it."""
    matches = (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in architectures)
    for kind, major, minor, suffix in (match.groups() for match in matches if match):
        of, is_ptx = (int(major), int(minor)), kind == "compute" and not suffix
        if of == capability or (of < capability and suffix != "a" and (is_ptx or of[0] == capability[0])):
            return True
    return False


def _asker(handle: Any) -> Callable[..., Any]:
    return lambda call, *arguments: nvml.optional(call, handle, *arguments)


def _handle(uuid: str) -> Any:
    with contextlib.suppress(RefusedError):
        return nvml.handle_by_uuid(uuid)
    return None


def _described(handle: Any) -> dict[str, Any]:
    asked = _asker(handle)
    capability, memory = asked(pynvml.nvmlDeviceGetCudaComputeCapability), asked(pynvml.nvmlDeviceGetMemoryInfo)
    limit, mig = asked(pynvml.nvmlDeviceGetPowerManagementLimit), asked(pynvml.nvmlDeviceGetMigMode)
    mode = asked(pynvml.nvmlDeviceGetVirtualizationMode)
    return {
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


class Nvidia(Vendor):
    """GPUs that NVML knows by their UUID, with or without its prefix (GPU or MIG)."""

    # NVML still calls some by their line alone, such as Tesla T4.
    KIND, PREFIX, SLUG, SOURCE = "cuda", "", "nvidia|tesla|quadro|geforce|titan|grid", "NVML"

    def why_absent(self) -> str | None:
        return nvml.why_absent()

    def owns(self, device: Any) -> bool:
        import torch

        return device.type == self.KIND and torch.version.hip is None

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        if nvml.why_absent():
            return _listed_by_cuda(environment)
        pairs = ((handle, nvml.mig_instances(handle)) for handle in nvml.handles())
        # CUDA shows nothing of a GPU in MIG mode that has no instance.
        seen_by_cuda = [(_named(handle), [*map(_named, own or ())]) for handle, own in pairs if own != []]
        in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        try:
            return seen(seen_by_cuda, environment.get("CUDA_VISIBLE_DEVICES"), in_bus_order)
        except NoDeviceError:  # CUDA's own order of several different GPUs, "fastest first"
            if listed := _listed_by_cuda(environment):
                return listed
            raise

    def why_silent(self) -> str:
        if not (absent := nvml.why_absent()):
            empty = next((_named(handle).name for handle in nvml.handles() if nvml.mig_instances(handle) == []), "")
            return empty and f"{empty} is in MIG mode without an instance: nvidia-smi mig -cgi 0 -C makes one"
        if not system.text("proc/driver/nvidia/version"):
            return ""
        return f"an NVIDIA driver is loaded, and shows no GPU here ({absent}). In a container: docker run --gpus all"

    def why_unfit(self, uuid: str) -> str:
        build, have = torch_build.installed(), self.capability(uuid)
        if build is None or build.cuda is None:
            return ""
        runs = nvml.optional(pynvml.nvmlSystemGetCudaDriverVersion_v2) or cuda_driver.version() or NEW_CUDA
        built, is_ancient = int((build.cuda or "0").split(".")[0]) * 1000, runs < OLD_CUDA
        is_new = have is not None and have > NEWEST_OF_OLD
        is_old = not is_new and (OLD_CUDA <= runs < NEW_CUDA or (have or TURING) < TURING)
        command = build.replaced("cuda126*" if is_old else "cuda*", OLD_WHEELS if is_old else "")
        instead = f"To measure the GPU: {'a newer driver, and ' * is_ancient}{command}"
        if not build.cuda:
            kind = "CPUs alone" if build.is_for_cpus else "AMD's GPUs"
            return f"torch {build.version} is built for {kind}. {instead}"
        if runs // 1000 * 1000 < built:
            if is_new or (is_ancient and not (is_old and built >= NEW_CUDA)):
                instead = "To measure the GPU: a newer driver"
            elif not is_ancient:
                instead += ", or a newer driver"
            has = f"driver {self.driver() or ''} runs CUDA {runs // 1000}.{runs % 1000 // 10}"
            return f"{has}, and torch {build.version} needs {build.cuda}. {instead}"
        if have is None or TURING <= have <= (NEWEST if built >= NEW_CUDA else NEWEST_OF_OLD):  # every build has code
            return ""
        reason = self.why_unusable(uuid) if "torch" in sys.modules else _asked_of_torch(uuid)
        return f"{reason}. {instead}" if reason else ""

    def why_unusable(self, uuid: str) -> str:
        import torch

        if torch.cuda.is_available():
            have, architectures = self.capability(uuid), torch.cuda.get_arch_list()
            if have is None or not architectures or has_code(architectures, have):
                return ""
            named = f"compute capability {have[0]}.{have[1]}"
            return f"torch {torch.__version__} has code for {', '.join(architectures)}, none for this GPU ({named})"
        needs = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        hint = f"is the driver older than torch's {needs}?"
        return f"torch {torch.__version__} cannot use the GPU that the driver shows ({hint})"

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}

    def uuid_of(self, device: Any) -> str:
        import torch

        return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-").removeprefix("MIG-")

    def samplers(self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter) -> list[Sampler]:
        if absent := nvml.why_absent():
            hint = "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            raise RefusedError(f"{absent}, though CUDA does ({hint})")
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

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        whole = nvml.parent(_handle(uuid))  # NVML tells no clock of a MIG instance
        return lambda: nvml.optional(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_SM)

    def restriction(self, uuid: str) -> str:
        return nvml.restriction(_handle(uuid))

    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        handle = _handle(uuid)
        if sms is None and nvml.is_mig(handle):
            sms = getattr(nvml.optional(pynvml.nvmlDeviceGetAttributes, handle), "multiprocessorCount", None)
        whole = nvml.parent(handle)
        pci = nvml.optional(pynvml.nvmlDeviceGetPciInfo, whole)
        return GpuProperties(
            name=name,
            sms=sms,
            max_sm_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_SM),
            max_memory_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_MEM),
            bus_bits=nvml.optional(pynvml.nvmlDeviceGetMemoryBusWidth, whole),
            pci_id=None if pci is None else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
        )

    def capability(self, uuid: str) -> tuple[int, int] | None:
        told = nvml.optional(pynvml.nvmlDeviceGetCudaComputeCapability, nvml.parent(_handle(uuid)))
        if told is None:
            listed = cuda_driver.devices() if uuid else []
            told = next((device["capability"] for device in listed if device["uuid"].endswith(uuid)), None)
        return None if told is None else (told[0], told[1])

    def describe_all(self) -> list[dict[str, Any]]:
        told = [_described(handle) for handle in nvml.handles()]
        listed = () if told else cuda_driver.devices()
        return told or [{**entry, "compute_capability": ".".join(map(str, entry["capability"]))} for entry in listed]

    def memory_bytes(self, uuid: str) -> float | None:
        memory = nvml.optional(pynvml.nvmlDeviceGetMemoryInfo, _handle(uuid))  # of a MIG instance its own
        return memory.total if memory else super().memory_bytes(uuid)

    def driver(self) -> str | None:
        return nvml.optional(pynvml.nvmlSystemGetDriverVersion)  # type: ignore[no-any-return]

    def probe(self, uuid: str, own: int | None) -> Callable[[], dict[str, float | None]]:
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
