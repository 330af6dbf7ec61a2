"""Compares GPUs of one kind by the runs that several of them measured, to find slow ones."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, median_low
from typing import NamedTuple

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.core.said import Said
from mfulab.lab.tables.columns import Records
from mfulab.lab.tables.replicates import RunKey, times_of

FEWEST_RUNS = 3  # runs in common with other cards, below which a card is not judged
SLOWER = 1.05  # median relative time above which a card is called slow
TIMED = ("profile", "matmul")  # tables


class Compared(NamedTuple):
    """Time of a run on one card, and relative to the median of all cards that measured it. Of an
    even number of cards, the median is the faster of the middle two."""

    hardware: str
    recorded: bool
    run: str
    card: str
    time_s: float
    relative: float


class Card(NamedTuple):
    """A card's number of runs that other cards measured too, and the median of its relative
    times."""

    hardware: str
    name: str
    runs: int
    factor: float

    @property
    def is_slow(self) -> bool:
        """True if the median relative time is above `SLOWER`."""
        return self.factor > SLOWER


def compared(rows: Iterable[Row]) -> list[Compared]:
    """Compares the times of each run across the cards of a machine. Runs of a single card are left
    out. Rows may be merged, or of single processes."""
    times = defaultdict[RunKey, dict[str, list[float]]](lambda: defaultdict(list))
    for row in rows:
        run = RunKey.of(row)
        for card, time_s in _times_by_card(row):
            times[run][card].append(time_s)
    found = []
    for run, by_card in times.items():
        if len(by_card) < 2:
            continue
        medians = {card: median(times_s) for card, times_s in by_card.items()}
        reference_s = median_low(medians.values())
        for card, time_s in medians.items():
            found.append(Compared(*run, card, time_s, time_s / reference_s))
    return found


def summarised(lines: Iterable[Compared]) -> list[Card]:
    """Summarises each card that shares enough runs with others, sorted by machine and name.
    Machines with fewer than two such cards are left out."""
    ratios = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for line in lines:
        ratios[line.hardware][line.card].append(line.relative)
    found = []
    for hardware, by_card in sorted(ratios.items()):
        cards = []
        for name, relative in sorted(by_card.items()):
            if len(relative) >= FEWEST_RUNS:
                cards.append(Card(hardware, name, len(relative), median(relative)))
        if len(cards) > 1:
            found += cards
    return found


def slow(records: Records) -> Iterator[Said]:
    """Yields a sentence for each GPU that took longer than others of its kind at the same runs."""
    measured = []
    for table in TIMED:
        for row in records.get(table, []):
            if not row["recorded"]:
                measured.append(row)
    cards = summarised(compared(measured))
    for card in cards:
        if card.is_slow:
            count = sum(other.hardware == card.hardware for other in cards)
            numbers = {"count": count, "factor": card.factor, "runs": card.runs}
            yield Said("card_slower", card=card.name, hardware=card.hardware, **numbers)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shortens card identifiers for labels, to their beginning, or to their end if beginnings
    collide. Full names if both collide."""
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
    """Yields card and time (s) of each process of a row that ran on a single card. Yields nothing
    for failed rows, CPUs and jobs on several cards."""
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
    """Card of each process of a merged row; empty if not recorded."""
    try:
        cards = parse_json(row.get("process_cards") or "[]")
    except (TypeError, ValueError):
        return []
    if isinstance(cards, list) and all(isinstance(card, str) for card in cards):
        return cards
    return []
