"""`mfulab check`: whether a node's device is as fast as its recording, its datasheet or an earlier check says.

mfulab check --json > healthy.json; mfulab check --baseline healthy.json
srun --ntasks-per-node=1 mfulab check --json | mfulab check --table -
"""

import json
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Column, Table

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, parse_json, read_csv, read_given
from mfulab.core.groups import DeviceConfig
from mfulab.core.terminal import Terminal
from mfulab.device import ByKind, cpu, identity, is_gpu
from mfulab.device.local_peak import local_name
from mfulab.device.peaks import peak

RECORDINGS = Path("results/reference")
# The share of a reference below which a value is low. Neighbours take more of a CPU than anything takes of a GPU.
TOLERATED = ByKind(cpu=0.75, gpu=0.9)
# Of what a datasheet prints: the best matmul of a healthy H100 reaches 70 to 81 % of it, a triad 90 %, a clock 71 %.
FLOORS = {"tflop_s": 0.6, "gb_s": 0.75, "mhz": 0.6}
MOST_HELD_BACK = 5.0  # percent of the time, by heat or the power brake; a power limit is where a GPU is to work
FEWEST_NODES = 3  # from which on a median of nodes stands for a device that nothing else is known of
STATUS = {"low": 1, "unknown": 3, "healthy": 0}  # the worst first
Line = dict[str, Any]
References = Mapping[str, tuple[float, str]]  # name → value, and whose it is


def run(device: str, baseline: Path | None, table: str | None, as_json: bool, as_prometheus: bool) -> int:
    """Checks this node's device, or shows the lines of others; `STATUS` has the exit status of each state."""
    if table is not None:
        lines = _among(_lines(sys.stdin if table == "-" else read_given(Path(table)).splitlines()))
        _show_nodes(lines)
        states = {line["state"] for line in lines}
        return STATUS[next(state for state in STATUS if state in states)]
    line = _checked(device, baseline)
    if as_json:
        print(json.dumps(line, ensure_ascii=False))
    elif as_prometheus:
        print("\n".join(prometheus(line)))
    else:
        _show(line)
    return STATUS[line["state"]]


def _checked(device: str, baseline: Path | None) -> Line:
    """Measures this node's device, and judges it by the baseline, else its recording, else its datasheet."""
    from mfulab.device.compute import prepare
    from mfulab.timing.node import readings_of

    known = _baseline(baseline) if baseline else None
    where, _ = prepare(DeviceConfig(type=device))
    name = local_name() if is_gpu(where) else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"
    if known and known["device"] != name:
        raise ConfigurationError(f"--baseline={baseline}: of {known['device']}, and this is {name}.")
    values = {
        key: {"value": each.value, "unit": each.unit, "reason": each.reason} for key, each in readings_of(where).items()
    }
    if known:
        references = {k: (v["value"], "baseline") for k, v in known["values"].items() if v["value"] is not None}
    else:
        references = _by_datasheet(name, values) if is_gpu(where) else {}
        references |= recorded(RECORDINGS / identity.hardware_slug(device))
    line = {"node": socket.gethostname(), "device": name, "kind": where.type, "values": values}
    return judged(line, references)


def judged(line: Line, references: References) -> Line:
    """The line with each value's reference, share and state, and the state of all: `low` where one is.

    `healthy` where at least one is known and none is low; `unknown` where nothing is known of the device.
    """
    for name, held in line["values"].items():
        value, (reference, source) = held["value"], references.get(name, (None, ""))
        held |= {"reference": reference, "source": source, "share": None, "state": "unknown"}
        if value is None:
            continue
        if name.endswith("_percent"):
            if name != "power_capped_percent":
                held |= {"state": "low" if value > MOST_HELD_BACK else "healthy", "source": "driver's counters"}
        elif reference:
            unit = next(unit for unit in FLOORS if name.endswith(unit))
            floor = FLOORS[unit] if source == "datasheet" else TOLERATED[line["kind"]]
            share = value / reference
            held |= {"share": share, "state": "low" if share < floor else "healthy"}
    states = {held["state"] for held in line["values"].values()}
    compared = any(held["share"] is not None for held in line["values"].values())
    return line | {"state": "low" if "low" in states else "healthy" if compared else "unknown"}


def recorded(folder: Path) -> dict[str, tuple[float, str]]:
    """References from the recording of an equal device; a CPU's cores and vector instructions must be equal too."""
    try:
        (environment, *_), ceilings = read_csv(folder / "environment.csv"), read_csv(folder / "ceilings.csv")
        matmuls = read_csv(folder / "matmul.csv")
    except (OSError, UnreadableError, ValueError):
        return {}
    if environment["device"] == "cpu":
        here = cpu.cpu()
        if environment["cpu_vector_flags"] != " ".join(cpu.vector_flags(here.flags)):
            return {}
    found = {}
    for row in ceilings:
        if "threads=" in row["run"] or row["ceiling"] not in (row["format"], "memory"):
            continue
        name = "memory_gb_s" if row["ceiling"] == "memory" else f"{row['ceiling']}_tflop_s"
        if value := row.get("swept_tflop_s") or row["measured_tflop_s"] or row["measured_gb_s"]:
            found[name] = float(value), "recording"
        if row["clock_mhz"] and row["ceiling"] != "memory":
            clocks = [clock for clock, _ in [found.get("clock_mhz", (1e9, ""))]]
            found["clock_mhz"] = min(float(row["clock_mhz"]), *clocks), "recording"
    for way, operands in (("host_to_device", 2), ("device_to_host", 1)):
        times = [row for row in matmuls if row.get(f"{way}_pinned_s") and "precision=bf16" in row["run"]]
        rates = [operands * 2 * float(row["size"]) ** 2 / float(row[f"{way}_pinned_s"]) / 1e9 for row in times]
        if rates:
            found[f"{way}_gb_s"] = max(rates), "recording"
    return found


def _by_datasheet(name: str, values: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    found = {}
    for key in values:
        top = peak(name, key.removesuffix("_tflop_s")) if key.endswith("_tflop_s") else peak(name, "fp16")
        value = {"memory_gb_s": top.memory_gb_s, "clock_mhz": top.spec_clock_mhz}.get(key)
        value = top.spec if key.endswith("_tflop_s") else value
        if value:
            found[key] = value, "datasheet"
    return found


def _baseline(path: Path) -> Line:
    lines = _lines(read_given(path).splitlines())
    if len(lines) != 1:
        raise ConfigurationError(f"--baseline={path}: holds {len(lines)} checks; give the file of one.")
    return lines[0]


def _lines(texts: Iterable[str]) -> list[Line]:
    """Checks, one a line, as `--json` prints them; what srun adds is left out. Raises ConfigurationError for none."""
    found = []
    for text in texts:
        place = text.find('{"node"')  # srun --label puts a number in front
        try:
            found.append(parse_json(text[place:]) if place >= 0 else None)
        except ValueError:
            print(f"mfulab: not a whole line of a check: {text[:80]}", file=sys.stderr)
    lines = [line for line in found if line]
    if not lines:
        raise ConfigurationError("no line of `mfulab check --json` is here.")
    return lines


def _among(lines: Sequence[Line]) -> list[Line]:
    """Judges, by the median of all nodes with the same device, those of whose device nothing else is known."""
    found = []
    for line in lines:
        alike = [other for other in lines if other["device"] == line["device"]]
        if line["state"] == "unknown" and len(alike) >= FEWEST_NODES:
            columns = {name: [other["values"].get(name, {}).get("value") for other in alike] for name in line["values"]}
            known = {name: [value for value in column if value is not None] for name, column in columns.items()}
            medians = {name: (median(values), "median of the nodes") for name, values in known.items() if values}
            line = judged(line, medians)
        found.append(line)
    return found


def low(line: Line) -> str:
    """Names what is low, and by how much: `bf16_tflop_s −38 % (recording)`."""
    said = []
    for name, held in line["values"].items():
        if held["state"] == "low":
            by = f"−{100 * (1 - held['share']):.0f} %" if held["share"] is not None else f"{held['value']:.0f} %"
            said.append(f"{name} {by} ({held['source']})")
    return ", ".join(said)


def _show(line: Line) -> None:
    console = Terminal(highlight=False, soft_wrap=True)
    says = {"low": f"low: {low(line)}", "healthy": "healthy"}
    nothing = "nothing is known of this device here; give --baseline FILE, an earlier check's --json"
    console.print(f"{line['node']}, {line['device']}: {says.get(line['state'], nothing)}", style="bold")
    numbers = [Column(name, justify="right") for name in ("value", "reference", "share, %")]
    shown = Table("check", *numbers, "of", "", box=box.SIMPLE_HEAD)
    for name, held in line["values"].items():
        value, reference = (
            "" if each is None else f"{each:,.4g} {held['unit']}" for each in (held["value"], held["reference"])
        )
        share = "" if held["share"] is None else f"{100 * held['share']:.0f}"
        state = held["reason"] if held["value"] is None else "" if held["state"] == "unknown" else held["state"]
        shown.add_row(name, value, reference, share, held["source"], state)
    console.print(shown)


def _show_nodes(lines: Sequence[Line]) -> None:
    columns = list(dict.fromkeys(name for line in lines for name in line["values"]))
    shown = Table("node", "state", *(Column(name, justify="right") for name in columns), "low", box=box.SIMPLE_HEAD)
    for line in sorted(lines, key=lambda line: (list(STATUS).index(line["state"]), line["node"])):
        values = (line["values"].get(name, {}).get("value") for name in columns)
        shown.add_row(
            line["node"], line["state"], *("" if each is None else f"{each:,.3g}" for each in values), low(line)
        )
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(shown)
    console.print(", ".join(sorted({line["device"] for line in lines})), style="dim")


def prometheus(line: Line) -> Iterable[str]:
    """Lines of Prometheus's text format: each value, its share of the reference, and 1 for healthy or 0 for low."""

    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")

    where = f'node="{quoted(line["node"])}",device="{quoted(line["device"])}"'
    for metric in ("value", "share"):
        yield f"# TYPE mfulab_check_{metric} gauge"
        for name, held in line["values"].items():
            if held[metric] is not None:
                yield f'mfulab_check_{metric}{{{where},check="{name}"}} {held[metric]:.6g}'
    if line["state"] != "unknown":
        yield "# TYPE mfulab_check_healthy gauge"
        yield f"mfulab_check_healthy{{{where}}} {int(line['state'] == 'healthy')}"
