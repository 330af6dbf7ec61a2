"""Equal GPUs side by side: which of them is slower at the same runs."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from mfulab.core.replicates import base_name
from mfulab.core.said import Said
from mfulab.lab.tables.columns import Record, Records

FEWEST_RUNS = 3  # that several cards measured, before one of them is called slow
SLOWER = 1.05  # times as long as the median of the cards that measured the same run
TIMED = ("profile", "matmul")


def slow(records: Records) -> Iterator[Said]:
    """A sentence on each GPU that took longer than the others of its kind at the same runs, by rows
    of single processes."""
    ratios = defaultdict[tuple[str, str], list[float]](list)
    for (hardware, _), times in _by_run(records).items():
        if len(times) > 1:
            middle = median(times.values())
            for card, time_s in times.items():
                ratios[hardware, card].append(time_s / middle)
    for (hardware, card), found in sorted(ratios.items()):
        factor = median(found)
        if len(found) >= FEWEST_RUNS and factor > SLOWER:
            cards = len({other for name, other in ratios if name == hardware})
            counts = {"count": cards, "factor": factor, "runs": len(found)}
            yield Said("card_slower", {"card": card, "hardware": hardware, **counts})


def _by_run(records: Records) -> dict[tuple[str, str], dict[str, float]]:
    """Median time of each run on each card that measured it alone."""
    times = defaultdict[tuple[str, str], dict[str, list[float]]](lambda: defaultdict(list))
    for table in TIMED:
        for row in records.get(table, []):
            if card := _card(row):
                times[row["hardware"], base_name(row["run"])][card].append(row["time_s"])
    return {
        run: {card: median(held) for card, held in by_card.items()}
        for run, by_card in times.items()
    }


def _card(row: Record) -> str:
    """The one GPU that a row was timed on; empty for a job of several, a CPU and what was
    recorded."""
    card = row.get("device_uuid") or ""
    if card and " " not in card and row.get("time_s") and not row["recorded"]:
        return card
    return ""
