"""Basic facts about a GPU in under two minutes: which counters answer, and the speed of copies and
large matmuls.

    python validation/gpu_facts.py [--out facts.json] [--quick]

Every fact comes from the samplers and products that the measurements use. A failing probe reports
why, and the others continue. Without a GPU it says so, and reports facts about the CPU.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import executed_operations
import psutil
import torch

from mfulab.core.groups import DeviceConfig
from mfulab.device import cpu, gpu, vendors
from mfulab.device.compute import allow_tf32, prepare
from mfulab.device.gpu import clock_reader
from mfulab.device.identity import NoDeviceError, hardware_slug
from mfulab.device.local_peak import peak_of
from mfulab.device.samplers.reading import Readings
from mfulab.device.samplers.selection import samplers_for
from mfulab.device.samplers.series import Series
from mfulab.device.vendors import nvidia
from mfulab.lab.runtime.run import commit
from mfulab.measurements.environment import measure as environment
from mfulab.mfu.account import shares_of
from mfulab.mfu.step import Counters, StepFacts, StepPeaks, StepTime, StepWork
from mfulab.timing.best_matmul import matmul_of, sweep_triad
from mfulab.timing.clocks import clock_for
from mfulab.timing.pace import CPU_PACE, Pace
from mfulab.timing.transfers import time_transfers
from mfulab.timing.windows import Observation, Step, observe
from mfulab.tracing.operators import trace_readings, trace_steps

Facts = dict[str, Any]
SIZE = 8192
# Five windows that together exceed the 5 s that the energy counter needs.
PACE = Pace(windows=5, window_s=1.05, warm_up_s=2.0, tolerance=0.02)
QUICK = Pace(windows=2, window_s=0.3, warm_up_s=0.3, tolerance=0.05)
PRECISIONS = ("bf16", "tf32", "fp32")
COPIED_BYTES = 1 << 30


def watched(step: Step, device: torch.device, pace: Pace) -> Observation:
    """Runs a step over steady windows with every sampler of the device, like profile_step."""
    with tempfile.TemporaryDirectory() as folder:
        series = Series(device, Path(folder) / "series.csv").open()
        try:
            return observe(
                step, clock_for(device), pace, samplers_for(device, [series]), clock_reader(device)
            )
        finally:
            series.close()


def as_facts(readings: Readings) -> Facts:
    """Readings as values with unit and source, or with the reason why there is no value."""
    facts: Facts = {}
    for name, reading in sorted(readings.items()):
        facts[name] = {"value": reading.value, "unit": reading.unit, "source": reading.origin}
        if reading.value is None:
            facts[name] = {"value": None, "reason": str(reading.reason)}
    return facts


def software(device: torch.device) -> Facts:
    """Versions, driver, and paths of tools."""
    return {
        "commit": commit(),
        "packages": environment.packages(),
        "operating_system": environment.operating_system(),
        "driver": nvidia.Nvidia().driver(),
        "cuda": torch.version.cuda,
        "snakemake": shutil.which("snakemake"),
        "nvcc": shutil.which("nvcc"),
        "cpu": cpu.cpu().name,
        "cores": cpu.usable_cores(),
        "memory_gb": psutil.virtual_memory().total / 1e9,
    }


def properties(device: torch.device) -> Facts:
    """Description of the GPU by its driver, and its peak in each precision."""
    peaks = {
        name: peak_of(device, 1, name, DeviceConfig())
        for name in ("fp64", "fp32", "tf32", "bf16", "fp8", "int8")
    }
    return {
        "slug": hardware_slug("cuda"),
        **vendors.of(gpu.uuid_of(device)).describe_all()[0],
        "restriction": gpu.restriction_of(device) or None,
        "computed_tflop_s": {name: peak.spec for name, peak in peaks.items()},
        "no_peak_because": {name: peak.reason for name, peak in peaks.items() if peak.spec is None},
    }


def rate(precision: str, pace: Pace) -> Callable[[torch.device], Facts]:
    """Returns a probe that measures a matmul of 8192³ in a precision, with the readings of all
    samplers."""

    def measure(device: torch.device) -> Facts:
        allow_tf32(precision == "tf32")
        seen = watched(matmul_of(precision, SIZE, SIZE, SIZE, device), device, pace)
        medians = [window.median_s for window in seen.windows]
        clock, peak = seen.readings.get("clock_mhz"), peak_of(device, 1, precision, DeviceConfig())
        peaks = StepPeaks("spec", peak_tflop_s=peak.spec, peak_clock_mhz=peak.spec_clock_mhz)
        counters = Counters(clock_mhz=clock.value if clock else None)
        time = StepTime(seen.time_s)
        shares = shares_of(StepFacts(time, StepWork(2 * SIZE**3), peaks, counters))
        return {
            "tflop_s": shares.tflop_s,
            "share_of_peak_at_its_clock_percent": shares.mfu_actual_clock_percent,
            "spread_of_windows_percent": 100 * (max(medians) - min(medians)) / seen.time_s,
            "steady": seen.warm_up.steady,
            **as_facts(seen.readings),
        }

    return measure


def copies(device: torch.device) -> Facts:
    """Bandwidths in 10⁹ byte/s: to and from the host, inside the device (read plus written), and of
    the triad."""
    source = torch.randn(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    times = time_transfers([source], target)
    inside = observe(lambda: target.copy_(source), clock_for(device), QUICK)
    triad = [float(str(sample["gb_s"])) for sample in sweep_triad(device)]
    return {
        **{
            f"{name.removesuffix('_s')}_gb_s": COPIED_BYTES / seconds / 1e9
            for name, seconds in times.items()
        },
        "device_to_device_gb_s": 2 * COPIED_BYTES / inside.time_s / 1e9,
        "triad_gb_s": sorted(triad)[len(triad) // 2],
    }


def profiler(device: torch.device) -> Facts:
    """Kernels of a small matmul in torch.profiler, with the readings from its trace."""
    step = matmul_of("bf16", 2048, 2048, 2048, device)
    readings, analysis = trace_readings(trace_steps(step, device, 10), device)
    return {
        "kernels": [row["kernel"] for row in analysis.kernels] if analysis else [],
        **as_facts(readings),
    }


def counters(device: torch.device) -> Facts:
    """Comparison of counted and executed operations of one matmul, with the version of Nsight
    Compute."""
    found = executed_operations.compare("product")
    if not found["executed_operations"]:
        return {"ncu": None, "version": None, **found}
    ncu = executed_operations.find_ncu()
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    return {"ncu": ncu, "version": version.strip().splitlines()[-1:] or None, **found}


def collect(
    probes: dict[str, Callable[[torch.device], Facts]],
    device: torch.device,
    out: Path | None = None,
) -> Facts:
    """Facts from every probe, with the seconds that it took. A failing probe leaves its error
    instead.

    Writes `out` after each probe, so that an interruption keeps earlier results.
    """
    found: Facts = {}
    for name, probe in probes.items():
        began = time.perf_counter()
        try:
            facts = probe(device)
        except Exception as error:  # any error is recorded, and the next probe may still work
            facts = {"error": f"{type(error).__name__}: {error}"}
        found[name] = {**facts, "took_s": round(time.perf_counter() - began, 1)}
        print(f"\n{name}\n{describe(found[name])}", flush=True)
        if out:
            out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def describe(facts: Facts) -> str:
    """Facts as text, one per line."""
    return "\n".join(f"  {name:38} {_words(value)}" for name, value in facts.items())


def _words(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"value", "unit", "source"}:
        return f"{_words(value['value'])} {value['unit']}  ({value['source']})"
    if isinstance(value, dict) and set(value) == {"value", "reason"}:
        return f"-  ({value['reason']})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(inner)}" for name, inner in value.items()) or "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def on_cpu(device: torch.device) -> Facts:
    """Facts about a machine without a GPU: the rate of one matmul and the CPU's readings."""
    seen = watched(matmul_of("fp32", 1024, 1024, 1024, device), device, CPU_PACE)
    return {"fp32_1024_tflop_s": 2 * 1024**3 / seen.time_s / 1e12, **as_facts(seen.readings)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the facts as they are found, and writes them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write JSON")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short windows: no energy, and numbers not to be quoted",
    )
    options = parser.parse_args(arguments)
    pace = QUICK if options.quick else PACE
    try:
        device, _ = prepare(DeviceConfig(type="cuda"))
    except NoDeviceError as error:
        device, _ = prepare(DeviceConfig(type="cpu"))
        print(f"No GPU to tell facts about: {error}")
        probes: dict[str, Callable[[torch.device], Facts]] = {"software": software, "cpu": on_cpu}
    else:
        probes = {
            "software": software,
            "device": properties,
            "copies": copies,
            "profiler": profiler,
        }
        probes |= {f"{name} {SIZE}³": rate(name, pace) for name in PRECISIONS}
        probes["nsight compute"] = counters
    collect(probes, device, options.out)


if __name__ == "__main__":
    main()
