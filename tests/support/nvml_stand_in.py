"""Emulates libnvidia-ml below pynvml: C functions in Python, including known defects.

Answers like the library: through pointers to C structures, with error codes and an energy counter
that ticks every 100 ms. Its ring buffer keeps stale samples, 32-bit counters wrap, and GPM values
may not be numbers.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

OK = pynvml.NVML_SUCCESS
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


@dataclass
class Gpu:
    """Emulated device. Times are in seconds since the library was loaded."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    capability: tuple[int, int] = (9, 0)
    brand: int = pynvml.NVML_BRAND_NVIDIA
    power_w: float = 600.0
    instant_power_w: float = 650.0
    clock_mhz: int = 1755
    max_clock_mhz: int = 1980
    memory_clock_mhz: int = 2619
    bus_bits: int = 5120
    memory_bytes: int = 80 << 30
    sample_period_s: float = 1 / 6
    busy: Callable[[float], int] = lambda now: 100
    processes: list[int] = field(default_factory=list)
    drawing: list[int] = field(default_factory=list)
    capped_share: float = 0.25
    sample_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    field_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    field_start: int = 0
    refused: set[str] = field(default_factory=set)
    refused_fields: set[int] = field(default_factory=set)
    gpm: bool = True
    gpm_values: dict[int, float] = field(
        default_factory=lambda: {2: 90.0, 3: 25.0, 5: 60.0, 10: 30.0, 20: 100.0}
    )
    mig_instances: list["Gpu"] | None = None  # None: MIG mode is off
    parent: "Gpu | None" = None
    units: int | None = None  # SMs of a MIG instance; None: not reported
    pcie_lanes: tuple[int, int] = (16, 16)  # now, and at most
    pcie_generation: tuple[int, int] = (5, 5)
    nvlinks: tuple[int, ...] = ()  # 1 for each link that is up
    virtualization: int = pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE


class StandIn:
    """Emulated library with some GPUs and its own clock. `samples_alive` counts allocated GPM
    samples."""

    def __init__(self, *gpus: Gpu, unix_s: float = 1_700_000_000.0) -> None:
        self.gpus, self.unix_s, self.now = list(gpus), unix_s, 30.0
        self.samples_alive, self.cuda = 0, 13000  # the newest CUDA that the driver runs
        self._structures: dict[int, Gpu] = {}
        self._keep: list[Any] = []
        for gpu in gpus:
            self._register(gpu)
            for instance in gpu.mig_instances or ():
                instance.parent = gpu
                self._register(instance)

    def install(self, monkeypatch: Any) -> "StandIn":
        """Installs the emulation under pynvml for one test."""
        from mfulab.device.vendors import nvml

        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", self.pointer)
        nvml.why_absent.cache_clear()
        return self

    def time(self) -> float:
        """Unix time of the emulation."""
        return self.unix_s + self.now

    def pointer(self, name: str) -> Callable[..., int]:
        """C function of this name. Raises as an old driver does if it does not exist."""
        function = getattr(self, name, None)
        if function is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        def call(*arguments: Any) -> int:
            handle = arguments[0] if arguments else None
            if isinstance(handle, pynvml.c_nvmlDevice_t) and name in self._gpu(handle).refused:
                return NOT_SUPPORTED
            return function(*arguments)

        return call

    def _register(self, gpu: Gpu) -> None:
        structure = pynvml.struct_c_nvmlDevice_t()
        self._keep.append(structure)
        self._structures[ctypes.addressof(structure)] = gpu

    def _gpu(self, handle: Any) -> Gpu:
        return self._structures[ctypes.addressof(handle.contents)]

    def _give(self, reference: Any, gpu: Gpu) -> int:
        address = next(address for address, known in self._structures.items() if known is gpu)
        reference._obj.contents = pynvml.struct_c_nvmlDevice_t.from_address(address)
        return OK

    @staticmethod
    def _text(buffer: Any, text: str) -> int:
        buffer.value = text.encode()
        return OK

    @staticmethod
    def _number(reference: Any, value: float) -> int:
        reference._obj.value = value
        return OK

    # The library's functions, by their C names.

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return self._number(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return self._give(handle, self.gpus[index.value])

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:  # noqa: N802
        for gpu in self._structures.values():
            if gpu.uuid.encode() == uuid.value:
                return self._give(handle, gpu)
        return pynvml.NVML_ERROR_NOT_FOUND

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:  # noqa: N802
        return self._number(version, self.cuda)

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:  # noqa: N802
        return self._text(buffer, "580.95.05" if self.cuda >= 13000 else "535.104.05")

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        return self._text(buffer, self._gpu(handle).name)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        return self._text(buffer, self._gpu(handle).uuid)

    def nvmlDeviceGetBrand(self, handle: Any, brand: Any) -> int:  # noqa: N802
        return self._number(brand, self._gpu(handle).brand)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        self._number(major, self._gpu(handle).capability[0])
        return self._number(minor, self._gpu(handle).capability[1])

    def nvmlDeviceGetVirtualizationMode(self, handle: Any, mode: Any) -> int:  # noqa: N802
        return self._number(mode, self._gpu(handle).virtualization)

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        on = self._gpu(handle).mig_instances is not None
        self._number(current, on)
        return self._number(pending, on)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:  # noqa: N802
        return self._number(count, 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, instance: Any) -> int:  # noqa: N802
        instances = self._gpu(handle).mig_instances
        if index.value >= len(instances):
            return pynvml.NVML_ERROR_NOT_FOUND
        return self._give(instance, instances[index.value])

    def nvmlDeviceIsMigDeviceHandle(self, handle: Any, answer: Any) -> int:  # noqa: N802
        return self._number(answer, self._gpu(handle).parent is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, parent: Any) -> int:  # noqa: N802
        return self._give(parent, self._gpu(handle).parent)

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, instance: Any) -> int:  # noqa: N802
        return self._number(instance, 3)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        return self._number(
            clock, gpu.max_clock_mhz if kind.value == pynvml.NVML_CLOCK_SM else gpu.memory_clock_mhz
        )

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        if gpu.parent:
            return NOT_SUPPORTED
        return self._number(
            clock, gpu.clock_mhz if kind.value == pynvml.NVML_CLOCK_SM else gpu.memory_clock_mhz
        )

    def nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:  # noqa: N802
        units = self._gpu(handle).units
        if units is None:
            return NOT_SUPPORTED
        attributes._obj.multiprocessorCount = units
        return OK

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, width: Any) -> int:  # noqa: N802
        return self._number(width, self._gpu(handle).pcie_lanes[0])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, width: Any) -> int:  # noqa: N802
        return self._number(width, self._gpu(handle).pcie_lanes[1])

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, number: Any) -> int:  # noqa: N802
        return self._number(number, self._gpu(handle).pcie_generation[0])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, number: Any) -> int:  # noqa: N802
        return self._number(number, self._gpu(handle).pcie_generation[1])

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, state: Any) -> int:  # noqa: N802
        links = self._gpu(handle).nvlinks
        return self._number(state, links[link]) if link < len(links) else NOT_SUPPORTED

    def nvmlDeviceGetMemoryBusWidth(self, handle: Any, width: Any) -> int:  # noqa: N802
        return self._number(width, self._gpu(handle).bus_bits)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        total = self._gpu(handle).memory_bytes
        memory._obj.total, memory._obj.free, memory._obj.used = total, total * 3 // 4, total // 4
        return OK

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, warmth: Any) -> int:  # noqa: N802
        if self._gpu(handle).parent:
            return NOT_SUPPORTED
        return self._number(warmth, 55)

    def nvmlDeviceGetPowerUsage(self, handle: Any, power: Any) -> int:  # noqa: N802
        return self._number(power, round(self._gpu(handle).power_w * 1e3))

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any, limit: Any) -> int:  # noqa: N802
        return self._number(limit, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:  # noqa: N802
        ticks = math.floor(self.now * 10) / 10
        return self._number(energy, round(self._gpu(handle).power_w * ticks * 1e3))

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu, rates._obj.memory = self._gpu(handle).busy(self.now), 10
        return OK

    def nvmlDeviceGetSamples(self, handle, kind, since, value_type, count, samples) -> int:  # noqa: N802
        """Returns the whole ring buffer including stale samples, as some drivers ignore the
        requested time."""
        gpu = self._gpu(handle)
        taken = int(self.now / gpu.sample_period_s) + 1
        stamps = [number * gpu.sample_period_s for number in range(taken)][-100:]
        self._number(value_type, gpu.sample_type)
        self._number(count, len(stamps))
        for index, stamp in enumerate(stamps if samples is not None else ()):
            samples[index].timeStamp = round((self.unix_s + stamp) * 1e6)
            samples[index].sampleValue.uiVal = gpu.busy(stamp)
        return OK

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        for value in values._obj:
            value.nvmlReturn = NOT_SUPPORTED if value.fieldId in gpu.refused_fields else OK
            value.valueType = gpu.field_type
            share = (
                gpu.capped_share if value.fieldId == pynvml.NVML_FI_DEV_PERF_POLICY_POWER else 0.0
            )
            total = gpu.field_start + round(share * self.now * 1e9)
            if value.fieldId == pynvml.NVML_FI_DEV_POWER_INSTANT:
                total = round(gpu.instant_power_w * 1e3)
            if gpu.field_type == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
                value.value.uiVal = total % (1 << 32)
            else:
                value.value.ullVal = total
        return OK

    def nvmlDeviceGetComputeRunningProcesses_v3(  # noqa: N802
        self, handle: Any, count: Any, processes: Any
    ) -> int:
        return self._processes(self._gpu(handle).processes, count, processes)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(  # noqa: N802
        self, handle: Any, count: Any, processes: Any
    ) -> int:
        return self._processes(self._gpu(handle).drawing, count, processes)

    def _processes(self, pids: list[int], count: Any, processes: Any) -> int:
        if processes is None:
            self._number(count, len(pids))
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if pids else OK
        for index, pid in enumerate(pids):
            processes[index].pid = pid
        return self._number(count, len(pids))

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:  # noqa: N802
        support._obj.isSupportedDevice = self._gpu(handle).gpm
        return OK

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:  # noqa: N802
        structure = (ctypes.c_char * 8)()
        self._keep.append(structure)
        sample._obj.contents = pynvml.struct_c_nvmlGpmSample_t.from_buffer(structure)
        self.samples_alive += 1
        return OK

    def nvmlGpmSampleFree(self, sample: Any) -> int:  # noqa: N802
        self.samples_alive -= 1
        return OK

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:  # noqa: N802
        return NOT_SUPPORTED if self._gpu(handle).mig_instances else OK

    def nvmlGpmMigSampleGet(self, handle: Any, instance: int, sample: Any) -> int:  # noqa: N802
        return OK if instance == 3 and self._gpu(handle).mig_instances else NOT_SUPPORTED

    def nvmlGpmMetricsGet(self, request: Any) -> int:  # noqa: N802
        structure = request._obj
        if structure.version != 1:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        for index in range(structure.numMetrics):
            metric = structure.metrics[index]
            known = self.gpus[0].gpm_values.get(metric.metricId)
            metric.nvmlReturn, metric.value = (NOT_SUPPORTED, 0.0) if known is None else (OK, known)
        return OK
