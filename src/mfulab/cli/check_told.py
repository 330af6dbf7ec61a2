"""Lines of `mfulab check` as sentences, tables, bars and Prometheus's text, in the terminal's
language."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, Required, TypedDict

from rich.table import Column, Table

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.core.language.sentences import reason, sentence
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal, table
from mfulab.core.terminal_language import usual_language
from mfulab.loop.interactive.show import bar
from mfulab.mfu.causes import OTHERS

State = Literal["low", "unknown", "healthy"]
# What a value is held against: of a card's links the most that it can have, of the others the
# median of equal cards or nodes.
Source = Literal[
    "",
    "baseline",
    "recording",
    "datasheet",
    "card_most",
    "cards_median",
    "nodes_median",
    "driver_counters",
]
STATUS: dict[State, int] = {"low": 1, "unknown": 3, "healthy": 0}  # the worst first
OF_EQUALS = 0.95  # share of the median of one node's cards, alone with the same air and driver
# from which on a median of nodes stands for a device that nothing else is known of
FEWEST_NODES = 3
FILE_WIDTH = 200  # columns of a table that goes to no terminal
NOTHING_KNOWN = Said("check_knows_nothing")


class Value(TypedDict, total=False):
    """One reading of a check, and what it is held against; `reason` is {key: numbers}, or a text of
    an older line."""

    value: Required[float | None]
    unit: Required[str]
    reason: Required[str | Mapping[str, Mapping[str, object]]]
    reference: float | None
    source: Source
    at_mhz: float | None  # the clock of a reference for a card that its power limit holds
    share: float | None
    state: State


class Line(TypedDict, total=False):
    """A check of one device, as `--json` prints it."""

    node: Required[str]
    device: Required[str]
    kind: Required[str]
    values: Required[dict[str, Value]]
    state: Required[State]


def medians(lines: Iterable[Line], device: str) -> dict[str, float]:
    """Median of each value over the lines of a device; of fewer than three lines none."""
    columns = defaultdict[str, list[float]](list)
    for line in lines:
        if line["device"] != device:
            continue
        for name, reading in line["values"].items():
            if reading["value"] is not None:
                columns[name].append(reading["value"])
    return {name: median(column) for name, column in columns.items() if len(column) >= FEWEST_NODES}


def low(line: Line, language: str = "en") -> str:
    """Names what is low, and by how much: `bf16_tflop_s −38 % (recording)`."""
    text = Texts(language, "check")
    parts = []
    for name, reading in line["values"].items():
        if reading["state"] == "low":
            share = reading["share"]
            by = f"{reading['value']:.0f} %" if share is None else f"−{100 * (1 - share):.0f} %"
            parts.append(f"{name} {by} ({_source(reading, text)})")
    return ", ".join(parts)


def _source(reading: Value, text: Texts) -> str:
    """The words for what a value is held against."""
    source = text.name("checked_against", reading["source"])
    clock = reading.get("at_mhz")
    if clock is None:
        return source
    return text("at_clock", source=source, clock=clock)


def show(line: Line) -> None:
    """Prints the verdict on one device, and a table of its values."""
    language = usual_language()
    text = Texts(language, "check")
    told = {
        "low": text("is_low", parts=low(line, language)),
        "unknown": sentence(NOTHING_KNOWN.key, {}, language),
    }
    console = Terminal(highlight=False, soft_wrap=True)
    says = told.get(line["state"], text("is_healthy"))
    console.print(f"{line['node']}, {line['device']}: {says}", style="bold")
    others = line["values"].get("other_processes_percent")
    share = None if others is None else others["value"]
    if share is not None and share >= OTHERS:
        console.print(text("beside", share=percent(share)), style="bold red")
    console.print(_values(line, text))


def _values(line: Line, text: Texts) -> Table:
    """A row a value; without columns for references where nothing has one."""
    name = Column(text("checked"), no_wrap=True)
    value = Column(text("value"), no_wrap=True, justify="right")
    shown = table([name, value], (text("reference"), text("share")), [text("against")])
    if all(reading["reference"] is None for reading in line["values"].values()):
        shown = table([name, value], (), [""])
        for check, reading in line["values"].items():
            number, _, _, told = _cells(reading, text)
            shown.add_row(check, number, told)
        return shown
    for check, reading in line["values"].items():
        shown.add_row(check, *_cells(reading, text))
    return shown


def _cells(reading: Value, text: Texts) -> tuple[str, str, str, str]:
    """A reading's value, reference and share, and what it is of with its state, or why it lacks."""
    share = ""
    if reading["share"] is not None:
        share = f"{100 * reading['share']:.0f} %"
    told = _source(reading, text)
    if reading["value"] is None:
        told = reason(reading["reason"] or "", text.language)
    elif reading["state"] != "unknown":
        told = f"{told}: {text.name('check_state', reading['state'])}"
    numbers = (_text(reading["value"], reading["unit"]), _text(reading["reference"]))
    return (*numbers, share, told)


def show_nodes(lines: Sequence[Line]) -> None:
    """Prints a row a node, the worst first, with what is low."""
    language = usual_language()
    text = Texts(language, "check")
    columns = list(dict.fromkeys(name for line in lines for name in line["values"]))
    shown = table([text("node"), text("state")], columns, [text("low")])
    for line in sorted(lines, key=lambda line: ([*STATUS].index(line["state"]), line["node"])):
        readings = map(line["values"].get, columns)
        values = (_text(reading["value"]) if reading else "" for reading in readings)
        state = text.name("check_state", line["state"])
        shown.add_row(line["node"], state, *values, low(line, language))
    console = _wide()
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
    for name, middle in medians(lines, device).items():
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


def show_beside(lines: Sequence[Line]) -> None:
    """Prints for each kind of card its sentence, and a bar a card of what tells them apart."""
    console = _wide()
    for device in sorted({line["device"] for line in lines}):
        said = told_beside(lines, device)
        console.print(sentence(said.key, said.numbers, usual_language()), style="bold")
        apart = beside_one_another(lines, device)
        if apart is None:
            continue
        for card, share in apart.shares.items():
            console.print(f"  {card}  {bar(100 * share)} {100 * share:.1f} %")


def _wide() -> Terminal:
    """A console as wide as the terminal, or as a file's tables."""
    return Terminal(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)


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
