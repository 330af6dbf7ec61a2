"""NVIDIA's GPUs, through NVML."""

import contextlib
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pynvml

from mfulab.core.json_text import parse_json
from mfulab.core.said import Said, as_json, from_json
from mfulab.device import system
from mfulab.device.samplers.reading import Line, Now, Probe, Sampler
from mfulab.device.vendors import (
    Gpu,
    GpuProperties,
    Link,
    NoDeviceError,
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

if TYPE_CHECKING:
    import torch

# torch's default wheels need CUDA 13 and a compute capability of at least Turing's. Wheels for
# CUDA 12.6 also support older GPUs, and run on every driver for CUDA 12.
NEW_CUDA = 13000
OLD_CUDA = 12000
TURING = (7, 5)
NEWEST = (12, 1)
NEWEST_OF_OLD = (9, 0)
# first release of torch with wheels for CUDA 12.8, which contain code for Blackwell
FIRST_FOR_BLACKWELL = (2, 7)
WHEELS = " --index-url https://download.pytorch.org/whl"
OLD_WHEELS = f"{WHEELS}/cu126"
MIDDLE_WHEELS = f"{WHEELS}/cu128"
MIDDLE_CUDA = 12080
# NVML calls for the current PCIe link, and for the maximum of GPU and slot. An idle link drops to
# a lower generation.
PCIE: Mapping[str, tuple[Callable[..., int], Callable[..., int]]] = {
    "pcie_lanes": (
        pynvml.nvmlDeviceGetCurrPcieLinkWidth,
        pynvml.nvmlDeviceGetMaxPcieLinkWidth,
    ),
    "pcie_generation": (
        pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
        pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    ),
}


def _listed_by_cuda(environment: Mapping[str, str]) -> list[Gpu]:
    return [Gpu(device["name"], device["uuid"]) for device in cuda_driver.devices(environment)]


def seen(
    gpus: Sequence[tuple[Gpu, list[Gpu]]], visible: str | None, in_bus_order: bool
) -> list[Gpu]:
    """GPUs and MIG instances that CUDA would see among `gpus`, by its rules for
    CUDA_VISIBLE_DEVICES. The variable lists indices or UUID prefixes; CUDA stops at the first
    invalid one."""
    # CUDA sees a GPU in MIG mode only through its instances, and by index only the first one.
    shown = [(*own, gpu)[0] for gpu, own in gpus]
    names = sorted({device.name for device in shown})
    entries = list(map(str, range(len(shown))))
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
    chosen = list[Gpu]()
    for entry in entries:
        is_index = system.place_in(entry, len(shown)) < len(shown)
        if is_index and len(names) > 1 and not in_bus_order:
            raise NoDeviceError(
                f"there are different GPUs here ({', '.join(names)}), and CUDA numbers them fastest first: "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID (nvidia-smi -L lists them)"
            )
        matching = [shown[int(entry)]] if is_index else _by_uuid(entry, gpus)
        if len(matching) != 1:
            break
        chosen += matching
    return chosen


def _by_uuid(entry: str, gpus: Sequence[tuple[Gpu, list[Gpu]]]) -> list[Gpu]:
    """GPUs and MIG instances whose UUID begins with an entry of CUDA_VISIBLE_DEVICES."""
    matching = list[Gpu]()
    for whole, own in gpus:
        matching += [gpu for gpu in (whole, *own) if gpu.uuid.startswith(entry)]
    if entry.startswith(("GPU-", "MIG-")):
        return matching
    return []


def _named(handle: object) -> Gpu:
    name = nvml.optional(pynvml.nvmlDeviceGetName, handle) or "nvidia"
    return Gpu(name, nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or "")


@dataclass(frozen=True)
class _Fit:
    """Compute capability of a GPU (None if unknown), and the CUDA version `runs` that its driver
    supports, as 1000 · major + 10 · minor."""

    have: tuple[int, int] | None
    runs: int

    @property
    def is_ancient(self) -> bool:
        return self.runs < OLD_CUDA

    @property
    def is_new(self) -> bool:
        return self.have is not None and self.have > NEWEST_OF_OLD

    @property
    def is_old(self) -> bool:
        if self.is_new:
            return False
        return OLD_CUDA <= self.runs < NEW_CUDA or (self.have or TURING) < TURING

    def packages(self) -> tuple[str, str]:
        """Builds of torch that fit: conda's version pattern, and the URL of the wheel index (empty
        for the default one)."""
        if self.is_old:
            return "cuda126*", OLD_WHEELS
        if self.is_new and MIDDLE_CUDA <= self.runs < NEW_CUDA:
            return "cuda128*", MIDDLE_WHEELS
        return "cuda*", ""

    def needs_driver_alone(self, built: int) -> bool:
        """True if only a newer driver helps, because no build other than that for CUDA `built`
        would work."""
        if self.is_new and self.runs < MIDDLE_CUDA:
            return True
        return self.is_ancient and not (self.is_old and built >= NEW_CUDA)

    @staticmethod
    def built(build: torch_build.Build) -> int:
        """Major CUDA version of a build, times 1000; 0 if it has none."""
        return int((build.cuda or "0").split(".")[0]) * 1000

    def has_code_in_every(self, build: torch_build.Build) -> bool:
        """True if every build for this CUDA version contains code for the GPU."""
        newest = NEWEST if self.built(build) >= NEW_CUDA else NEWEST_OF_OLD
        return self.have is None or TURING <= self.have <= newest

    def remedy(self, build: torch_build.Build) -> Said:
        """Advice to install another build of torch, and a newer driver too if the driver is older
        than CUDA 12."""
        key = "driver_and_torch" if self.is_ancient else "other_torch"
        return Said(key, command=self._command(build))

    def remedy_of_driver(self, build: torch_build.Build) -> Said:
        """Advice for a driver that is too old for `build`."""
        if self.needs_driver_alone(self.built(build)):
            return Said("newer_driver")
        if self.is_ancient:
            return self.remedy(build)
        return Said("torch_or_driver", command=self._command(build))

    def _command(self, build: torch_build.Build) -> str:
        conda, wheels = self.packages()
        is_too_old = self.is_new and build.release < FIRST_FOR_BLACKWELL
        return build.replaced(conda, wheels, newer=is_too_old or wheels == MIDDLE_WHEELS)


def _cuda_of_driver() -> int:
    """Newest CUDA version that the driver supports, as 1000 · major + 10 · minor."""
    version = nvml.optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return version or cuda_driver.version() or NEW_CUDA


@functools.cache
def _asked_of_torch(uuid: str) -> Said | None:
    """Result of `why_unusable` from a separate process that imports torch. None if that process
    fails, as each run then reports the reason."""
    program = f"from mfulab.device.vendors import nvidia; nvidia.tell_whether_usable({uuid!r})"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    with contextlib.suppress(ValueError):
        return from_json(parse_json(answer.stdout))
    return None


def tell_whether_usable(uuid: str) -> None:
    """Prints the result of `why_unusable` as JSON: an empty object if torch can use the GPU."""
    reason = Nvidia().why_unusable(uuid)
    sys.stdout.write(json.dumps(as_json(reason) if reason else {}))


def has_code(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """True if one of torch's architectures runs on a GPU. That is machine code for its generation,
    or PTX for it or an earlier one."""
    matches = (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in architectures)
    for kind, major, minor, suffix in (match.groups() for match in matches if match):
        built_for = (int(major), int(minor))
        is_ptx = kind == "compute" and not suffix
        if built_for == capability or (
            built_for < capability and suffix != "a" and (is_ptx or built_for[0] == capability[0])
        ):
            return True
    return False


def _asker(handle: nvml.Handle | None) -> Callable[..., Any]:
    return lambda call, *arguments: nvml.optional(call, handle, *arguments)


def _handle(uuid: str) -> nvml.Handle | None:
    with contextlib.suppress(RefusedError):
        return nvml.handle_by_uuid(uuid)
    return None


def _described(handle: nvml.Handle) -> dict[str, Any]:
    ask_device = _asker(handle)
    capability = ask_device(pynvml.nvmlDeviceGetCudaComputeCapability)
    memory = ask_device(pynvml.nvmlDeviceGetMemoryInfo)
    limit = ask_device(pynvml.nvmlDeviceGetPowerManagementLimit)
    mig = ask_device(pynvml.nvmlDeviceGetMigMode)
    mode = ask_device(pynvml.nvmlDeviceGetVirtualizationMode)
    return {
        "name": ask_device(pynvml.nvmlDeviceGetName),
        "uuid": ask_device(pynvml.nvmlDeviceGetUUID),
        "compute_capability": capability and ".".join(map(str, capability)),
        "max_sm_clock_mhz": ask_device(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": ask_device(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
        "memory_bus_bits": ask_device(pynvml.nvmlDeviceGetMemoryBusWidth),
        "memory_bytes": memory and memory.total,
        "power_limit_w": limit and limit / 1e3,
        "mig": mig and bool(mig[0]),
        "virtual": None if mode is None else mode in nvml.VIRTUAL,
    }


class Nvidia(Vendor):
    """NVIDIA GPUs and MIG instances, identified by UUID with or without its prefix (GPU or MIG)."""

    # NVML names some without the vendor, such as Tesla T4.
    KIND = "cuda"
    PREFIX = ""
    SLUG = r"nvidia|tesla|quadro|geforce|titan|grid|orin|thor|xavier|jetson|gh200|gb\d+"
    SOURCE = "NVML"

    def why_absent(self) -> Said | None:
        return nvml.why_absent()

    def owns(self, device: "torch.device") -> bool:
        import torch

        return device.type == self.KIND and torch.version.hip is None

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        if nvml.why_absent():
            return _listed_by_cuda(environment)
        pairs = ((handle, nvml.mig_instances(handle)) for handle in nvml.handles())
        # CUDA does not show a GPU in MIG mode that has no instance.
        seen_by_cuda = [
            (_named(handle), [*map(_named, own or ())]) for handle, own in pairs if own != []
        ]
        in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        try:
            return seen(seen_by_cuda, environment.get("CUDA_VISIBLE_DEVICES"), in_bus_order)
        except NoDeviceError:  # different GPUs in CUDA's own order, "fastest first": ask CUDA
            if listed := _listed_by_cuda(environment):
                return listed
            raise

    def why_silent(self) -> Said | None:
        if absent := nvml.why_absent():
            if system.text("proc/driver/nvidia/version"):
                return Said("driver_shows_no_gpu", why=absent)
            return None
        for handle in nvml.handles():
            if nvml.mig_instances(handle) == []:
                return Said("mig_without_instance", name=_named(handle).name)
        return None

    def why_unfit(self, uuid: str) -> Said | None:
        build = torch_build.installed()
        if build is None or build.cuda is None:
            return None
        fit = _Fit(self.capability(uuid), _cuda_of_driver())
        if not build.cuda:
            kind = Said("for_cpus" if build.is_for_cpus else "for_amd")
            remedy = fit.remedy(build)
            return Said("built_for", torch=build.version, kind=kind, instead=remedy)
        if fit.runs // 1000 * 1000 < fit.built(build):
            return Said(
                "driver_too_old",
                driver=self.driver() or "",
                has=f"{fit.runs // 1000}.{fit.runs % 1000 // 10}",
                torch=build.version,
                needs=build.cuda,
                instead=fit.remedy_of_driver(build),
            )
        if fit.has_code_in_every(build):
            return None
        reason = self.why_unusable(uuid) if "torch" in sys.modules else _asked_of_torch(uuid)
        if reason is None:
            return None
        return Said("with_remedy", reason=reason, instead=fit.remedy(build))

    def why_unusable(self, uuid: str) -> Said | None:
        import torch

        if torch.cuda.is_available():
            have = self.capability(uuid)
            architectures = torch.cuda.get_arch_list()
            if have is None or not architectures or has_code(architectures, have):
                return None
            capability = f"compute capability {have[0]}.{have[1]}"
            codes = ", ".join(architectures)
            return Said(
                "no_code_for_gpu", torch=torch.__version__, codes=codes, capability=capability
            )
        needs = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return Said("torch_cannot_use", torch=torch.__version__, needs=needs)

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}

    def uuid_of(self, device: "torch.device") -> str:
        import torch

        return (
            str(torch.cuda.get_device_properties(device).uuid)
            .removeprefix("GPU-")
            .removeprefix("MIG-")
        )

    def samplers(
        self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter
    ) -> list[Sampler]:
        if absent := nvml.why_absent():
            raise RefusedError(Said("nvml_silent", why=absent))
        handle = nvml.handle_by_uuid(uuid)
        full_uuid = nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or uuid
        counters: Sampler
        if without := gpm.why_unsupported(handle):
            counters = dcgm.dcgm_sampler(full_uuid, without)
            if dcgm.page(full_uuid) is None:
                absent = Said("no_exporter", why=without, address=dcgm.address())
                counters = cupti.PmSampler(full_uuid, absent, now)
        else:  # two readers of the same counters disturb each other
            source = (
                f"{gpm.SOURCE}, disturbed by a dcgm-exporter"
                if dcgm.page(full_uuid)
                else gpm.SOURCE
            )
            counters = gpm.GpmSampler(handle, now, source)
        return [counters, nvml_sampler(handle), *between, nvml_at_end(handle)]

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        whole = nvml.parent(_handle(uuid))  # NVML has no clock for a MIG instance
        return lambda: nvml.optional(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_SM)

    def restriction(self, uuid: str) -> str:
        return nvml.restriction(_handle(uuid))

    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        handle = _handle(uuid)
        if sms is None and nvml.is_mig(handle):
            sms = getattr(
                nvml.optional(pynvml.nvmlDeviceGetAttributes, handle), "multiprocessorCount", None
            )
        whole = nvml.parent(handle)
        pci = nvml.optional(pynvml.nvmlDeviceGetPciInfo, whole)
        return GpuProperties(
            name=name,
            sms=sms,
            max_sm_clock_mhz=nvml.optional(
                pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_SM
            ),
            max_memory_clock_mhz=nvml.optional(
                pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_MEM
            ),
            bus_bits=nvml.optional(pynvml.nvmlDeviceGetMemoryBusWidth, whole),
            pci_id=None
            if pci is None
            else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
        )

    def capability(self, uuid: str) -> tuple[int, int] | None:
        found = nvml.optional(pynvml.nvmlDeviceGetCudaComputeCapability, nvml.parent(_handle(uuid)))
        if found is None:
            listed = cuda_driver.devices() if uuid else []
            found = next(
                (device["capability"] for device in listed if device["uuid"].endswith(uuid)), None
            )
        return None if found is None else (found[0], found[1])

    def links(self, uuid: str) -> dict[str, Link]:
        whole = nvml.parent(_handle(uuid))
        found = dict[str, Link]()
        for name, (now, most) in PCIE.items():
            has = nvml.optional(now, whole)
            may_have = nvml.optional(most, whole)
            if has and may_have:
                found[name] = Link(has, may_have)
        states = [
            nvml.optional(pynvml.nvmlDeviceGetNvLinkState, whole, number)
            for number in range(pynvml.NVML_NVLINK_MAX_LINKS)
        ]
        known_states = [state for state in states if state is not None]
        if known_states:
            found["nvlinks"] = Link(sum(known_states), len(known_states))
        return found

    def describe_all(self) -> list[dict[str, Any]]:
        described = [_described(handle) for handle in nvml.handles()]
        listed = () if described else cuda_driver.devices()
        return described or [
            {**entry, "compute_capability": ".".join(map(str, entry["capability"]))}
            for entry in listed
        ]

    def memory_bytes(self, uuid: str) -> float | None:
        # for a MIG instance, that of the instance
        memory = nvml.optional(pynvml.nvmlDeviceGetMemoryInfo, _handle(uuid))
        return memory.total if memory else super().memory_bytes(uuid)

    def driver(self) -> str | None:
        return nvml.optional(pynvml.nvmlSystemGetDriverVersion)  # type: ignore[no-any-return]

    def probe(self, uuid: str, own: int | None) -> Probe:
        handle = nvml.handle_by_uuid(uuid)
        ask_device = _asker(handle)
        ask_whole = _asker(nvml.parent(handle))

        def now() -> Line:
            rates = ask_device(pynvml.nvmlDeviceGetUtilizationRates)
            memory = ask_device(pynvml.nvmlDeviceGetMemoryInfo)
            (instant,) = fields(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
            power = ask_device(pynvml.nvmlDeviceGetPowerUsage)
            return {
                "utilization_percent": rates and rates.gpu,
                "memory_utilization_percent": rates and rates.memory,
                "clock_mhz": ask_whole(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
                "memory_clock_mhz": ask_whole(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
                "power_w": power and power / 1e3,
                # power_w is a mean, over 1 s on Hopper
                "instant_power_w": instant.value and instant.value / 1e3,
                "temperature_c": ask_whole(
                    pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU
                ),
                "device_memory_bytes": memory and memory.used,
                "other_processes": other_processes(handle, own)[0],
            }

        return now
