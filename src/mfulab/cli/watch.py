"""`mfulab watch`: the ladder of a running device in a terminal, once a second, whoever keeps it busy."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import click
import psutil
from click.core import ParameterSource
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.terminal import Terminal
from mfulab.device import GPU, cpu, identity, is_gpu, vendors
from mfulab.device.emulation import emulated_here
from mfulab.device.local_peak import local_peak
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.samplers.series import cpu_probe
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.loop.interactive.published import Rate, folder, rates, why_unsafe
from mfulab.loop.interactive.show import bar, ladder_table
from mfulab.mfu.ladder import TENSOR_PRECISIONS, Facts
from mfulab.mfu.utilization import total, utilization
from mfulab.mfu.verdict import LEAST_CHECKED, expected_mfu

# What the line below a GPU's ladder says, each in a unit.
GPU_FACTS = {"clock_mhz": (1.0, "{:.0f} MHz"), "power_w": (1.0, "{:.0f} W"), "temperature_c": (1.0, "{:.0f} °C")}
GPU_FACTS |= {"device_memory_bytes": (1e9, "{:.1f} GB in use"), "other_processes": (1.0, "{:.0f} process(es)")}
PARTED = 1.2  # times as much as the other from which counted MFU and the tensor pipe's contradict one another
Frame = tuple[Mapping[str, Any], Any]
"""A sample, for JSON and Prometheus, and what is drawn of it."""


def frames(
    device: str, uuid: str, wait: Callable[[], None], now: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[Readings, str]]:
    """The readings over each `wait`, and a line of further facts, for ever."""
    if is_gpu(device):
        vendor = vendors.of(uuid)
        try:
            counters, probe = vendor.samplers(uuid, (), now)[0], vendor.probe(uuid, None)
        except vendors.RefusedError as refusal:
            raise ConfigurationError(f"{uuid} cannot be watched: {refusal}") from refusal
        while True:
            counters.start()
            wait()
            readings, line = counters.stop(), probe()
            for name in ("utilization_percent", *GPU_FACTS):
                readings[name] = Reading(line[name], "", vendor.SOURCE, reason="refused by the driver")
            numbers = ((unit, form, line[name]) for name, (unit, form) in GPU_FACTS.items())
            yield readings, " · ".join(form.format(value / unit) for unit, form, value in numbers if value is not None)
    cores = cpu.usable_cores()
    probe, switches = cpu_probe(psutil.Process().pid, cores), psutil.cpu_stats().ctx_switches
    while True:
        began = now()
        wait()
        line, passed, before = probe(), now() - began, switches
        switches = psutil.cpu_stats().ctx_switches
        busy, stolen = line["system_utilization_percent"], line["steal_percent"]
        readings = {"utilization_percent": Reading(busy, "%", "all processes", passed, "no 10 ms tick passed")}
        steal = "" if stolen is None else f"{stolen:.1f} % stolen · "
        rate = (switches - before) / passed
        yield readings, f"all processes on {cores} cores · {steal}{rate:.0f} context switches/s"


def sample_of(name: str, uuid: str, readings: Readings, rates: Sequence[Rate], now: float) -> dict[str, Any]:
    """Current readings as one mapping: the device's columns, MFU by hardware counters, and its processes."""
    values: dict[str, Any] = {key: reading.value for key, reading in readings.items()}
    # Which format the tensor pipe worked in it does not report; all of them have one clock.
    facts = {"effective_precision": "bf16", "peak_clock_mhz": local_peak("fp16").spec_clock_mhz if uuid else None}
    values["expected_mfu_percent"] = expected_mfu(Facts(values | facts))
    processes = [process_of(rate, GPU if uuid else "cpu") for rate in rates if rate.device == (uuid or "cpu")]
    on_tensor_cores = processes and all(process["precision"] in TENSOR_PRECISIONS for process in processes)
    counted = total(*(process["mfu_spec_percent"] for process in processes)) if on_tensor_cores else None
    values["counted_mfu_percent"] = counted
    return {"unix_s": now, "name": name, "uuid": uuid or None, **values, "processes": processes}


def process_of(rate: Rate, device: str) -> dict[str, Any]:
    """A measured process: its rate, and its MFU of the computed peak of the formats that it multiplies in."""
    instead = emulated_here(device)
    peaks = {name: local_peak("fp32" if name in instead else name).spec or 0.0 for name in rate.formats}
    peak = {"computed_tflop_s": weighted_peak_flop_s(rate.formats, peaks)}
    shares = utilization(1.0, device=device, flops=sum(rate.formats.values()), compute=peak, memory={})
    process = {"pid": rate.pid, "name": rate.name, "precision": max(rate.formats, key=rate.formats.__getitem__)}
    return process | {name: shares[name] for name in ("tflop_s", "mfu_spec_percent")} | {"step_s": rate.step_s}


def parted(sample: Mapping[str, Any]) -> str | None:
    """Sentence that names whose FLOPs may be wrong, where counted MFU and the tensor pipe's part by over 20 %."""
    ofu, counted = sample["expected_mfu_percent"], sample.get("counted_mfu_percent")
    if ofu is None or counted is None or max(ofu, counted) < LEAST_CHECKED:
        return None
    most = max(sample["processes"], key=lambda process: process["mfu_spec_percent"])
    whose, both = f"{most['name']} ({most['pid']})", f"tensor pipe × clock {ofu:.1f} %, counted {counted:.1f} %"
    if counted > PARTED * ofu:
        return f"{both}: more is counted than ran. FLOPs or number format of {whose} are wrong, or it paused"
    causes = "recomputation, padding to tiles, slow instructions, a process that does not measure itself"
    ran = f"{both}: more ran than is counted. {causes}, or {whose} counts too few FLOPs"
    return ran if ofu > PARTED * counted else None


def picture(sample: Mapping[str, Any], readings: Readings, facts: str) -> Group:
    """One refresh of the terminal."""
    missing = {reading.reason for key, reading in readings.items() if reading.value is None and key.startswith("sm_")}
    lines: list[Any] = [Text(sample["name"], style="bold"), ladder_table(sample, readings), Text(facts)]
    lines += [Text(f"finer rungs: {reason}", style="dim") for reason in missing]
    if (expected := sample["expected_mfu_percent"]) is not None:
        lines.append(Text(f"MFU by tensor pipe × clock, recomputation and padding included: {expected:.1f} %"))
    for process in sample["processes"]:
        mfu, rate = process["mfu_spec_percent"], f"{process['tflop_s']:.3g} TFLOP/s in {process['precision']}"
        share = "no MFU: its peak is unknown" if mfu is None else f"MFU {mfu:.1f} % of the spec peak {bar(mfu)}"
        step = f"{1e3 * process['step_s']:.1f} ms a step"
        lines.append(Text(f"{process['name']} ({process['pid']}): {rate}, {step}, {share}", style="green"))
    if sentence := parted(sample):
        lines.append(Text(sentence, style="yellow"))
    if unsafe := why_unsafe(folder()):
        lines.append(Text(f"no measured processes: {unsafe}", style="yellow"))
    if not sample["processes"] and sample["expected_mfu_percent"] is None:
        lines.append(Text("busy is not useful: MFU needs a process that measures itself (mfulab.measure)", style="dim"))
    return Group(*lines)


def run(
    device: Any,
    interval_s: float,
    count: int | None,
    as_json: bool,
    prometheus: int | None,
    engines: Sequence[str],
    jobs: str | None,
    hours: float,
    **of_engines: Any,
) -> int:
    """Watches the device, or `engines` or `jobs` instead, every `interval_s` seconds; returns the exit status. Raises
    ConfigurationError for an option of what is not watched."""
    for option, names, value in (("--engine", of_engines, engines), ("--jobs", ["hours"], jobs)):
        if not value and (alone := next(filter(_is_given, names), None)):
            raise ConfigurationError(f"--{alone}: is of {option}, which is missing; give {option} URL too")
    if jobs and engines:
        raise ConfigurationError("--jobs and --engine: give one of them")
    if jobs:
        from mfulab.cli.jobs import frames as of_cluster

        return follow(of_cluster(jobs, hours, interval_s), count or 1, as_json, prometheus)
    if engines:
        from mfulab.cli import engines as serving

        return follow(serving.frames(engines, interval_s, **of_engines), count, as_json, prometheus)
    kind = identity.resolve(device)
    local = next(iter(identity.gpus(kind)), None)
    name, uuid = (local.name, local.uuid) if local else (cpu.cpu().name, "")

    def of_device() -> Iterator[Frame]:
        for readings, facts in frames(kind, uuid, lambda: time.sleep(interval_s)):
            sample = sample_of(name, uuid, readings, rates(), time.time())
            yield sample, picture(sample, readings, facts)

    return follow(of_device(), count, as_json, prometheus)


def _is_given(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def follow(source: Iterator[Frame], count: int | None, as_json: bool, prometheus: int | None) -> int:
    """Shows what `source` gives, as it gives it, until interrupted or for `count` times; returns 0."""
    with ExitStack() as stack:
        console, live, page = Terminal(), None, None
        if prometheus is not None:
            from mfulab.cli.export import prometheus_page

            page = stack.enter_context(prometheus_page(prometheus))
        with suppress(KeyboardInterrupt):
            for number, (sample, shown) in enumerate(source, start=1):
                if page:
                    page.sample = sample
                if as_json:
                    print(json.dumps(sample, ensure_ascii=False), flush=True)
                elif count == 1:
                    console.print(shown)
                else:
                    live = live or stack.enter_context(Live(console=console, auto_refresh=False))
                    live.update(shown, refresh=True)
                if number == count:
                    break
    return 0
