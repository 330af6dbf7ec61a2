"""Equal GPUs side by side: which of them is slower at the same runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, median_low
from typing import NamedTuple

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.core.replicates import base_name
from mfulab.core.said import Said
from mfulab.lab.tables.columns import Records
from mfulab.lab.tables.replicates import times_of

FEWEST_RUNS = 3  # that several cards measured, before one of them is called slow
SLOWER = 1.05  # times as long as the median card that measured the same run, in the median
TIMED = ("profile", "matmul")


class Compared(NamedTuple):
    """Time of a run on one of several cards that measured it, and relative to the median of them;
    of two in the middle to the faster, so that of two cards one is held against the other."""

    hardware: str
    recorded: bool
    run: str
    card: str
    time_s: float
    relative: float


class Card(NamedTuple):
    """A card by the runs that others measured, too: how many, and the median of its relative
    times."""

    hardware: str
    name: str
    runs: int
    factor: float

    @property
    def is_slow(self) -> bool:
        """True if it takes longer than neighbours and clocks explain."""
        return self.factor > SLOWER


def compared(rows: Iterable[Row]) -> list[Compared]:
    """The time of each run on each of its cards, where two or more measured it alone. Rows may be
    merged ones, or of single processes."""
    times = defaultdict[tuple[str, bool, str], dict[str, list[float]]](lambda: defaultdict(list))
    for row in rows:
        key = (row["hardware"], bool(row["recorded"]), base_name(row["run"]))
        for card, time_s in _times_by_card(row):
            times[key][card].append(time_s)
    found = []
    for key, by_card in times.items():
        if len(by_card) < 2:
            continue
        of_cards = {card: median(held) for card, held in by_card.items()}
        middle = median_low(of_cards.values())
        for card, time_s in of_cards.items():
            found.append(Compared(*key, card, time_s, time_s / middle))
    return found


def each(lines: Iterable[Compared]) -> list[Card]:
    """The cards that share enough runs with others, by machine and name; none where one alone
    does."""
    ratios = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for line in lines:
        ratios[line.hardware][line.card].append(line.relative)
    found = []
    for hardware, by_card in sorted(ratios.items()):
        cards = []
        for name, held in sorted(by_card.items()):
            if len(held) >= FEWEST_RUNS:
                cards.append(Card(hardware, name, len(held), median(held)))
        if len(cards) > 1:
            found += cards
    return found


def slow(records: Records) -> Iterator[Said]:
    """A sentence on each GPU that took longer than the others of its kind at the same runs."""
    measured = []
    for table in TIMED:
        for row in records.get(table, []):
            if not row["recorded"]:
                measured.append(row)
    cards = each(compared(measured))
    for card in cards:
        if card.is_slow:
            count = sum(other.hardware == card.hardware for other in cards)
            numbers = {"count": count, "factor": card.factor, "runs": card.runs}
            yield Said("card_slower", {"card": card.name, "hardware": card.hardware, **numbers})


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Labels of cards: an identifier's beginning, or its end where beginnings are alike; whole
    where both are."""
    distinct = sorted(set(names))
    for shortened in (_beginning, _end):
        labels = [shortened(name) for name in distinct]
        if len(set(labels)) == len(distinct):
            return dict(zip(distinct, labels, strict=True))
    return {name: name for name in distinct}


def _beginning(name: str) -> str:
    return "-".join(name.split("-")[:2])


def _end(name: str) -> str:
    return f"…{name.rpartition('-')[2]}"


def _times_by_card(row: Row) -> Iterator[tuple[str, float]]:
    """Card and time of each process of a row that ran on one card; none of a job of several, and
    none on a CPU."""
    if row.get("status", "ok") != "ok":
        return
    cards, times = _cards_of(row), times_of(row)
    if cards and len(cards) == len(times):
        yield from zip(cards, times, strict=True)
        return
    card = row.get("device_uuid") or ""
    if card and " " not in card and row.get("time_s"):
        yield card, row["time_s"]


def _cards_of(row: Row) -> Sequence[str]:
    """The card of each process of a merged row; none where not kept."""
    try:
        cards = parse_json(row.get("process_cards") or "[]")
    except (TypeError, ValueError):
        return []
    if isinstance(cards, list) and all(isinstance(card, str) for card in cards):
        return cards
    return []
