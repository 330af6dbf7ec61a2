"""Shows lines of `mfulab check` as sentences, tables, bars and Prometheus's text, in the terminal's
language."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from rich.table import Column, Table

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.core.language.sentences import reason
from mfulab.core.language.verdicts import say
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal, table
from mfulab.core.terminal_language import in_words, terminal_texts
from mfulab.loop.interactive.show import bar
from mfulab.mfu.causes import OTHERS

State = Literal["low", "unknown", "healthy"]
STATUS: dict[State, int] = {"low": 1, "unknown": 3, "healthy": 0}  # the worst first
# Share of the median of a node's cards below which one is low; they share air and driver.
CARD_FLOOR = 0.95
FEWEST_NODES = 3  # nodes or cards from which on their median is a reference
FILE_WIDTH = 200  # columns of a table that is not printed to a terminal
NOTHING_KNOWN = Said("check_knows_nothing")


@dataclass(frozen=True)
class CheckedValue:
    """One reading of a check with its reference. `reason` is {key: numbers}, or a text in an older
    line."""

    value: int | float | None
    unit: str = ""
    reason: str | dict[str, dict[str, object]] = field(default_factory=dict)
    reference: int | float | None = None
    source: str = ""  # of the reference: a key of the catalogue's names.checked_against
    at_mhz: float | None = None  # clock of the reference, if the card's power limit sets its clock
    share: float | None = None
    state: State = "unknown"


@dataclass(frozen=True)
class DeviceCheck:
    """A check of one device, as `--json` prints it."""

    node: str
    device: str
    kind: str
    values: dict[str, CheckedValue]
    state: State


def medians(lines: Iterable[DeviceCheck], device: str) -> dict[str, float]:
    """Median of each value over the lines of a device; values in fewer than `FEWEST_NODES` lines
    are left out."""
    columns = defaultdict[str, list[float]](list)
    for line in lines:
        if line.device != device:
            continue
        for name, reading in line.values.items():
            if reading.value is not None:
                columns[name].append(reading.value)
    return {name: median(column) for name, column in columns.items() if len(column) >= FEWEST_NODES}


def low(line: DeviceCheck, text: Texts) -> str:
    """Names the values that are low, and by how much: `bf16_tflop_s −38 % (recording)`."""
    parts = []
    for name, reading in line.values.items():
        if reading.state == "low":
            share = reading.share
            by = f"{reading.value:.0f} %" if share is None else f"−{100 * (1 - share):.0f} %"
            parts.append(f"{name} {by} ({_source(reading, text)})")
    return text.written(", ".join(parts))


def _source(reading: CheckedValue, text: Texts) -> str:
    """The source of a reference in words."""
    source = text.name("checked_against", reading.source)
    clock = reading.at_mhz
    if clock is None:
        return source
    return text("at_clock", source=source, clock=clock)


def show(line: DeviceCheck) -> None:
    """Prints the verdict on one device, and a table of its values."""
    text = terminal_texts("check")
    verdicts = {
        "low": text("is_low", parts=low(line, text)),
        "unknown": say(NOTHING_KNOWN, text.language),
        "healthy": text("is_healthy"),
    }
    console = Terminal(soft_wrap=True)
    verdict = verdicts[line.state]
    console.print(f"{line.node}, {line.device}: {verdict}", style="bold")
    others = line.values.get("other_processes_percent")
    share = None if others is None else others.value
    if share is not None and share >= OTHERS:
        console.print(text("beside", share=percent(share)), style="bold red")
    console.print(_values(line, text))


def _values(line: DeviceCheck, text: Texts) -> Table:
    """Table with a row per value; without the columns for references if no value has one."""
    name = Column(text("checked"), no_wrap=True)
    value = Column(text("value"), no_wrap=True, justify="right")
    compared = [text("reference"), text("share")]
    last = text("against")
    if all(reading.reference is None for reading in line.values.values()):
        compared = []
        last = ""
    shown = table([name, value], compared, [last])
    for check, reading in line.values.items():
        number, *references, remark = _cells(reading, text)
        shown.add_row(check, number, *references[: len(compared)], remark)
    return shown


def _cells(reading: CheckedValue, text: Texts) -> tuple[str, str, str, str]:
    """Cells of a reading: value, reference, share, and a remark with its source and state, or the
    reason why there is no value."""
    share = ""
    if reading.share is not None:
        share = text.written(f"{100 * reading.share:.0f} %")
    remark = _source(reading, text)
    if reading.value is None:
        remark = reason(reading.reason, text.language)
    elif reading.state != "unknown":
        remark = f"{remark}: {text.name('check_state', reading.state)}"
    numbers = (_number(reading.value, reading.unit), _number(reading.reference))
    return (*numbers, share, remark)


def show_nodes(lines: Sequence[DeviceCheck]) -> None:
    """Prints a table with a row per node, the worst first, and what is low there."""
    text = terminal_texts("check")
    names = dict[str, None]()
    for line in lines:
        names |= dict.fromkeys(line.values)
    columns = list(names)
    shown = table([text("node"), text("state")], columns, [text("low")])
    for line in sorted(lines, key=lambda line: ([*STATUS].index(line.state), line.node)):
        cells = []
        for name in columns:
            reading = line.values.get(name)
            cells.append(_number(reading.value) if reading else "")
        state = text.name("check_state", line.state)
        shown.add_row(line.node, state, *cells, low(line, text))
    console = Terminal.wide(FILE_WIDTH)
    console.print(shown)
    console.print(", ".join(sorted({line.device for line in lines})), style="dim")


@dataclass(frozen=True)
class CardShares:
    """One value of equal cards: its name, and each card's share of the median."""

    name: str
    shares: dict[str, float]  # keyed by node and card

    @property
    def slowest(self) -> str:
        """The card with the lowest share."""
        return min(self.shares, key=self.shares.__getitem__)


def worst_shares(lines: Sequence[DeviceCheck], device: str) -> CardShares | None:
    """The value in which a card of this device falls furthest below the median; None if there are
    fewer than three cards."""
    found = list[CardShares]()
    for name, middle in medians(lines, device).items():
        if middle and not name.endswith("_percent"):
            found.append(CardShares(name, _shares(lines, device, name, middle)))
    return min(found, key=lambda compared: compared.shares[compared.slowest], default=None)


def _shares(
    lines: Sequence[DeviceCheck], device: str, name: str, middle: float
) -> dict[str, float]:
    shares = dict[str, float]()
    for line in lines:
        value = None
        if line.device == device:
            value = line.values[name].value
        if value is not None:
            shares[line.node] = value / middle
    return shares


def cards_sentence(lines: Sequence[DeviceCheck], device: str) -> Said:
    """The sentence about the cards of a device: which one is slow, that none is, or that there are
    too few to compare."""
    count = sum(line.device == device for line in lines)
    worst = worst_shares(lines, device)
    if worst is None:
        return Said("cards_too_few", count=count, device=device, least=FEWEST_NODES)
    lowest = worst.shares[worst.slowest]
    short = 100 * (1 - lowest)
    numbers: Numbers = {"count": count, "device": device, "name": worst.name, "short": short}
    if lowest >= CARD_FLOOR:
        return Said("cards_alike", numbers)
    return Said("card_low", **numbers, card=worst.slowest)


def show_cards(lines: Sequence[DeviceCheck]) -> None:
    """Prints a sentence for each kind of card, and a bar per card for the value that differs
    most."""
    console = Terminal.wide(FILE_WIDTH)
    text = terminal_texts("check")
    for device in sorted({line.device for line in lines}):
        console.print(in_words(cards_sentence(lines, device)), style="bold")
        worst = worst_shares(lines, device)
        if worst is None:
            continue
        for card, share in worst.shares.items():
            shown = text.written(f"{100 * share:.1f} %")
            console.print(f"  {card}  {bar(100 * share)} {shown}")


def _number(value: float | None, unit: str = "") -> str:
    return f"{significant(value)} {unit if value is not None else ''}".strip()


def prometheus(line: DeviceCheck) -> Iterator[str]:
    """Yields lines of Prometheus's text format: each value, its share of the reference, and 1 if
    healthy or 0 if low."""
    node = json.dumps(line.node, ensure_ascii=False)
    device = json.dumps(line.device, ensure_ascii=False)
    where = f"node={node},device={device}"
    for metric in ("value", "share"):
        yield f"# TYPE mfulab_check_{metric} gauge"
        for name, reading in line.values.items():
            number = getattr(reading, metric)
            if number is not None:
                yield f'mfulab_check_{metric}{{{where},check="{name}"}} {number:.6g}'
    if line.state != "unknown":
        yield "# TYPE mfulab_check_healthy gauge"
        yield f"mfulab_check_healthy{{{where}}} {int(line.state == 'healthy')}"
