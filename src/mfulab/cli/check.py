"""`mfulab check`: whether a node's device is as fast as its recording, its datasheet or an earlier
check says."""

import json
import os
import re
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, Required, TypedDict

import click

from mfulab.cli.options import AS_JSON, DEVICE_KIND, PATH, command, usual_language
from mfulab.core.answer import Answer, answered
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, read_given
from mfulab.core.groups import DeviceConfig
from mfulab.core.json_text import parse_json
from mfulab.core.language.quantities import significant
from mfulab.core.language.sentences import sentence
from mfulab.core.printing import say, say_json
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal, table
from mfulab.device import ByKind, cpu, identity, is_gpu, visible
from mfulab.device.local_peak import local_name, local_peak
from mfulab.loop.interactive.show import bar

RECORDINGS = Path("results/reference")
# The share of a reference below which a value is low. Neighbours take more of a CPU than anything
# takes of a GPU.
TOLERATED = ByKind(cpu=0.75, gpu=0.9)
# Of what a datasheet prints: the best matmul of a healthy H100 reaches 70 to 81 % of it, a triad 90
# %, a clock 71 %.
FLOORS = {"tflop_s": 0.6, "gb_s": 0.75, "mhz": 0.6}
MOST_HELD_BACK = 5.0  # percent of the time, by heat or the power brake
# percent of the time: from which on the power limit decides the clock, as of cards of 70 W
SETS_CLOCK = 50.0
SHOWN = (
    "power_capped_percent",
    "other_processes_percent",
)  # a power limit is where a GPU is to work
OF_EQUALS = 0.95  # share of the median of one node's cards, alone with the same air and driver
# from which on a median of nodes stands for a device that nothing else is known of
FEWEST_NODES = 3
STATUS = {"low": 1, "unknown": 3, "healthy": 0}  # the worst first
HELP = "nothing is known of this device here; keep what --json prints of a healthy one, and give it as --baseline FILE"
UNALIKE = {"--baseline", "--table", "--cards"}  # of which one excludes the others
KEYS = {"node", "device", "kind", "values", "state"}
LINE = re.compile(
    r'\{"(?:answer|node)"'
)  # as `--json` begins it; srun --label puts a number in front
LINKS = ("pcie_lanes", "pcie_generation", "nvlinks")
OWN = "the card's own"  # whose most a link is held against
References = dict[str, tuple[float | None, str]]  # name → value, and whose it is
State = Literal["low", "unknown", "healthy"]


class Value(TypedDict, total=False):
    """One reading of a check, and what it is held against."""

    value: Required[float | None]
    unit: Required[str]
    reason: Required[str]
    reference: float | None
    source: str
    share: float | None
    state: State


class Line(TypedDict, total=False):
    """A check of one device, as `--json` prints it."""

    node: Required[str]
    device: Required[str]
    kind: Required[str]
    values: Required[dict[str, Value]]
    state: State


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
    help="Output of an earlier check --json, on an equal device.",
)
@click.option(
    "--table",
    "nodes",
    metavar="FILE",
    help="Measure nothing: show lines of --json, one a node, as one table; - is the standard input.",
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
    help="Print Prometheus's text, for a node exporter's textfiles.",
)
def run(
    device: str,
    baseline: Path | None,
    nodes: str | None,
    cards: bool,
    as_json: bool,
    as_prometheus: bool,
) -> int:
    """Checks this node's device, or shows the lines of others; `STATUS` has the exit status of each
    state."""
    given = {
        "--baseline": baseline,
        "--table": nodes,
        "--cards": cards,
        "--json": as_json,
        "--prometheus": as_prometheus,
    }
    chosen = []
    for name, value in given.items():
        if value:
            chosen.append(name)
    shown = []
    for name in chosen:
        if name not in ("--baseline", "--cards"):
            shown.append(name)
    if len(shown) > 1 or [*UNALIKE & {*chosen}][1:]:
        raise ConfigurationError(f"{' and '.join(chosen)}: give one of them.")
    if cards:
        return _run_cards(device, as_json)
    if nodes is not None:
        lines = _among(
            _lines(nodes, sys.stdin if nodes == "-" else read_given(Path(nodes)).splitlines())
        )
        _show_nodes(lines)
        return _status(lines)
    line = _checked(device, baseline)
    if as_json:
        say_json(answer(line).line({**line}))
    elif as_prometheus:
        say("\n".join(prometheus(line)))
    else:
        _show(line)
    return STATUS[line["state"]]


def _run_cards(device: str, as_json: bool) -> int:
    """Checks each GPU of this node in a process of its own, one after the other, and compares
    them."""
    lines = beside(list(_each_card(device)))
    if as_json:
        for line in lines:
            say_json(answer(line).line({**line}))
    else:
        _show_nodes(lines)
        _show_beside(lines)
    return _status(lines)


def _status(lines: Iterable[Line]) -> int:
    """The exit status of the worst of several lines."""
    return STATUS[min((line["state"] for line in lines), key=[*STATUS].index)]


def answer(line: Line) -> Answer:
    """The lowest share of a reference, in %; none where nothing is known of the device, doubtful
    where anything is low."""
    compared = [value for value in line["values"].values() if value.get("share") is not None]
    doubt: dict[str, Numbers] = {}
    for name, value in line["values"].items():
        if value.get("state") == "low":
            doubt[name] = {"value": value["value"], "reference": value.get("reference")}
    if not compared:
        reason = {"no_reference": {"because": HELP}}
        return Answer(None, "%", reason=reason, doubt=doubt)
    lowest = min(compared, key=lambda value: value["share"] or 0.0)
    basis, _, _ = lowest["source"].partition(",")  # a datasheet's may be at a lower clock
    return answered(
        100 * (lowest["share"] or 0.0),
        "%",
        "spec" if basis == "datasheet" else "measured",
        denominator=lowest["reference"],
        denominator_unit=lowest["unit"],
        doubt=doubt,
    )


def _each_card(device: str) -> Iterator[Line]:
    kind = identity.resolve(device)
    if not is_gpu(kind):
        raise ConfigurationError("--cards: compares GPUs, and none is here.")
    for gpu in identity.gpus(kind):
        command = [sys.executable, "-m", "mfulab", "check", f"--device={kind}", "--json"]
        environment = os.environ | visible([gpu.uuid])
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        [line] = _lines(gpu.uuid, done.stdout.splitlines())
        line["node"] = f"{line['node']} {gpu.uuid}"
        yield line


def beside(lines: Sequence[Line]) -> list[Line]:
    """Judges cards of one node by one another too: one that falls short of the median of those of
    its kind is low. With two it is unknown which is."""
    judged_lines = list[Line]()
    for line in lines:
        medians = _medians(lines, line["device"])
        values = dict[str, Value]()
        for name, reading in line["values"].items():
            values[name] = _beside_median(name, reading, medians.get(name))
        is_low = line["state"] == "low" or values != line["values"]
        state: State = "low" if is_low else line["state"]
        judged_lines.append({**line, "values": values, "state": state})
    return judged_lines


def _beside_median(name: str, reading: Value, middle: float | None) -> Value:
    """The reading, judged low where it falls short of the median of equal cards."""
    value = reading["value"]
    if not middle or value is None or name.endswith("_percent"):
        return reading
    share = value / middle
    if share >= OF_EQUALS:
        return reading
    source = "median of the cards"
    return {**reading, "reference": middle, "source": source, "share": share, "state": "low"}


def _medians(lines: Iterable[Line], device: str) -> dict[str, float]:
    """Median of each value over the lines of a device; of fewer than three lines none."""
    columns = defaultdict[str, list[float]](list)
    for line in lines:
        if line["device"] != device:
            continue
        for name, reading in line["values"].items():
            if reading["value"] is not None:
                columns[name].append(reading["value"])
    return {name: median(column) for name, column in columns.items() if len(column) >= FEWEST_NODES}


def _checked(device: str, baseline: Path | None) -> Line:
    """Measures this node's device, and judges it by the baseline, else its recording, else its
    datasheet."""
    from mfulab.device.compute import prepare
    from mfulab.timing.node import links_of, readings_of

    before = []
    if baseline:
        before = _lines(str(baseline), read_given(baseline).splitlines())
    where, _ = prepare(DeviceConfig(type=device))
    name = local_name() if is_gpu(where) else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"
    if len(before) > 1:
        raise ConfigurationError(
            f"--baseline={baseline}: holds {len(before)} checks; give the file of one."
        )
    if before and before[0]["device"] != name:
        raise ConfigurationError(
            f"--baseline={baseline}: of {before[0]['device']}, and this is {name}."
        )
    values = dict[str, Value]()
    for key, reading in readings_of(where).items():
        why = str(reading.reason or "")
        values[key] = {"value": reading.value, "unit": reading.unit, "reason": why}
    own = References()
    for key, link in links_of(where).items():
        values[key] = {"value": link.now, "unit": "", "reason": ""}
        own[key] = (link.most, OWN)
    if before:
        references = {
            key: (reading["value"], "baseline") for key, reading in before[0]["values"].items()
        }
    else:
        references = {}
        if is_gpu(where):
            references = printed(values)
        references |= recorded(RECORDINGS / identity.hardware_slug(device))
    return judged(
        {"node": socket.gethostname(), "device": name, "kind": where.type, "values": values},
        own | references,
    )


def printed(values: Mapping[str, Value]) -> References:
    """References from the datasheet of this node's GPU; where the power limit held its clock, rates
    at that clock."""
    shown = {name: reading["value"] for name, reading in values.items()}
    sheet = local_peak("fp16")
    source = "datasheet"
    held = 1.0
    clock = shown.get("clock_mhz")
    spec_clock = sheet.spec_clock_mhz
    if clock and spec_clock and (shown.get("power_capped_percent") or 0.0) > SETS_CLOCK:
        source = f"datasheet, at {clock:.0f} MHz"
        held = min(1.0, clock / spec_clock)
        spec_clock = None
    references = References()
    for name in shown:
        if name.endswith("_tflop_s"):
            peak = local_peak(name.removesuffix("_tflop_s")).spec
            references[name] = (peak and held * peak, source)
    references["memory_gb_s"] = (sheet.memory_gb_s, "datasheet")
    references["clock_mhz"] = (spec_clock, "datasheet")
    return references


def judged(line: Line, references: References) -> Line:
    """The line with each value's reference, share and state: `low` where one is, `healthy` where
    any is known."""
    values = dict[str, Value]()
    for name, reading in line["values"].items():
        reference, source = references.get(name) or (None, "")
        if name.endswith("_percent"):
            values[name] = _judged_percent(name, reading, reference, source)
        else:
            values[name] = _judged_share(name, reading, reference, source, line["kind"])
    compared = any(value["share"] is not None for value in values.values())
    state: State = "healthy" if compared else "unknown"
    if any(value["state"] == "low" for value in values.values()):
        state = "low"
    return {**line, "values": values, "state": state}


def _judged_percent(name: str, reading: Value, reference: float | None, source: str) -> Value:
    """A share of the time, which needs no reference."""
    value = reading["value"]
    state: State = "unknown"
    if value is not None and name not in SHOWN:
        source = "driver's counters"
        state = "low" if value > MOST_HELD_BACK else "healthy"
    return {**reading, "reference": reference, "source": source, "share": None, "state": state}


def _judged_share(
    name: str, reading: Value, reference: float | None, source: str, kind: str
) -> Value:
    """A rate or a clock by its reference."""
    value = reading["value"]
    state: State = "unknown"
    share = None
    if value is not None and reference:
        share = value / reference
        state = "low" if share < _floor(name, source, kind) else "healthy"
    return {**reading, "reference": reference, "source": source, "share": share, "state": state}


def _floor(name: str, source: str, kind: str) -> float:
    """The share of a reference below which a value is low."""
    if name in LINKS:
        return 1.0  # a lane or a link less is a fault
    if source.startswith("datasheet"):
        return FLOORS[next(filter(name.endswith, FLOORS))]
    return TOLERATED[kind]


def recorded(folder: Path) -> References:
    """References from the recording of an equal device; a CPU's cores and vector instructions must
    be equal too."""
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
    return {name: (value, "recording") for name, value in best.items()}


def _rows(table: Path) -> list[dict[str, str]]:
    """Rows of a recorded table, its counters as columns."""
    from mfulab.lab.tables.columns import with_counters

    return list(map(with_counters, read_csv(table)))


def _recorded_ceilings(rows: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, float]]:
    """Rates of recorded ceilings that a check measures too."""
    for row in rows:
        name = _recorded_name(row)
        value = row.get("swept_tflop_s") or row["measured_tflop_s"] or row["measured_gb_s"]
        if name and value:
            yield name, float(value)


def _recorded_name(row: Mapping[str, str]) -> str:
    """Name of a recorded ceiling in a check; empty for one that a check has not."""
    if "threads=" in row["run"]:
        return ""
    if row["ceiling"] == "memory":
        return "memory_gb_s"
    if row["ceiling"] == row["format"]:
        return f"{row['ceiling']}_tflop_s"
    return ""


def _recorded_transfers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Rates of copies to a GPU and back in GB/s that a recorded matmul in bf16 has."""
    if "precision=bf16" not in row["run"]:
        return
    for way, operands in (("host_to_device", 2), ("device_to_host", 1)):
        if seconds := row.get(f"{way}_pinned_s"):
            yield f"{way}_gb_s", operands * 2 * float(row["size"]) ** 2 / float(seconds) / 1e9


def _lines(file: str, texts: Iterable[str]) -> list[Line]:
    """Checks, one a line, as `--json` prints them; what srun adds is left out. Raises
    ConfigurationError for none."""
    lines = list[Line]()
    for text in texts:
        begin = LINE.search(text)
        if begin is None:
            continue
        try:
            line = parse_json(text[begin.start() :])
        except ValueError:
            say(f"mfulab: not a whole line of a check: {text[:80]}", file=sys.stderr)
            continue
        if line.keys() >= KEYS:
            line.pop("answer", None)
            lines.append(line)
    if not lines:
        raise ConfigurationError(f"{file}: no line of `mfulab check --json` is here.")
    return lines


def _among(lines: Sequence[Line]) -> list[Line]:
    """Judges, by the median of all nodes with the same device, those of whose device nothing else
    is known."""
    judged_lines = list[Line]()
    for line in lines:
        if line["state"] == "unknown":
            medians = _medians(lines, line["device"])
            references: References = {
                name: (value, "median of the nodes") for name, value in medians.items()
            }
            if references:
                line = judged(line, references)
        judged_lines.append(line)
    return judged_lines


def low(line: Line) -> str:
    """Names what is low, and by how much: `bf16_tflop_s −38 % (recording)`."""
    parts = []
    for name, reading in line["values"].items():
        if reading["state"] == "low":
            share = reading["share"]
            by = f"{reading['value']:.0f} %" if share is None else f"−{100 * (1 - share):.0f} %"
            parts.append(f"{name} {by} ({reading['source']})")
    return ", ".join(parts)


def _show(line: Line) -> None:
    console = Terminal(highlight=False, soft_wrap=True)
    says = {"low": f"low: {low(line)}", "unknown": HELP}.get(line["state"], "healthy")
    console.print(f"{line['node']}, {line['device']}: {says}", style="bold")
    shown = table(["check"], ("value", "reference", "share, %"), ["of", ""])
    for name, reading in line["values"].items():
        unit = reading["unit"]
        numbers = (_text(reading["value"], unit), _text(reading["reference"], unit))
        share = ""
        if reading["share"] is not None:
            share = f"{100 * reading['share']:.0f}"
        state: str = reading["state"]
        if reading["value"] is None:
            state = reading["reason"]
        elif state == "unknown":
            state = ""
        shown.add_row(name, *numbers, share, reading["source"], state)
    console.print(shown)


def _show_nodes(lines: Sequence[Line]) -> None:
    columns = list(dict.fromkeys(name for line in lines for name in line["values"]))
    shown = table(["node", "state"], columns, ["low"])
    for line in sorted(lines, key=lambda line: ([*STATUS].index(line["state"]), line["node"])):
        readings = map(line["values"].get, columns)
        values = (_text(reading["value"]) if reading else "" for reading in readings)
        shown.add_row(line["node"], line["state"], *values, low(line))
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(shown)
    console.print(", ".join(sorted({line["device"] for line in lines})), style="dim")


@dataclass(frozen=True)
class Beside:
    """Value that tells several equal cards apart most, and each one's share of their median."""

    name: str
    shares: dict[str, float]  # by node and card

    @property
    def slowest(self) -> str:
        """The card with the least share."""
        return min(self.shares, key=self.shares.__getitem__)


def beside_one_another(lines: Sequence[Line], device: str) -> Beside | None:
    """The value in which one of the cards of a device falls furthest short of their median; None of
    fewer than three."""
    found = list[Beside]()
    for name, middle in _medians(lines, device).items():
        if middle and not name.endswith("_percent"):
            found.append(Beside(name, _shares(lines, device, name, middle)))
    return min(found, key=lambda one: one.shares[one.slowest], default=None)


def _shares(lines: Sequence[Line], device: str, name: str, middle: float) -> dict[str, float]:
    shares = dict[str, float]()
    for line in lines:
        value = None
        if line["device"] == device:
            value = line["values"][name]["value"]
        if value is not None:
            shares[line["node"]] = value / middle
    return shares


def told_beside(lines: Sequence[Line], device: str) -> Said:
    """The sentence on the cards of a device: which is slow, that none is, or that too few are
    here."""
    count = sum(line["device"] == device for line in lines)
    apart = beside_one_another(lines, device)
    if apart is None:
        return Said("cards_too_few", {"count": count, "device": device, "least": FEWEST_NODES})
    short = 100 * (1 - apart.shares[apart.slowest])
    numbers: Numbers = {"count": count, "device": device, "name": apart.name, "short": short}
    if apart.shares[apart.slowest] >= OF_EQUALS:
        return Said("cards_alike", numbers)
    return Said("card_low", {**numbers, "card": apart.slowest})


def _show_beside(lines: Sequence[Line]) -> None:
    """Prints for each kind of card its sentence, and a bar a card of what tells them apart."""
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 200)
    for device in sorted({line["device"] for line in lines}):
        said = told_beside(lines, device)
        console.print(sentence(said.key, said.numbers, usual_language()), style="bold")
        apart = beside_one_another(lines, device)
        if apart is None:
            continue
        for card, share in apart.shares.items():
            console.print(f"  {card}  {bar(100 * share)} {100 * share:.1f} %")


def _text(value: float | None, unit: str = "") -> str:
    return f"{significant(value)} {unit if value is not None else ''}".strip()


METRICS: tuple[Literal["value", "share"], ...] = ("value", "share")


def prometheus(line: Line) -> Iterator[str]:
    """Lines of Prometheus's text format: each value, its share of the reference, and 1 for healthy
    or 0 for low."""
    node = json.dumps(line["node"], ensure_ascii=False)
    device = json.dumps(line["device"], ensure_ascii=False)
    where = f"node={node},device={device}"
    for metric in METRICS:
        yield f"# TYPE mfulab_check_{metric} gauge"
        for name, reading in line["values"].items():
            number = reading[metric]
            if number is not None:
                yield f'mfulab_check_{metric}{{{where},check="{name}"}} {number:.6g}'
    if line["state"] != "unknown":
        yield "# TYPE mfulab_check_healthy gauge"
        yield f"mfulab_check_healthy{{{where}}} {int(line['state'] == 'healthy')}"
