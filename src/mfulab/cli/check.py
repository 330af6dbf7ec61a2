"""`mfulab check`: whether a node's device is as fast as its recording, its datasheet or an earlier check says."""

import json
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, parse_json, read_csv, read_given
from mfulab.core.groups import DeviceConfig
from mfulab.core.language.quantities import significant
from mfulab.core.terminal import Terminal, table
from mfulab.device import ByKind, cpu, identity, is_gpu
from mfulab.device.local_peak import local_name, local_peak

RECORDINGS = Path("results/reference")
# The share of a reference below which a value is low. Neighbours take more of a CPU than anything takes of a GPU.
TOLERATED = ByKind(cpu=0.75, gpu=0.9)
# Of what a datasheet prints: the best matmul of a healthy H100 reaches 70 to 81 % of it, a triad 90 %, a clock 71 %.
FLOORS = {"tflop_s": 0.6, "gb_s": 0.75, "mhz": 0.6}
MOST_HELD_BACK = 5.0  # percent of the time, by heat or the power brake
SETS_CLOCK = 50.0  # percent of the time: from which on the power limit decides the clock, as of cards of 70 W
SHOWN = ("power_capped_percent", "other_processes_percent")  # a power limit is where a GPU is to work
FEWEST_NODES = 3  # from which on a median of nodes stands for a device that nothing else is known of
STATUS = {"low": 1, "unknown": 3, "healthy": 0}  # the worst first
HELP = "nothing is known of this device here; keep what --json prints of a healthy one, and give it as --baseline FILE"
KEYS = {"node", "device", "kind", "values", "state"}
Line = dict[str, Any]
References = Mapping[str, tuple[float | None, str]]  # name → value, and whose it is


def run(device: str, baseline: Path | None, nodes: str | None, as_json: bool, as_prometheus: bool) -> int:
    """Checks this node's device, or shows the lines of others; `STATUS` has the exit status of each state."""
    given = {"--baseline": baseline, "--table": nodes, "--json": as_json, "--prometheus": as_prometheus}
    chosen = [name for name, value in given.items() if value]
    if len([name for name in chosen if name != "--baseline"]) > 1 or {"--baseline", "--table"} <= {*chosen}:
        raise ConfigurationError(f"{' and '.join(chosen)}: give one of them.")
    if nodes is not None:
        lines = _among(_lines(nodes, sys.stdin if nodes == "-" else read_given(Path(nodes)).splitlines()))
        _show_nodes(lines)
        return STATUS[min((line["state"] for line in lines), key=[*STATUS].index)]
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

    before = _lines(str(baseline), read_given(baseline).splitlines()) if baseline else []
    where, _ = prepare(DeviceConfig(type=device))
    name = local_name() if is_gpu(where) else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"
    if len(before) > 1:
        raise ConfigurationError(f"--baseline={baseline}: holds {len(before)} checks; give the file of one.")
    if before and before[0]["device"] != name:
        raise ConfigurationError(f"--baseline={baseline}: of {before[0]['device']}, and this is {name}.")
    pairs = readings_of(where).items()
    values = {key: {"value": reading.value, "unit": reading.unit, "reason": reading.reason} for key, reading in pairs}
    if before:
        references = {key: (reading["value"], "baseline") for key, reading in before[0]["values"].items()}
    else:
        references = printed(values) if is_gpu(where) else {}
        references |= recorded(RECORDINGS / identity.hardware_slug(device))
    return judged({"node": socket.gethostname(), "device": name, "kind": where.type, "values": values}, references)


def printed(values: Mapping[str, Line]) -> dict[str, tuple[float | None, str]]:
    """References from the datasheet of this node's GPU; where the power limit held its clock, rates at that clock."""
    told = {name: reading["value"] for name, reading in values.items()}
    sheet, source, held = local_peak("fp16"), "datasheet", 1.0
    clock, spec_clock = told.get("clock_mhz"), sheet.spec_clock_mhz
    if clock and spec_clock and (told.get("power_capped_percent") or 0.0) > SETS_CLOCK:
        source, held, spec_clock = f"datasheet, at {clock:.0f} MHz", min(1.0, clock / spec_clock), None
    peaks = {key: local_peak(key.removesuffix("_tflop_s")).spec for key in told if key.endswith("_tflop_s")}
    references = {key: (peak and held * peak, source) for key, peak in peaks.items()}
    return references | {"memory_gb_s": (sheet.memory_gb_s, "datasheet"), "clock_mhz": (spec_clock, "datasheet")}


def judged(line: Line, references: References) -> Line:
    """The line with each value's reference, share and state: `low` where one is, `healthy` where any is known."""
    for name, reading in line["values"].items():
        value, (reference, source) = reading["value"], references.get(name) or (None, "")
        reading |= {"reference": reference, "source": source, "share": None, "state": "unknown"}
        if value is not None and name.endswith("_percent"):
            if name not in SHOWN:
                reading |= {"state": "low" if value > MOST_HELD_BACK else "healthy", "source": "driver's counters"}
        elif value is not None and reference:
            unit = next(unit for unit in FLOORS if name.endswith(unit))
            floor = FLOORS[unit] if source.startswith("datasheet") else TOLERATED[line["kind"]]
            reading |= {"share": value / reference, "state": "low" if value < floor * reference else "healthy"}
    states = {reading["state"] for reading in line["values"].values()}
    compared = any(reading["share"] is not None for reading in line["values"].values())
    return line | {"state": "low" if "low" in states else "healthy" if compared else "unknown"}


def recorded(folder: Path) -> dict[str, tuple[float | None, str]]:
    """References from the recording of an equal device; a CPU's cores and vector instructions must be equal too."""
    try:
        tables = [read_csv(folder / f"{name}.csv") for name in ("environment", "ceilings", "matmul")]
        (environment, *_), ceilings, matmuls = tables
    except (OSError, UnreadableError, ValueError):
        return {}
    flags = environment["cpu_vector_flags"]
    if environment["device"] == "cpu" and flags != " ".join(cpu.vector_flags(cpu.cpu().flags)):
        return {}
    values = dict[str, list[float]]()
    for row in ceilings:
        is_memory = row["ceiling"] == "memory"
        if "threads=" in row["run"] or not (is_memory or row["ceiling"] == row["format"]):
            continue
        if value := row.get("swept_tflop_s") or row["measured_tflop_s"] or row["measured_gb_s"]:
            values["memory_gb_s" if is_memory else f"{row['ceiling']}_tflop_s"] = [float(value)]
        if row["clock_mhz"] and not is_memory:
            values["clock_mhz"] = [min([float(row["clock_mhz"]), *values.get("clock_mhz", ())])]
    for row in matmuls:
        for way, operands in (("host_to_device", 2), ("device_to_host", 1)):
            if (seconds := row.get(f"{way}_pinned_s")) and "precision=bf16" in row["run"]:
                rate = operands * 2 * float(row["size"]) ** 2 / float(seconds) / 1e9
                values.setdefault(f"{way}_gb_s", []).append(rate)
    return {name: (max(several), "recording") for name, several in values.items()}


def _lines(file: str, texts: Iterable[str]) -> list[Line]:
    """Checks, one a line, as `--json` prints them; what srun adds is left out. Raises ConfigurationError for none."""
    lines = list[Line]()
    for text in texts:
        _, begin, rest = text.partition('{"node"')  # srun --label puts a number in front
        try:
            line = parse_json(begin + rest or "{}")
            lines += [line] if line.keys() >= KEYS else []
        except ValueError:
            print(f"mfulab: not a whole line of a check: {text[:80]}", file=sys.stderr)
    if not lines:
        raise ConfigurationError(f"{file}: no line of `mfulab check --json` is here.")
    return lines


def _among(lines: Sequence[Line]) -> list[Line]:
    """Judges, by the median of all nodes with the same device, those of whose device nothing else is known."""
    judged_lines = list[Line]()
    for line in lines:
        alike = [other["values"] for other in lines if other["device"] == line["device"]]
        if line["state"] == "unknown" and len(alike) >= FEWEST_NODES:
            columns = {name: [values.get(name, {}).get("value") for values in alike] for name in line["values"]}
            measured = {name: [value for value in column if value is not None] for name, column in columns.items()}
            medians = {name: (median(column), "median of the nodes") for name, column in measured.items() if column}
            line = judged(line, medians)
        judged_lines.append(line)
    return judged_lines


def low(line: Line) -> str:
    """Names what is low, and by how much: `bf16_tflop_s −38 % (recording)`."""
    parts = []
    for name, reading in line["values"].items():
        if reading["state"] == "low":
            by = f"{reading['value']:.0f} %" if (share := reading["share"]) is None else f"−{100 * (1 - share):.0f} %"
            parts.append(f"{name} {by} ({reading['source']})")
    return ", ".join(parts)


def _show(line: Line) -> None:
    console = Terminal(highlight=False, soft_wrap=True)
    says = {"low": f"low: {low(line)}", "unknown": HELP}.get(line["state"], "healthy")
    console.print(f"{line['node']}, {line['device']}: {says}", style="bold")
    shown = table(["check"], ("value", "reference", "share, %"), ["of", ""])
    for name, reading in line["values"].items():
        numbers = [_text(reading[which], reading["unit"]) for which in ("value", "reference")]
        share = "" if reading["share"] is None else f"{100 * reading['share']:.0f}"
        state = reading["reason"] if reading["value"] is None else reading["state"].replace("unknown", "")
        shown.add_row(name, *numbers, share, reading["source"], state)
    console.print(shown)


def _show_nodes(lines: Sequence[Line]) -> None:
    columns = list(dict.fromkeys(name for line in lines for name in line["values"]))
    shown = table(["node", "state"], columns, ["low"])
    for line in sorted(lines, key=lambda line: ([*STATUS].index(line["state"]), line["node"])):
        values = (_text(line["values"].get(name, {}).get("value")) for name in columns)
        shown.add_row(line["node"], line["state"], *values, low(line))
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(shown)
    console.print(", ".join(sorted({line["device"] for line in lines})), style="dim")


def _text(value: float | None, unit: str = "") -> str:
    return f"{significant(value)} {unit if value is not None else ''}".strip()


def prometheus(line: Line) -> Iterator[str]:
    """Lines of Prometheus's text format: each value, its share of the reference, and 1 for healthy or 0 for low."""
    node, device = (json.dumps(line[name], ensure_ascii=False) for name in ("node", "device"))
    where = f"node={node},device={device}"
    for metric in ("value", "share"):
        yield f"# TYPE mfulab_check_{metric} gauge"
        numbers = {name: reading[metric] for name, reading in line["values"].items() if reading[metric] is not None}
        yield from (f'mfulab_check_{metric}{{{where},check="{name}"}} {value:.6g}' for name, value in numbers.items())
    if line["state"] != "unknown":
        yield "# TYPE mfulab_check_healthy gauge"
        yield f"mfulab_check_healthy{{{where}}} {int(line['state'] == 'healthy')}"
