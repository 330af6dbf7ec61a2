"""Emulates a GPU for a whole sweep, from planning to the page, with a simulated clock and recorded
answers.

An H200 answers with its own recorded rows. Other devices answer with rows of that recording, or of
the H100's, scaled by their datasheet and by reported shares; `figures` names the basis. Durations
come from a sweep on the H200 (26 November 2026, 16 cores, cold disk). The environment variable in
`FAULTS` names faults to inject. The clock only advances by what is charged: for a run its recorded
parts at the pace that planning chose. For tables, figures and page it is their actual processor
time.
"""

import csv
import functools
import html
import importlib
import json
import math
import operator
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support import amd_stand_in, stand_in_clock
from support.nvml_stand_in import Gpu, StandIn
from support.workflow_copy import ROOT, copy_workflow, draw_only

REFERENCE = ROOT / "results/reference"
RECORDED = ("nvidia-h200", "nvidia-h100-80gb-hbm3")  # searched for a row in this order
# Comma-separated KIND:NAME of a kernel or model: a `spill`, a failed `compile`, a `sticky` CUDA error, an
# unsteady `clock`
FAULTS = "MFULAB_STAND_IN_FAULTS"
DEVICE = "MFULAB_STAND_IN"  # the name of one of DEVICES
CORES = 16
HOST = 1.8  # CPU seconds on that machine per CPU second here, from drawing its figures
WORKER_S, JOB_S = 19.6, 0.12  # the worker's imports from a cold disk, and the overhead of a job
FIRST_FONTS_S = 4.0  # reading fonts for the first drawing
# Seconds of a process without warm-up, windows and first call: context, probe, model. Then of each
# traced step.
CONTEXT_S = 0.7
TRACED_S = {"tiny_kernels": 0.01, "resnet50": 0.2, "gpt2": 0.12}
TRACED_TRAINING = 3.7  # factor on the number of operators
COUNTED_S = {"resnet50": 1.0, "gpt2": 2.7}
COMPILE_S = 9.0
# Seconds of a matmul's process: context, operands, checks, and compiling in the first call.
MATMUL_S = {
    "torch": 0.5,
    "cublas": 1.0,
    "cuda_": 1.0,
    "triton": 1.7,
    "numba": 1.7,
    "numba_cuda_unrolled": 3.4,
}


@dataclass(frozen=True)
class Device:
    """Properties of an emulated device: what its driver reports, and its speed."""

    name: str
    capability: tuple[int, int] | None  # None: AMD's
    memory_bytes: int
    sms: int
    clock_mhz: int  # maximum clock of its driver
    memory_mhz: int
    bus_bits: int
    gb_s: float  # of its best triad
    # share of the peak that its best matmul reaches, by format
    reached: Mapping[str, float] = field(default_factory=dict)
    # TFLOP/s of the best matmul, for a card without a datasheet
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    cores: int = CORES
    slower_host: float = 1.0  # slowdown of a core against the recorded machine
    gpm: bool = False
    recording: str = ""  # its own folder in results/reference/
    figures: str = "datasheet and reported shares"  # basis of its speed
    cards: int = 1  # number of equal cards in the machine
    slow_card: int = 0  # card that takes SLOWED times as long, counted from one; 0: none
    mig: str = ""  # name of the MIG instance, if torch sees one
    # NVML calls that its driver answers with NOT_SUPPORTED
    refused: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """Name that torch shows."""
        return self.mig or self.name

    def spec(self, precision: str) -> Any:
        """Peak that mfulab computes for the device."""
        from mfulab.device.peaks import peak

        return peak(self.shown, precision, self.sms, max_clock_mhz=self.clock_mhz)

    def best_tflop_s(self, precision: str) -> float:
        """TFLOP/s of its best matmul. Unless known otherwise, the same share of its peak as on the
        H100."""
        if precision in self.tflop_s:
            return self.tflop_s[precision]
        return float(
            self.reached.get(precision, {"fp32": 0.81}.get(precision, 0.74))
            * self.spec(precision).spec
        )


_LAPTOP = (
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetFieldValues",
)
_INSTANCE = (
    *(
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTotalEnergyConsumption",
    ),
    *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"),
)
# Shares reached are those reported of cards limited to 72 W (24 of a T4's 65 TFLOP/s, 54 to 59 of
# an L4's 121).
DEVICES = {
    "h200": Device(
        "NVIDIA H200", (9, 0), 150_754_820_096, 132, 1980, 3201, 6016, 4317.5,
        tflop_s={"bf16": 734.5, "fp16": 734.5, "fp32": 53.3}, gpm=True,
        recording="nvidia-h200", figures="its own recorded rows",
    ),
    "t4": Device(
        *("Tesla T4", (7, 5), 15_843_721_216, 40, 1590, 5001, 256, 241.0, {"fp32": 0.53, "fp16": 0.4}),
        cores=2, slower_host=1.4,
    ),
    "a100": Device(
        "NVIDIA A100-SXM4-40GB", (8, 0), 42_949_672_960, 108, 1410, 1215, 5120, 1400.0, {"fp32": 0.97, "bf16": 0.83}
    ),
    "l4": Device(
        *("NVIDIA L4", (8, 9), 24_152_899_584, 58, 2040, 6251, 192, 258.0, {"fp32": 0.4, "bf16": 0.47}), cores=12
    ),
    "rtx4090": Device(
        *("NVIDIA GeForce RTX 4090", (8, 9), 25_757_220_864, 128, 3105, 10501, 384, 930.0),
        {"fp32": 0.75, "bf16": 1.03},
    ),
    "laptop": Device(
        *("NVIDIA GeForce RTX 3060 Laptop GPU", (8, 6), 6_442_450_944, 30, 2100, 7001, 192, 300.0),
        {"fp32": 0.7, "bf16": 0.8}, cores=8, refused=frozenset(_LAPTOP),
    ),
    "b200": Device("NVIDIA B200", (10, 0), 191_503_532_032, 148, 1965, 3996, 8192, 6900.0, gpm=True,
        figures="public: NVIDIA's datasheet of the HGX B200; assumed: 86 % of its bandwidth, the H100's "
        "share of its peak"),
    "mig": Device(
        "NVIDIA H100 80GB HBM3", (9, 0), 85_520_809_984, 16, 1980, 2619, 5120, 380.0, gpm=True,
        mig="NVIDIA H100 80GB HBM3 MIG 1g.10gb", refused=frozenset(_INSTANCE),
    ),
    "mi300x": Device(
        *("AMD Instinct MI300X OAM", None, 206_141_652_992, 304, 2100, 1300, 8192, 4100.0), {"bf16": 0.54, "fp32": 0.6},
        figures="public: AMD's datasheet, and in bf16 its own 708 TFLOP/s (Measuring Max-Achievable FLOPs, part 2, "
        "rocm.blogs.amd.com); assumed: 77 % of its bandwidth, 60 % of its peak in fp32",
    ),
    "unknown": Device(
        "NVIDIA GeForce RTX 5080 SUPER", (12, 0), 25_651_314_688, 84, 3100, 15001, 256, 850.0,
        tflop_s={"fp32": 42.0, "bf16": 105.0, "fp16": 105.0},
    ),
}  # fmt: skip
SLOWED = 1.25
DEVICES["h200x8"] = replace(
    DEVICES["h200"], cards=8, slow_card=3, figures="the H200's recorded rows"
)
DEVICES["h200x3"] = replace(DEVICES["h200"], cards=3, figures="the H200's recorded rows")
MIG_BYTES = 10_200_547_328


def device() -> Device:
    """Device that this process emulates."""
    return DEVICES[os.environ[DEVICE]]


def uuid_of(card: int) -> str:
    """Identifier of a card, counted from one."""
    return f"GPU-00000000-0000-0000-0000-{card:012}"


class _Patch:
    setattr, setitem = staticmethod(setattr), staticmethod(operator.setitem)


@functools.cache
def install() -> Any:
    """Installs the device under its vendor's library for planning and runs. Returns the emulated
    library, which has the clock."""
    from mfulab.device.vendors import nvidia, torch_build
    from mfulab.device.vendors.gpm import METRICS
    from mfulab.device.vendors.nvml_sampler import nvml_sampler

    here = device()
    if here.capability is None:
        torch_build.installed = lambda: torch_build.Build("2.13.0+rocm7.0", "", "7.0")
        return amd_stand_in.StandIn(amd_stand_in.Gpu(name=here.name, units=here.sms)).install(
            _Patch
        )
    instance = Gpu(
        here.mig,
        "MIG-00000000-0000-0000-0000-000000000002",
        memory_bytes=MIG_BYTES,
        refused=set(here.refused),
    )
    gpu = Gpu(
        name=here.name, capability=here.capability, gpm=here.gpm, memory_bytes=here.memory_bytes,
        max_clock_mhz=here.clock_mhz, memory_clock_mhz=here.memory_mhz, bus_bits=here.bus_bits,
        gpm_values=dict.fromkeys(METRICS, 50.0),
        refused=set() if here.mig else set(here.refused), mig_instances=[instance] if here.mig else None,
    )  # fmt: skip
    equal = (replace(gpu, uuid=uuid_of(place)) for place in range(1, here.cards + 1))
    library = StandIn(*equal).install(_Patch)
    nvidia.nvml_sampler = lambda handle: nvml_sampler(handle, library.time, lambda: library.now)
    torch_build.installed = lambda: torch_build.Build("2.13.0+cu130", "13.0", "")
    return library


def _readings(window_s: float) -> dict[str, Any]:
    """Readings of the vendor's samplers over a window. They show which values the device has, and
    why others are missing."""
    from mfulab.device import identity, vendors
    from mfulab.device.samplers.reading import first_available, sampling

    library, uuid = install(), identity.gpus()[0].uuid
    with sampling(vendors.of(uuid).samplers(uuid, [], lambda: library.now)) as readings:
        library.now += window_s
    return first_available(readings)


@functools.cache
def _recorded(table: str) -> list[dict[str, str]]:
    """Measured rows of both recordings, the H200's first. Counters are separate cells."""
    from mfulab.lab.tables.columns import with_counters

    rows: list[dict[str, str]] = []
    for hardware in RECORDED:
        with (REFERENCE / hardware / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            lines = map(with_counters, csv.DictReader(file))
            rows += [row for row in lines if row["status"] == "ok"]
    return rows


def own(table: str, **wanted: Any) -> dict[str, str] | None:
    """Row of a run that the device itself recorded, preferably from the quickstart. None if there
    is none."""
    texts = {name: str(value) for name, value in wanted.items()}
    found = [
        row
        for row in _recorded(table)
        if row["hardware"] == device().recording and texts.items() <= row.items()
    ]
    return min(found, key=lambda row: row["experiment"] != "quickstart_gpu", default=None)


@functools.cache
def _rates(hardware: str) -> dict[str, float]:
    """Best recorded rate by format in TFLOP/s, and for `memory` in GB/s."""
    measured = {
        row["ceiling"]: float(row["measured_tflop_s"] or row["measured_gb_s"])
        for row in _recorded("ceilings")
        if row["hardware"] == hardware
    }
    return {**measured, "fp16": measured["bf16"]}


def _measured(cells: Mapping[str, str], kind: Any) -> dict[str, Any]:
    """Values of a recorded row that a run itself reports."""
    names = kind.model_fields.keys() - OF_A_RUN
    return {name: cells[name] for name in names if cells.get(name)}


def _faults() -> set[tuple[str, str]]:
    """Faults to inject, as (kind, kernel)."""
    words = filter(None, os.environ.get(FAULTS, "").split(","))
    return {tuple(word.split(":")) for word in words}  # type: ignore[misc]


_broken: list[str] = []  # names whose sticky error left this process without CUDA


def call(name: str) -> None:
    """A call of CUDA by a kernel or model. Raises RuntimeError if it has a fault, and after a
    sticky one for every later call of this process."""
    faults = _faults()
    if ("compile", name) in faults:
        raise RuntimeError(
            "NVRTC_ERROR_COMPILATION: ptxas fatal: Unresolved extern function 'stand_in'"
        )
    if ("sticky", name) in faults:
        _broken.append(name)
    if _broken:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered (cudaErrorIllegalAddress)"
        )


def measure(step: str, config: Any, folder: Path) -> Any:
    """Result of a run on the device. Charges the time that it would take."""
    from mfulab.core.measurement import Measured

    row, seconds = {
        "environment": _environment, "ceilings": _ceiling, "profile_step": _step, "bench_matmul": _matmul,
    }[step](config)  # fmt: skip
    stand_in_clock.advance(seconds + JOB_S + (device().slower_host - 1) * CONTEXT_S)
    if is_slow() and getattr(row, "time_s", None):
        row.time_s = row.median_time_s = SLOWED * row.time_s
    return Measured(row)


def is_slow() -> bool:
    """True in a process that only sees the slow card."""
    from mfulab.device import identity

    here = device()
    return bool(here.slow_card) and identity.gpus()[0].uuid == uuid_of(here.slow_card)


def _environment(config: Any) -> tuple[Any, float]:
    from mfulab.device import vendors
    from mfulab.measurements.environment import EnvironmentRow

    here = device()
    gpus = next(filter(None, (vendor.describe_all() for vendor in vendors.makers())))
    gpus = json.dumps([{**facts, "sms": here.sms} for facts in gpus])
    row = EnvironmentRow(
        device="cuda",
        device_name=here.shown,
        gpus=gpus,
        python="3.12",
        cpu_logical_cores=here.cores,
    )
    return row, 0.4


def _ceiling(config: Any) -> tuple[Any, float]:
    from mfulab.core.said import Said, packed_all
    from mfulab.device import identity, vendors
    from mfulab.device.emulation import emulated_by_gpu
    from mfulab.device.peaks import memory_peak_gb_s
    from mfulab.measurements.ceilings import CeilingRow
    from mfulab.timing.best_matmul import CAREFUL, QUICK

    here, name = device(), config.ceiling
    call(name)
    search = QUICK if config.search == "quick" else CAREFUL["cuda"]
    row = CeilingRow(ceiling=name, clock_mhz=0.85 * here.clock_mhz)
    if name == "memory":
        uuid = identity.gpus()[0].uuid
        row.measured_gb_s = here.gb_s
        row.computed_gb_s = memory_peak_gb_s(
            vendors.of(uuid).properties(uuid, here.shown, here.sms)
        )
        row.measured_s = search.triads * search.sample_s
        return row, CONTEXT_S + row.measured_s
    if reason := emulated_by_gpu(name, here.capability):
        row.emulated = True
        row.message = packed_all([Said("emulated_by", {"why": reason, "precision": name})])
        return row, CONTEXT_S
    peak, tflop_s = here.spec(name), here.best_tflop_s(name)
    row.measured_tflop_s, row.computed_tflop_s, row.message = tflop_s, peak.spec, peak.reason
    row.measured_with, row.measured_shape, row.emulated = "torch_nt", "8192x8192x8192", False
    row.max_clock_tflop_s, row.datasheet_tflop_s, row.computed_clock_mhz = (
        peak.max_clock,
        peak.datasheet,
        peak.spec_clock_mhz,
    )
    row.computed_formula, row.computed_source = peak.formula or None, peak.source or None
    spent = 0.0
    for m, n, k in search.shapes:
        call_s = 2 * m * n * k / (tflop_s * 1e12)
        shape_s = (
            2 * call_s
            + max(search.settle_s, call_s)
            + search.samples * max(search.sample_s, call_s)
        )
        if not spent or spent + shape_s < search.limit_s:
            spent += shape_s
    row.measured_s = search.ways * spent + 0.3
    return row, CONTEXT_S + row.measured_s


def step_s(
    model: str, workload: str, batch_size: int, precision: str, execution: str = "eager"
) -> tuple[dict[str, str], float]:
    """Recorded row nearest to a step, and the seconds of that step on this device."""
    names = {"model": model, "workload": workload, "precision": precision, "execution": execution}
    if row := own("profile", batch_size=batch_size, **names):
        return row, float(row["time_s"])
    of_model = [
        row for row in _recorded("profile") if (row["model"], row["workload"]) == (model, workload)
    ]
    alike = [row for row in of_model if row["precision"] == precision]
    alike = alike or [row for row in of_model if row["precision"] == "bf16"]
    alike = [row for row in alike if row["hardware"] == alike[0]["hardware"]]
    nearest = min(alike, key=lambda row: abs(math.log(int(row["batch_size"]) / batch_size)))
    full = max(alike, key=lambda row: int(row["batch_size"]))
    if model == "spinning":  # waits for a clock, with negligible matmuls
        return nearest, float(nearest["time_s"])
    here = device()
    rates = _rates(full["hardware"])
    # Scales matmuls by the formats' rates, and all else by the memory's. Wide formats move twice
    # the bytes.
    is_wider = precision not in (full["precision"], "fp16")
    multiplying = min(1.0, float(full["matmul_percent"]) / 100)
    matmuls = multiplying * rates[full["precision"]] / here.best_tflop_s(precision)
    others = (1 - multiplying) * (1 + is_wider) * rates["memory"] / here.gb_s
    computing_s = float(full["time_s"]) * batch_size / int(full["batch_size"]) * (matmuls + others)
    if model == "tiny_kernels":
        computing_s = 0.0
    launching_s = min(float(row["time_s"]) for row in alike) if model != "wide_linear" else 0.0
    if execution == "compile":  # two hundred small kernels become one
        return nearest, max(launching_s * here.slower_host, computing_s) / 20
    return nearest, max(launching_s * here.slower_host, computing_s)


def _step(config: Any) -> tuple[Any, float]:
    from mfulab.core.said import Said, as_json
    from mfulab.device import identity
    from mfulab.device.samplers.reading import UNTOLD, Reading
    from mfulab.device.samplers.selection import per_step, sources_answered
    from mfulab.measurements.profile_step import ProfileRow
    from mfulab.models.parallel import require_devices
    from mfulab.timing.pace import pace_for

    here, pace = device(), pace_for("cuda", config.timing)
    model, workload = config.model.name, config.workload.name
    require_devices(config.parallel, len(identity.gpus()), Said("a_gpu"))
    call(model)
    mode = config.execution.mode
    recorded, time_s = step_s(model, workload, config.batch_size, config.precision.name, mode)
    memory_bytes = MIG_BYTES if here.mig else here.memory_bytes
    if _needed_bytes(config, recorded) > memory_bytes:
        stand_in_clock.advance(CONTEXT_S + JOB_S)
        raise RuntimeError(
            f"CUDA out of memory. GPU 0 has a total capacity of {memory_bytes / 2**30:.2f} GiB"
        )
    names = {
        name for name in ProfileRow.model_fields if name.endswith("_percent") or name in COPIED
    }
    window_s = pace.windows * max(pace.window_s, time_s)
    readings = per_step(_readings(window_s), max(1, round(window_s / time_s)))
    absent = {
        name: as_json(reading.reason or UNTOLD)
        for name, reading in readings.items()
        if reading.value is None
    }
    values = {name: recorded[name] for name in names - absent.keys() if recorded.get(name)}
    if "clock_mhz" in values:
        values["clock_mhz"] = 0.85 * here.clock_mhz
    warm_up_s = float(recorded["first_call_s"]) + max(0.4 * pace.warm_up_s, 4 * time_s)
    row = ProfileRow.of(config, **values)
    row.effective_precision, row.steady, row.loss = config.precision.name, True, 1.0
    row.time_s = row.median_time_s = time_s
    row.time_p5_s, row.time_p95_s, row.within_spread_percent = 0.995 * time_s, 1.01 * time_s, 0.3
    row.windows, row.steps, row.window_s = pace.windows, round(window_s / time_s), window_s
    row.warm_up_s, row.first_call_s = warm_up_s, float(recorded["first_call_s"])
    row.measured_s = warm_up_s + window_s
    wanted = {"model": model, "workload": workload, "precision": config.precision.name}
    if measured := own("profile", batch_size=config.batch_size, execution=mode, **wanted):
        row = ProfileRow.of(config, **_measured(measured, ProfileRow))
        traced_s = CONTEXT_S + 3 * (TRACED_S.get(model, 0.0) + time_s)
        return row, traced_s + warm_up_s + window_s
    if "utilization_percent" in values:
        row.utilization_source = readings["utilization_percent"].origin
    traced = {"kernel_busy_percent": Reading(1.0, "%", "trace")}
    row.sources_answered = sources_answered({**readings, **traced})
    row.reasons = json.dumps(absent)
    seconds = row.measured_s + _unmeasured_s(config, pace, time_s)
    if mode == "compile":
        row.compile_s = COMPILE_S
        seconds += COMPILE_S
    return row, seconds


def _needed_bytes(config: Any, recorded: Mapping[str, str]) -> float:
    """Device memory of a step, scaled from its recorded row, with CUDA's own."""
    step_bytes = float(recorded["memory_bytes"] or 0)
    step_bytes *= config.batch_size / int(recorded["batch_size"])
    if (config.precision.name, recorded["precision"]) == ("fp32", "bf16"):
        step_bytes *= 2
    return step_bytes + CUDA_BYTES


def _unmeasured_s(config: Any, pace: Any, time_s: float) -> float:
    """Seconds of a step's process outside of its warm-up and windows."""
    is_training = config.workload.name == "training"
    traced_steps = max(1, min(10, round(pace.traced_s / time_s)))
    if not pace.is_traced_once:
        traced_steps += 1
    read_s = TRACED_S.get(config.model.name, 0.0)
    if is_training:
        read_s *= TRACED_TRAINING
    seconds = CONTEXT_S + traced_steps * (read_s + 1.5 * time_s)
    if is_training:
        seconds += pace.window_s
    return seconds


COPIED = {
    *(
        "memory_bytes",
        "memory_source",
        "power_w",
        "clock_mhz",
        "launch_gaps_per_step",
        "launch_gap_s",
        "top_kernels",
    ),
    *(
        "uncounted_operators",
        "top_other_operators",
        "modules",
        "spent",
        "temperature_c",
        "other_processes",
        "sources",
    ),
}


CUDA_BYTES = 600 << 20  # for a context and the libraries' workspaces
# minimum compute capability, as in the kernels
LEAST = {"numba_cuda": (5, 0), "cublas": (5, 0), "cuda_wmma": (7, 0), "cuda_": (7, 0)}


OF_TORCH = ("torch", "torch_scaled")  # their own reference
# Columns of a recorded kernel that are the same on every device.
OF_A_RUNG = ("family", "after", "adds", "relative_error", "tolerance", "reference_name")
# Columns that belong to one run, or are computed from several processes by the tables.
OF_A_RUN = {
    *("hardware", "run", "status", "message", "commit", "started_at", "device_uuid", "process_s"),
    *("replicates", "left_out_replicates", "between_spread_percent", "process_times_s"),
    *("precision_percent", "disturbed_replicates", "slowdown", "time_ci_low_s", "time_ci_high_s"),
    *("machine_cost_percent", "probes", "probe_s", "measured_s"),
}


def _nearest(kernel: str, precision: str, side: int) -> dict[str, str]:
    """Recorded row of a kernel (or of torch) in a format that is nearest in size."""
    rows = [
        row for row in _recorded("matmul") if row["batch"] == "1" and row["precision"] == precision
    ]
    of_kernel = [row for row in rows if row["kernel"] == kernel]
    of_kernel = of_kernel or [row for row in rows if row["kernel"] == "torch"]
    return min(of_kernel, key=lambda row: abs(math.log(int(row["n"]) / side)))


def _matmul(config: Any) -> tuple[Any, float]:
    from mfulab.device import gpu
    from mfulab.kernels.devices import require_capability
    from mfulab.measurements.bench_matmul import MatmulRow

    name, (batch, m, n, k), here = config.kernel.name, config.shape, device()
    gpu.capability_of = lambda device=None: here.capability
    least = next((least for begin, least in LEAST.items() if name.startswith(begin)), (0, 0))
    require_capability(f"{name} in {config.precision.name}", least)
    precision = "bf16" if config.precision.name == "fp16" else config.precision.name
    wrong = _faults()
    call(name)
    wanted = {"kernel": name, "size": config.size, "precision": config.precision.name}
    recorded = own("matmul", **wanted) or _nearest(name, precision, n)
    flops = 2 * batch * m * n * k
    if recorded["hardware"] == here.recording and recorded["size"] == config.size:
        row = MatmulRow.of(config, **_measured(recorded, MatmulRow))
    else:
        row = MatmulRow.of(
            config,
            **{key: recorded[key] for key in OF_A_RUNG if recorded[key]},
            batch=batch,
            m=m,
            n=n,
            k=k,
            flops=flops,
            effective_precision=config.precision.name,
        )
        share = flops / float(recorded["flops"])
        share *= _rates(recorded["hardware"])[precision] / here.best_tflop_s(config.precision.name)
        row.time_s = max(1e-5, float(recorded["time_s"]) * share)
        row.median_time_s = row.hot_time_s = row.time_s
        row.cold_time_s = 1.01 * row.time_s
        row.reference_time_s = row.time_s
        reference_s = recorded.get("reference_time_s")
        # torch beside torch: their clocks differed while they were recorded
        if reference_s and recorded["kernel"] not in OF_TORCH:
            row.reference_time_s *= float(reference_s) / float(recorded["time_s"])
        row.clock_mhz = row.reference_clock_mhz = 0.85 * here.clock_mhz
    if ("spill", name) in wrong:
        row.spill_bytes = 512
        row.time_s = row.median_time_s = row.hot_time_s = 4 * row.time_s
    if ("clock", name) in wrong:
        row.clock_mhz, row.reference_clock_mhz = 0.7 * here.clock_mhz, 0.9 * here.clock_mhz
    row.repetitions = config.timing.windows or 3
    time_s, beside_s = row.time_s, row.reference_time_s
    group_s, settle_s = config.timing.window_time_s or 0.1, config.timing.warm_up_time_s or 0.3
    contestants = (time_s, beside_s) if row.reference_name else (time_s,)
    rounds = max(row.repetitions, len(contestants))
    round_s = 0.0
    for call_s in contestants:
        if call_s < settle_s:
            round_s += settle_s
        round_s += max(group_s, call_s) + call_s
    row.measured_s = settle_s + rounds * round_s
    longest_first = sorted(MATMUL_S, key=len, reverse=True)
    prefix = next((prefix for prefix in longest_first if name.startswith(prefix)), None)
    started_s = MATMUL_S[prefix] if prefix else 1.0
    return row, started_s + 2 * time_s + row.measured_s


IMPORT = "from mfulab.lab.runtime import stand_in_clock as time"
INSTALLED = "from support import gpu_stand_in\ngpu_stand_in.install()"
# Modules that measure the time of a sweep.
CLOCKED = (
    "lab/runtime/budget",
    "lab/runtime/run",
    "lab/planning/costs",
    "lab/planning/workflow",
    "cli/refine",
)
# A run's third process waits for the third card. Else which cards share a run would depend on how
# fast this host starts processes.
SHARED_OUT = r"""\1
    if count == 1 and candidates:
        number = config_path.partition("replicate=")[2].split("/")[0].split(",")[0]
        card = (int(number or 1) - 1) % len(candidates)
        candidates = [candidates[card]]"""
# Edits of a copy of the project, as (file, pattern, replacement): use the clock and the emulated
# device's number of cores, and share runs out over its cards.
EDITS = (
    ("src/mfulab/lab/runtime/devices.py", r"(?m)^(    candidates = _candidates\(.*)$", SHARED_OUT),
    *((f"src/mfulab/{name}.py", r"(?m)^import time$", IMPORT) for name in CLOCKED),
    (
        "src/mfulab/lab/runtime/run.py",
        r"datetime\.now\(UTC\)",
        "datetime.fromtimestamp(time.time(), UTC)",
    ),
    ("src/mfulab/lab/runtime/client.py", r"(?m)^import time$", ""),
    (
        "src/mfulab/lab/runtime/client.py",
        r"(?m)^(from mfulab\.lab\.runtime import budget.*)$",
        rf"\1\n{IMPORT}",
    ),
    ("src/snakemake_logger_plugin_mfulab/__init__.py", r"(?m)^import time$", IMPORT),
    ("src/mfulab/lab/runtime/forked.py", r"usable_cores\(\)\)", "device().cores)"),
    (
        "src/mfulab/lab/runtime/forked.py",
        r"(?m)^from mfulab.device.cpu.*$",
        "from support.gpu_stand_in import device",
    ),
    ("Snakefile", r"(?m)^from snakemake.utils", f"{INSTALLED}\nfrom snakemake.utils"),
)
RUN = """import sys
from support import gpu_stand_in
gpu_stand_in.main(sys.argv.pop(1))
"""
COMMAND = """from support import gpu_stand_in
gpu_stand_in.command()
"""


def main(step: str) -> None:
    """Replaces scripts/run.py. Steps that need no device run for real, but are charged their
    recorded time."""
    install()
    import types

    from mfulab.lab.runtime import run

    if "--failed" in sys.argv:
        stand_in_clock.advance(JOB_S)
    # the first run also waits for the worker, which does not count as its own time
    elif step == "environment":
        stand_in_clock.advance(WORKER_S * device().slower_host)
    if step == "count_flops":
        counted_s = next(
            (seconds for model, seconds in COUNTED_S.items() if f"model={model}" in sys.argv[-1]),
            0.25,
        )
        stand_in_clock.advance(JOB_S + counted_s * device().slower_host)
    else:
        module = types.ModuleType(f"mfulab.measurements.{step}.measure")
        module.measure = functools.partial(measure, step)  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    try:
        run.main(step)
    finally:
        if "--failed" not in arguments:
            _note(f"{step} {Path(arguments['--config']).parent.name}")


def _note(words: str) -> None:
    """Records an event with the time of the clock."""
    with Path(f"{os.environ[stand_in_clock.CLOCK]}.events").open("a", encoding="utf-8") as file:
        file.write(json.dumps([stand_in_clock.time(), words]) + "\n")


def command() -> None:
    """Replaces scripts/command.py. Charges the processor time of the command."""
    install()
    from mfulab.cli.main import main as mfulab
    from mfulab.lab.runtime.server import REPORT

    for name in REPORT:  # the worker imports these before it forks a command
        importlib.import_module(name)

    status: Any = 0
    before = os.times()
    try:
        status = mfulab()
    except SystemExit as end:
        status = end.code
    now = os.times()
    own = now.user + now.system - before.user - before.system
    others = now.children_user + now.children_system - before.children_user - before.children_system
    is_first = not Path("reports/report.html").exists() and sys.argv[1] == "page"
    if sys.argv[1] != "refine":  # its runs charge for it
        took_s = HOST * (own + others / device().cores) + FIRST_FONTS_S * is_first
        stand_in_clock.advance(JOB_S + device().slower_host * took_s)
    _note(sys.argv[1])
    sys.exit(status)


@dataclass(frozen=True)
class Swept:
    """Result of a sweep. Times are simulated seconds since the command began."""

    folder: Path
    output: str
    total_s: float
    events: list[tuple[float, str]]  # time at which each job ended, and its name


def prepare(folder: Path, figures: tuple[str, ...] = ()) -> Path:
    """Copies the project into `folder` so that it measures on the emulated device. `figures` limits
    the figures of the page."""
    copy_workflow(folder, with_source=True)
    if figures:
        draw_only(folder, figures)
    for name, pattern, text in EDITS:
        path = folder / name
        edited, count = re.subn(pattern, text, path.read_text(encoding="utf-8"))
        assert count, f"{name}: nothing like {pattern}"
        path.write_text(edited, encoding="utf-8")
    shutil.copy(stand_in_clock.__file__, folder / "src/mfulab/lab/runtime")
    (folder / "scripts/run.py").write_text(RUN)
    (folder / "scripts/command.py").write_text(COMMAND)
    (folder / "results").mkdir()
    (folder / "results/reference").symlink_to(ROOT / "results/reference")
    return folder


def sweep(
    folder: Path, name: str, *config: str, target: str = "report", options: Sequence[str] = ()
) -> Swept:
    """Runs the main command in a copy made by `prepare`, on the device `name`. Snakemake's
    `options` are for several cards."""
    began = 1_790_000_000.0
    clock = folder / "clock"
    if not clock.exists():
        clock.write_bytes(struct.pack("d", began))
    before = struct.unpack("d", clock.read_bytes())[0]
    clock.write_bytes(struct.pack("d", before + stand_in_clock.START_S))
    environment = {
        **{
            key: value
            for key, value in os.environ.items()
            if key not in ("MFULAB_WORKER", "CUDA_VISIBLE_DEVICES")
        },
        "PYTHONPATH": os.pathsep.join((str(folder / "src"), str(ROOT / "tests"))),
        stand_in_clock.CLOCK: str(clock),
        DEVICE: name,
        "MFULAB_LOCKS": str(folder),
    }
    overrides = ["--config", *config] if config else []
    command_line = [sys.executable, "-m", "snakemake", target, "--cores", "1", *options, *overrides]
    done = subprocess.run(
        command_line,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    ended = struct.unpack("d", clock.read_bytes())[0]
    events = map(json.loads, Path(f"{clock}.events").read_text(encoding="utf-8").splitlines())
    return Swept(
        folder,
        done.stdout,
        ended - before,
        [(at - before, label) for at, label in events if at >= before],
    )


def rows(folder: Path, step: str) -> list[dict[str, str]]:
    """Measured rows of a step, of each run's first process."""
    found = []
    for path in sorted(folder.glob(f"results/*/{step}/*/row.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found += [
                row
                for row in csv.DictReader(file)
                if row["status"] == "ok" and "replicate=" not in row["run"]
            ]
    return found


def sentence(folder: Path) -> str:
    """First sentence of the page."""
    page = (folder / "reports/report.html").read_text(encoding="utf-8")
    found = re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", found[1] if found else "")).split())
