"""`mfulab watch`: shows the utilization ladder of a running device in a terminal, once a second,
whichever process uses it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import click
import psutil
from click.core import ParameterSource
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mfulab.cli.options import (
    ADDRESS,
    COUNT,
    DEVICE,
    DEVICE_KIND,
    HOURS,
    LANGUAGE,
    MODEL,
    PRECISION,
    PROMETHEUS,
    SECONDS,
    command,
    several,
)
from mfulab.core.answer import Answer, Doubt, answered, unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import in_percent, quantity, significant
from mfulab.core.parts import Record, Row
from mfulab.core.printing import say_json
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal
from mfulab.device import GPU, cpu, identity, is_gpu, vendors
from mfulab.device.emulation import emulated_here
from mfulab.device.local_peak import local_peak
from mfulab.device.samplers.reading import REFUSED_BY_DRIVER, UNTOLD, Now, Reading, Readings
from mfulab.device.samplers.series import cpu_probe
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.loop.interactive.published import Rate, folder, rates, why_unsafe
from mfulab.loop.interactive.show import bar, ladder_table
from mfulab.mfu.account import expected_mfu, shares_of
from mfulab.mfu.causes import LEAST_CHECKED
from mfulab.mfu.ladder import TENSOR_PRECISIONS
from mfulab.mfu.step import StepFacts, StepPeaks, StepTime, StepWork, facts_of
from mfulab.mfu.utilization import default_basis, total

# Facts in the line below a GPU's ladder.
GPU_FACTS: dict[str, Callable[[Texts, float], str]] = {
    "clock_mhz": lambda text, clock: quantity(1e6 * clock, "Hz", 4),
    "power_w": lambda text, power: quantity(power, "W"),
    "temperature_c": lambda text, temperature: quantity(temperature, "°C"),
    "device_memory_bytes": lambda text, used: text("memory_in_use", used=used),
    "other_processes": lambda text, count: text("other_processes", count=count),
}
# Ratio above which counted MFU and MFU by the tensor pipe contradict each other.
CONTRADICTED = 1.2
Frame = tuple[Row, Any]
"""A sample, for JSON and Prometheus, and a rich renderable that shows it."""


def frames(
    device: str,
    uuid: str,
    wait: Callable[[], None],
    now: Now = time.perf_counter,
    language: str = "en",
) -> Iterator[tuple[Readings, str]]:
    """Yields the readings over each `wait`, with a line of further facts, without end. Raises
    ConfigurationError if the driver refuses to be read."""
    text = Texts(language, "watch")
    if is_gpu(device):
        return _of_gpu(uuid, wait, now, text)
    return _of_cpu(wait, now, text)


def _of_gpu(
    uuid: str, wait: Callable[[], None], now: Now, text: Texts
) -> Iterator[tuple[Readings, str]]:
    vendor = vendors.of(uuid)
    try:
        counters = vendor.samplers(uuid, (), now)[0]
        probe = vendor.probe(uuid, None)
    except vendors.RefusedError as refusal:
        raise ConfigurationError(
            Said("cannot_be_watched", device=uuid, why=refusal.said)
        ) from refusal
    while True:
        counters.start()
        wait()
        readings = counters.stop()
        line = probe()
        for name in ("utilization_percent", *GPU_FACTS):
            readings[name] = Reading(line[name], "", vendor.SOURCE, reason=REFUSED_BY_DRIVER)
        facts = list[str]()
        for name, describe in GPU_FACTS.items():
            value = line[name]
            if value is not None:
                facts.append(describe(text, value))
        yield readings, " · ".join(facts)


def _of_cpu(wait: Callable[[], None], now: Now, text: Texts) -> Iterator[tuple[Readings, str]]:
    cores = cpu.usable_cores()
    probe = cpu_probe(psutil.Process().pid, cores)
    switches = psutil.cpu_stats().ctx_switches
    while True:
        began = now()
        wait()
        line = probe()
        passed = now() - began
        before = switches
        switches = psutil.cpu_stats().ctx_switches
        busy = line["system_utilization_percent"]
        stolen = line["steal_percent"]
        utilization = Reading(busy, "%", "all processes", passed, Said("no_tick_passed"))
        facts = [text("all_processes", cores=cores)]
        if stolen is not None:
            facts.append(text("stolen", share=in_percent(stolen)))
        facts.append(text("switches", rate=significant((switches - before) / passed)))
        yield {"utilization_percent": utilization}, " · ".join(facts)


def sample_of(
    name: str, uuid: str, readings: Readings, rates: Sequence[Rate], now: float
) -> Record:
    """Current readings as one mapping: columns of the device, MFU by hardware counters, and
    measured processes."""
    values: Record = {key: reading.value for key, reading in readings.items()}
    # The counters do not report the number format; all formats have the same peak clock.
    facts = {
        "effective_precision": "bf16",
        "peak_clock_mhz": local_peak("fp16").spec_clock_mhz if uuid else None,
    }
    values["expected_mfu_percent"] = expected_mfu(facts_of(values | facts))
    processes = []
    for rate in rates:
        if rate.device == (uuid or "cpu"):
            processes.append(process_of(rate, GPU if uuid else "cpu"))
    on_tensor_cores = processes and all(
        process["precision"] in TENSOR_PRECISIONS for process in processes
    )
    counted = None
    if on_tensor_cores:
        counted = total(*(process["mfu_spec_percent"] for process in processes))
    values["counted_mfu_percent"] = counted
    return {"unix_s": now, "name": name, "uuid": uuid or None, **values, "processes": processes}


def process_of(rate: Rate, device: str) -> Record:
    """Row of a measured process: its rate, and its MFU against the computed peak of the formats in
    which it multiplies."""
    emulated = emulated_here(device)
    peaks = dict[str, float]()
    for name in rate.formats:
        executed = "fp32" if name in emulated else name
        peaks[name] = local_peak(executed).spec or 0.0
    peak_tflop_s = weighted_peak_flop_s(rate.formats, peaks)
    facts = StepFacts(
        StepTime(1.0),
        StepWork(flops=sum(rate.formats.values())),
        StepPeaks(basis=default_basis(device), peak_tflop_s=peak_tflop_s),
    )
    shares = shares_of(facts)
    return {
        "pid": rate.pid,
        "name": rate.name,
        "precision": max(rate.formats, key=rate.formats.__getitem__),
        "tflop_s": shares.tflop_s,
        "mfu_spec_percent": shares.mfu_spec_percent,
        "step_s": rate.step_s,
    }


def contradiction(sample: Row) -> Said | None:
    """Sentence naming the process whose FLOPs may be wrong, if counted MFU and MFU by the tensor
    pipe differ by over 20 %; else None."""
    ofu = sample["expected_mfu_percent"]
    counted = sample.get("counted_mfu_percent")
    if ofu is None or counted is None or max(ofu, counted) < LEAST_CHECKED:
        return None
    largest = max(sample["processes"], key=lambda process: process["mfu_spec_percent"])
    numbers: Numbers = {"ofu": ofu, "counted": counted, "process": _named(largest)}
    if counted > CONTRADICTED * ofu:
        return Said("more_counted", numbers)
    if ofu > CONTRADICTED * counted:
        return Said("more_ran", numbers)
    return None


def picture(sample: Row, readings: Readings, facts: str, language: str = "en") -> Group:
    """Draws one refresh of the terminal."""
    text = Texts(language, "watch")
    missing = set[Said]()
    for key, reading in readings.items():
        if reading.value is None and key.startswith("sm_"):
            missing.add(reading.reason or UNTOLD)
    lines: list[Any] = [
        Text(sample["name"], style="bold"),
        ladder_table(sample, readings, language),
        Text(facts),
    ]
    for reason in missing:
        why = verdicts.say(reason, language)
        lines.append(Text(text("finer_rungs", reason=why), style="dim"))
    expected = sample["expected_mfu_percent"]
    if expected is not None:
        lines.append(Text(text("by_tensor_pipe", share=in_percent(expected))))
    for process in sample["processes"]:
        lines.append(Text(_process_line(process, text), style="green"))
    doubt = contradiction(sample)
    if doubt is not None:
        lines.append(Text(verdicts.say(doubt, language), style="yellow"))
    unsafe = why_unsafe(folder())
    if unsafe:
        why = verdicts.say(unsafe, language)
        lines.append(Text(text("unsafe_folder", reason=why), style="yellow"))
    if not sample["processes"] and expected is None:
        lines.append(Text(text("busy_is_not_useful"), style="dim"))
    return Group(*lines)


def _named(process: Row) -> str:
    return f"{process['name']} ({process['pid']})"


def _process_line(process: Row, text: Texts) -> str:
    """Line with rate, step time and MFU of a measured process."""
    share = process["mfu_spec_percent"]
    mfu = text("process_without_peak")
    if share is not None:
        mfu = text("process_mfu", share=in_percent(share), bar=bar(share))
    columns = {name: process[name] for name in ("tflop_s", "precision", "step_s")}
    return text("process", process=_named(process), mfu=mfu, **columns)


@command(
    "watch",
    "watch --engine http://localhost:8000/metrics --model llama_3_1_8b",
    more=(
        "With --engine: throughput, latency, MFU and MBU of serving engines, by the pages that "
        "they have for Prometheus. With --jobs: a table of a cluster's jobs by user, utilization "
        "beside OFU, from a Prometheus server that scrapes DCGM."
    ),
)
@DEVICE_KIND
@click.option(
    "--interval", "interval_s", type=SECONDS, default=1.0, help="Seconds between refreshes."
)
@click.option("--count", type=COUNT, help="Stop after this many refreshes.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one line of JSON per refresh instead of the ladder.",
)
@several(
    "--engine",
    "engines",
    type=ADDRESS,
    metavar="URL…",
    help="Metrics pages of vLLM, SGLang or another mfulab watch.",
)
@click.option(
    "--model",
    type=MODEL,
    help="Model that the engines serve, written as for mfulab flops; splits MFU into prefill and decoding.",
)
@click.option(
    "--precision",
    type=PRECISION,
    default="bf16",
    help="Number format of an engine's weights and matmuls.",
)
@click.option(
    "--gpu",
    type=DEVICE,
    metavar="NAME",
    help="GPU of the engines, whose peaks are divided by; without it, this machine's.",
)
@click.option(
    "--devices",
    type=COUNT,
    default=1,
    help="With --model: the number of devices that share it.",
)
@click.option(
    "--jobs",
    type=ADDRESS,
    metavar="URL",
    help="Prometheus server of a cluster, such as http://localhost:9090.",
)
@click.option(
    "--hours", type=HOURS, default=24.0, help="With --jobs: show the jobs of this many last hours."
)
@PROMETHEUS
@LANGUAGE
def run(
    device: Any,
    interval_s: float,
    count: int | None,
    as_json: bool,
    prometheus: int | None,
    engines: Sequence[str],
    jobs: str | None,
    hours: float,
    language: str,
    **of_engines: Any,
) -> int:
    """Watches the device, or `engines` or `jobs`, every `interval_s` seconds; returns the exit
    status. Raises ConfigurationError for an option that belongs to another of the three."""
    for option, names, value in (("--engine", of_engines, engines), ("--jobs", ["hours"], jobs)):
        misplaced = [] if value else list(filter(_is_given, names))
        if misplaced:
            raise ConfigurationError(
                Said("option_of_another", option=f"--{misplaced[0]}", other=option)
            )
    if jobs and engines:
        raise ConfigurationError(Said("give_one_option", options="--jobs, --engine"))
    if jobs:
        from mfulab.cli.jobs import frames as of_cluster

        shown = of_cluster(jobs, hours, interval_s, language)
        return follow(shown, count or 1, as_json, prometheus)
    if engines:
        from mfulab.cli import engines as serving

        pages = serving.frames(engines, interval_s, **of_engines, language=language)
        return follow(pages, count, as_json, prometheus)
    kind = identity.resolve(device)
    local = next(iter(identity.gpus(kind)), None)
    name, uuid = (local.name, local.uuid) if local else (cpu.cpu().name, "")

    def of_this_device() -> Iterator[Frame]:
        wait = partial(time.sleep, interval_s)
        for readings, facts in frames(kind, uuid, wait, language=language):
            sample = sample_of(name, uuid, readings, rates(), time.time())
            yield sample, picture(sample, readings, facts, language)

    return follow(of_this_device(), count, as_json, prometheus)


def _is_given(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def lines_of(sample: Row) -> Iterator[Record]:
    """Yields the lines of JSON of a sample, each with its answer; of engines or jobs, one line
    each."""
    parts = {"engines": of_engine, "jobs": of_job}
    part = next(filter(sample.__contains__, parts), None)
    if part is not None:
        for row in sample[part]:
            yield parts[part](row).line({"unix_s": sample["unix_s"], **row})
    elif "answer" in sample:
        yield sample["answer"].line({key: sample[key] for key in sample if key != "answer"})
    else:
        yield of_device(sample).line(sample)


def of_device(sample: Row) -> Answer:
    """MFU that the device's processes count, or else MFU by its tensor pipe. It has no value if
    neither is known."""
    counted = sample["counted_mfu_percent"]
    by_tensor_pipe = sample["expected_mfu_percent"]
    doubt: Doubt = {}
    contradicted = contradiction(sample)
    if contradicted is not None:
        doubt["counts_disagree"] = {"because": str(contradicted)}
    if counted is not None:
        return answered(counted, "%", "spec", doubt=doubt)
    if by_tensor_pipe is not None:
        return answered(by_tensor_pipe, "%", "spec", doubt={"by_tensor_pipe": {}})
    return unanswered("%", Said("no_process"))


def of_engine(engine: Row) -> Answer:
    """MFU of a serving engine. It has no value if the engine is gone or does not report its
    work."""
    mfu = engine.get("mfu_percent")
    if mfu is not None:
        return answered(mfu, "%", "spec")
    if "gone" in engine:
        return unanswered("%", Said("gone", because=engine["gone"]))
    return unanswered("%", Said(next(iter(engine["missing"]), "no_flops")))


def of_job(job: Row) -> Answer:
    """OFU of a cluster's job. It has no value if the device's clock or counters are unknown."""
    if job["ofu_percent"] is None:
        return unanswered("%", Said("no_counters"))
    return answered(job["ofu_percent"], "%", "spec")


def follow(
    source: Iterator[Frame], count: int | None, as_json: bool, prometheus: int | None
) -> int:
    """Shows each frame of `source` until interrupted, or `count` frames; returns 0."""
    with ExitStack() as stack:
        console = Terminal()
        live = None
        page = None
        if prometheus is not None:
            from mfulab.cli.export import prometheus_page

            page = stack.enter_context(prometheus_page(prometheus))
        with suppress(KeyboardInterrupt):
            for number, (sample, shown) in enumerate(source, start=1):
                if page:
                    page.sample = sample
                if as_json:
                    for line in lines_of(sample):
                        say_json(line, flush=True)
                elif count == 1:
                    console.print(shown)
                else:
                    live = live or stack.enter_context(Live(console=console, auto_refresh=False))
                    live.update(shown, refresh=True)
                if number == count:
                    break
    return 0
