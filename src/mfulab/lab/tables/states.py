"""States of a machine while it was measured: probes that rows bring along, against the machine's best."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfulab.timing.probe import Best, State

# By machine and threads: a matmul on two threads is no measure of one on four.
Bests = Mapping[tuple[str, int], Best]
QUIET = 0.05  # the share of probes that may be faster than the best: one lucky probe must not disturb all others


def probes(row: Mapping[str, Any]) -> tuple[int, list[State]]:
    """Threads of a row's probes, and the probes; none where they are missing or cannot be read."""
    try:
        found = json.loads(row.get("probes") or "{}")
        columns = (found.get("at_s", ()), found.get("product_s", ()), found.get("copy_s", ()))
        states = [State(float(at), float(one), float(two)) for at, one, two in zip(*columns, strict=True)]
        return int(found.get("threads", 0)), [state for state in states if min(state.product_s, state.copy_s) > 0]
    except (ValueError, TypeError, AttributeError):
        return 0, []


def best(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Best]:
    """Readings of each machine's probes where nothing disturbs: their fastest twentieth."""
    found: dict[tuple[str, int], list[State]] = {}
    for row in rows:
        threads, states = probes(row)
        found.setdefault((row["hardware"], threads), []).extend(states)

    def quick(states: Sequence[State], part: str) -> float:
        return sorted(getattr(state, part) for state in states)[int(QUIET * len(states))]

    return {key: Best(*(quick(states, part) for part in Best._fields)) for key, states in found.items() if states}


def slowdown(row: Mapping[str, Any], bests: Bests) -> float:
    """The median of a row's probes against the machine's best, 1 or more; 1 without probes."""
    threads, states = probes(row)
    known = bests.get((row["hardware"], threads))
    return statistics.median(state.slowdown(known) for state in states) if known and states else 1.0


def joined(texts: Iterable[str | None]) -> str | None:
    """Probes of several processes as one JSON text, in order of time; None without any."""
    found = [probes({"probes": text}) for text in texts if text]
    states = sorted((state for _, each in found for state in each), key=lambda state: state.at_s)
    if not states:
        return None
    columns = {name: [getattr(state, name) for state in states] for name in ("at_s", "product_s", "copy_s")}
    return json.dumps({"threads": found[0][0], **columns})
