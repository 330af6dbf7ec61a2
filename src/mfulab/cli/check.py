"""`mfulab check`: compares the speed of a node's device with its recording, its datasheet or an
earlier check."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import click
from pydantic import TypeAdapter

from mfulab.cli import check_text
from mfulab.cli.check_text import (
    CARD_FLOOR,
    NOTHING_KNOWN,
    STATUS,
    CheckedValue,
    DeviceCheck,
    State,
    medians,
)
from mfulab.cli.options import AS_JSON, DEVICE_KIND, PATH, command
from mfulab.core.answer import Answer, Doubt, answered, unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, read_given
from mfulab.core.groups import DeviceConfig
from mfulab.core.json_text import parse_json
from mfulab.core.printing import say, say_json
from mfulab.core.said import Said, as_json, as_told
from mfulab.core.terminal_language import in_words
from mfulab.device import ByKind, cpu, identity, is_gpu, visible
from mfulab.device.local_peak import local_name, local_peak

RECORDINGS = Path("results/reference")
# Share of a reference below which a value is low. Other processes disturb a CPU more than a GPU.
TOLERATED = ByKind(cpu=0.75, gpu=0.9)
# The same for references from a datasheet: the best matmul of a healthy H100 reaches 70 to 81 % of
# its peak, a triad 90 % of its bandwidth, a clock 71 %.
FLOORS = {"tflop_s": 0.6, "gb_s": 0.75, "mhz": 0.6}
MOST_HELD_BACK = 5.0  # percent of the time that heat or the power brake may lower the clock
# Percent of the time at the power limit above which that limit sets the clock, as on 70 W cards.
SETS_CLOCK = 50.0
# Shown but not judged: a GPU is meant to work at its power limit.
NOT_JUDGED = ("power_capped_percent", "other_processes_percent")
EXCLUSIVE = {"--baseline", "--table", "--cards"}  # options that exclude each other
KEYS = {"node", "device", "kind", "values", "state"}
# Beginning of a line of `--json`; srun --label puts a number before it.
LINE = re.compile(r'\{"(?:answer|node)"')
EARLIER = TypeAdapter(DeviceCheck)
COPIED = "from_next_card_gb_s"
LINKS = ("pcie_lanes", "pcie_generation", "nvlinks")


class Reference(NamedTuple):
    """The number that a value is compared with, and its source."""

    value: float | None
    source: str  # a key of the catalogue's names.checked_against
    at_mhz: float | None = None  # the clock of a rate that is scaled to the power limit's clock


NO_REFERENCE = Reference(None, "")
References = dict[str, Reference]  # keyed by the value's name


@command(
    "check",
    "check --json > healthy.json",
    more=(
        "A device is compared with --baseline, else with its recording in results/reference/, "
        "else with its datasheet. The status is 0 for healthy, 1 where something is low, and 3 "
        "where nothing is known of the device."
    ),
)
@DEVICE_KIND
@click.option(
    "--baseline",
    type=PATH,
    metavar="FILE",
    help="Compare with FILE, the output of check --json on a device of the same kind.",
)
@click.option(
    "--table",
    "nodes",
    metavar="FILE",
    help="Show outputs of check --json, one node per line, as a table without measuring; - reads standard input.",
)
@click.option(
    "--cards",
    is_flag=True,
    help="Check each GPU of this node, one after the other, and compare them with one another.",
)
@AS_JSON
@click.option(
    "--prometheus",
    "as_prometheus",
    is_flag=True,
    help="Print metrics in Prometheus's text format, for node_exporter's textfile collector.",
)
def run(
    device: str,
    baseline: Path | None,
    nodes: str | None,
    cards: bool,
    as_json: bool,
    as_prometheus: bool,
) -> int:
    """Checks this node's device, its cards, or shows lines of earlier checks. Returns the exit
    status, see `STATUS`. Raises ConfigurationError for options that exclude each other."""
    options = {
        "--baseline": baseline,
        "--table": nodes,
        "--cards": cards,
        "--json": as_json,
        "--prometheus": as_prometheus,
    }
    chosen = [name for name, value in options.items() if value]
    outputs = [name for name in chosen if name not in ("--baseline", "--cards")]
    if len(outputs) > 1 or len(EXCLUSIVE.intersection(chosen)) > 1:
        raise ConfigurationError(Said("give_one_option", options=", ".join(chosen)))
    if cards:
        return _run_cards(device, as_json)
    if nodes is not None:
        texts = sys.stdin if nodes == "-" else read_given(Path(nodes)).splitlines()
        lines = _judge_by_nodes(_lines(nodes, texts))
        check_text.show_nodes(lines)
        return _status(lines)
    line = _checked(device, baseline)
    if as_json:
        say_json(answer(line).line(asdict(line)))
    elif as_prometheus:
        say("\n".join(check_text.prometheus(line)))
    else:
        check_text.show(line)
    return STATUS[line.state]


def _run_cards(device: str, as_json: bool) -> int:
    """Checks the GPUs of this node one after the other, each in its own process, and compares them.
    Returns the exit status."""
    kind = identity.resolve(device)
    if not is_gpu(kind):
        raise ConfigurationError(Said("no_cards_here"))
    uuids = [gpu.uuid for gpu in identity.gpus(kind)]
    lines = judge_cards(_with_copies(list(_each_card(kind, uuids)), uuids))
    if as_json:
        for line in lines:
            say_json(answer(line).line(asdict(line)))
    else:
        check_text.show_nodes(lines)
        check_text.show_cards(lines)
    return _status(lines)


def _status(lines: Iterable[DeviceCheck]) -> int:
    """Exit status of the worst of several lines."""
    return STATUS[min((line.state for line in lines), key=[*STATUS].index)]


def answer(line: DeviceCheck) -> Answer:
    """The lowest share of a reference, in %. It has no value if nothing is known of the device, and
    a doubt if anything is low."""
    compared = [reading for reading in line.values.values() if reading.share is not None]
    doubt: Doubt = {}
    for name, reading in line.values.items():
        if reading.state == "low":
            doubt[name] = {"value": reading.value, "reference": reading.reference}
    if not compared:
        because = str(NOTHING_KNOWN)
        without_value = unanswered("%", Said("no_reference", because=because))
        return replace(without_value, doubt=doubt)
    lowest = min(compared, key=lambda reading: reading.share or 0.0)
    return answered(
        100 * (lowest.share or 0.0),
        "%",
        "spec" if lowest.source == "datasheet" else "measured",
        denominator=lowest.reference,
        denominator_unit=lowest.unit,
        doubt=doubt,
    )


def _each_card(kind: str, uuids: Iterable[str]) -> Iterator[DeviceCheck]:
    for uuid in uuids:
        command = [sys.executable, "-m", "mfulab", "check", f"--device={kind}", "--json"]
        environment = os.environ | visible([uuid])
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        [line] = _lines(uuid, done.stdout.splitlines())
        yield replace(line, node=f"{line.node} {uuid}")


def _with_copies(lines: Sequence[DeviceCheck], uuids: Sequence[str]) -> list[DeviceCheck]:
    """Adds to each card the rate of copies from the next one, so that each card sends and receives
    once. A link may be up and slow."""
    if len(uuids) < 2:
        return list(lines)
    found = []
    for place, line in enumerate(lines):
        after = uuids[(place + 1) % len(uuids)]
        values = {**line.values, COPIED: _copied([uuids[place], after])}
        found.append(replace(line, values=values))
    return found


def _copied(pair: Sequence[str]) -> CheckedValue:
    """GB/s of copies from the second to the first of two GPUs, or the reason why none is known."""
    program = "from mfulab.timing import node; node.tell_copies()"
    environment = os.environ | visible(pair)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return CheckedValue(float(done.stdout), "GB/s")
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2]
        return CheckedValue(None, "GB/s", as_json(as_told(last)))


def judge_cards(lines: Sequence[DeviceCheck]) -> list[DeviceCheck]:
    """Also judges the cards of one node by each other: low if below the median of equal cards. With
    fewer than three there is no median."""
    judged_lines = list[DeviceCheck]()
    for line in lines:
        median_of = medians(lines, line.device)
        values = dict[str, CheckedValue]()
        for name, reading in line.values.items():
            values[name] = _judge_by_median(name, reading, median_of.get(name))
        is_low = line.state == "low" or values != line.values
        state: State = "low" if is_low else line.state
        judged_lines.append(replace(line, values=values, state=state))
    return judged_lines


def _judge_by_median(name: str, reading: CheckedValue, median: float | None) -> CheckedValue:
    """The reading, marked low if it is below `CARD_FLOOR` of the median of equal cards."""
    value = reading.value
    if not median or value is None or name.endswith("_percent"):
        return reading
    share = value / median
    if share >= CARD_FLOOR:
        return reading
    compared = _with_reference(reading, Reference(median, "cards_median"))
    return replace(compared, share=share, state="low")


def _checked(device: str, baseline: Path | None) -> DeviceCheck:
    """Measures this node's device and judges it by the baseline, or else by its recording and
    datasheet. Raises ConfigurationError for a baseline of another device."""
    from mfulab.device.compute import prepare
    from mfulab.timing.node import links_of, readings_of

    before = []
    if baseline:
        before = _lines(str(baseline), read_given(baseline).splitlines())
    where, _ = prepare(DeviceConfig(type=device))
    name = local_name() if is_gpu(where) else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"
    if len(before) > 1:
        raise ConfigurationError(Said("baseline_of_several", file=str(baseline), count=len(before)))
    if before and before[0].device != name:
        raise ConfigurationError(
            Said("baseline_of_another", file=str(baseline), other=before[0].device, device=name)
        )
    values = dict[str, CheckedValue]()
    for key, reading in readings_of(where).items():
        why = as_json(reading.reason) if reading.reason else {}
        values[key] = CheckedValue(reading.value, reading.unit, why)
    references = References()
    for key, link in links_of(where).items():
        values[key] = CheckedValue(link.now)
        references[key] = Reference(link.most, "card_most")
    if before:
        for key, earlier in before[0].values.items():
            references[key] = Reference(earlier.value, "baseline")
    else:
        if is_gpu(where):
            references |= printed(values)
        references |= recorded(RECORDINGS / identity.hardware_slug(device))
    line = DeviceCheck(socket.gethostname(), name, where.type, values, "unknown")
    return judged(line, references)


def printed(values: Mapping[str, CheckedValue]) -> References:
    """References from the datasheet of this node's GPU. If the power limit lowered the clock, rates
    are scaled to that clock."""
    numbers = {name: reading.value for name, reading in values.items()}
    sheet = local_peak("fp16")
    at_mhz = None
    clock_share = 1.0
    clock = numbers.get("clock_mhz")
    spec_clock = sheet.spec_clock_mhz
    if clock and spec_clock and (numbers.get("power_capped_percent") or 0.0) > SETS_CLOCK:
        at_mhz = clock
        clock_share = min(1.0, clock / spec_clock)
        spec_clock = None
    references = References()
    for name in numbers:
        if name.endswith("_tflop_s"):
            peak = local_peak(name.removesuffix("_tflop_s")).spec
            references[name] = Reference(peak and clock_share * peak, "datasheet", at_mhz)
    references["memory_gb_s"] = Reference(sheet.memory_gb_s, "datasheet")
    references["clock_mhz"] = Reference(spec_clock, "datasheet")
    return references


def judged(line: DeviceCheck, references: References) -> DeviceCheck:
    """The line with reference, share and state of each value. Its own state is `low` if any value
    is, else `healthy` if any has a reference, else `unknown`."""
    values = dict[str, CheckedValue]()
    for name, reading in line.values.items():
        reference = references.get(name, NO_REFERENCE)
        if name.endswith("_percent"):
            values[name] = _judged_percent(name, reading, reference)
        else:
            values[name] = _judged_share(name, reading, reference, line.kind)
    compared = any(reading.share is not None for reading in values.values())
    state: State = "healthy" if compared else "unknown"
    if any(reading.state == "low" for reading in values.values()):
        state = "low"
    return replace(line, values=values, state=state)


def _with_reference(reading: CheckedValue, reference: Reference) -> CheckedValue:
    """The reading with the fields of its reference."""
    value, source, at_mhz = reference
    return replace(reading, reference=value, source=source, at_mhz=at_mhz)


def _judged_percent(name: str, reading: CheckedValue, reference: Reference) -> CheckedValue:
    """Judges a percentage of time, such as that with a lowered clock; it needs no reference."""
    value = reading.value
    source = reference.source
    state: State = "unknown"
    if value is not None and name not in NOT_JUDGED:
        source = "driver_counters"
        state = "low" if value > MOST_HELD_BACK else "healthy"
    referenced = _with_reference(reading, reference._replace(source=source))
    return replace(referenced, state=state)


def _judged_share(
    name: str, reading: CheckedValue, reference: Reference, kind: str
) -> CheckedValue:
    """Judges a rate, a clock or a link by its reference."""
    value = reading.value
    state: State = "unknown"
    share = None
    if value is not None and reference.value:
        share = value / reference.value
        state = "low" if share < _floor(name, reference.source, kind) else "healthy"
    return replace(_with_reference(reading, reference), share=share, state=state)


def _floor(name: str, source: str, kind: str) -> float:
    """Share of a reference below which a value is low."""
    if name in LINKS:
        return 1.0  # a lane or a link less is a fault
    if source == "datasheet":
        return FLOORS[next(filter(name.endswith, FLOORS))]
    return TOLERATED[kind]


def recorded(folder: Path) -> References:
    """References from the recording of an equal device; empty if there is none. A CPU's vector
    instructions must be equal too."""
    try:
        environment, *_ = _rows(folder / "environment.csv")
        ceilings = _rows(folder / "ceilings.csv")
        matmuls = _rows(folder / "matmul.csv")
    except (OSError, UnreadableError, ValueError):
        return {}
    flags = environment["cpu_vector_flags"]
    if environment["device"] == "cpu" and flags != " ".join(cpu.vector_flags(cpu.cpu().flags)):
        return {}
    best = dict(_recorded_ceilings(ceilings))
    clocks = []
    for row in ceilings:
        if row["clock_mhz"] and _recorded_name(row).endswith("_tflop_s"):
            clocks.append(float(row["clock_mhz"]))
    if clocks:
        best["clock_mhz"] = min(clocks)
    for row in matmuls:
        for name, rate in _recorded_transfers(row):
            best[name] = max(rate, best.get(name, 0.0))
    return {name: Reference(value, "recording") for name, value in best.items()}


def _rows(table: Path) -> list[dict[str, str]]:
    """Rows of a recorded table, with its counters as columns."""
    from mfulab.lab.tables.columns import with_counters

    return list(map(with_counters, read_csv(table)))


def _recorded_ceilings(rows: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, float]]:
    """Yields name and rate of the recorded ceilings that a check measures too."""
    for row in rows:
        name = _recorded_name(row)
        value = row.get("swept_tflop_s") or row["measured_tflop_s"] or row["measured_gb_s"]
        if name and value:
            yield name, float(value)


def _recorded_name(row: Mapping[str, str]) -> str:
    """Name that a check has for a recorded ceiling; "" if it does not measure that."""
    if "threads=" in row["run"]:
        return ""
    if row["ceiling"] == "memory":
        return "memory_gb_s"
    if row["ceiling"] == row["format"]:
        return f"{row['ceiling']}_tflop_s"
    return ""


def _recorded_transfers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yields name and GB/s of the copies to a GPU and back in the row of a bf16 matmul."""
    if "precision=bf16" not in row["run"]:
        return
    for direction, operands in (("host_to_device", 2), ("device_to_host", 1)):
        seconds = row.get(f"{direction}_pinned_s")
        if seconds:
            copied_bytes = operands * 2 * float(row["size"]) ** 2
            yield f"{direction}_gb_s", copied_bytes / float(seconds) / 1e9


def _lines(file: str, texts: Iterable[str]) -> list[DeviceCheck]:
    """Parses checks, one per line as `--json` prints them, and skips all other text. Raises
    ConfigurationError if there are none; reports a broken one on stderr."""
    lines = list[DeviceCheck]()
    for text in texts:
        begin = LINE.search(text)
        if begin is None:
            continue
        try:
            line = parse_json(text[begin.start() :])
            if line.keys() >= KEYS:
                lines.append(EARLIER.validate_python(line))
        except ValueError:  # pydantic's too
            torn = in_words(Said("check_line_torn", line=text[:80]))
            say(f"mfulab: {torn}", file=sys.stderr)
    if not lines:
        raise ConfigurationError(Said("no_check_here", file=file))
    return lines


def _judge_by_nodes(lines: Sequence[DeviceCheck]) -> list[DeviceCheck]:
    """Judges lines in state `unknown` by the median of all nodes with the same device, if there are
    enough."""
    judged_lines = list[DeviceCheck]()
    for line in lines:
        if line.state == "unknown":
            references = References()
            for name, value in medians(lines, line.device).items():
                references[name] = Reference(value, "nodes_median")
            if references:
                line = judged(line, references)
        judged_lines.append(line)
    return judged_lines
