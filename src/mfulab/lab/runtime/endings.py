"""Endings of a run from outside, or what left it out: a key of section `verdict` of the catalogues and
its numbers, as JSON. Standard library alone, as each run's client reads it."""

import json
import math

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Values

LEFT_OUT = "left_out_for_budget"
STOPPED = "stopped_for_budget"
SIGNALLED = "ended_by_signal"
INTERRUPTED = "ended_by_interrupt"
UNSUPERVISED = "supervisor_killed"
MEMORY = "killed_for_memory"
EXITED = "exited_without_row"
LATE = "time_limit_reached"
DEVICE_HELD = "device_held"
# Ends after which another process of the same run may well come to its end.
BY_CHANCE = (SIGNALLED, INTERRUPTED, UNSUPERVISED)


def ending(key: str, **numbers: float | str) -> str:
    """JSON of one key and its numbers."""
    return json.dumps({key: numbers}, ensure_ascii=False)


def key_of(cell: str | None) -> str:
    """Key in a cell of `ended_by`; empty for an empty or unreadable one."""
    return next(iter(_content(cell)), "")


def numbers_of(cell: str | None) -> Values:
    """Numbers beside the key of a cell of `ended_by`; empty without any."""
    numbers = next(iter(_content(cell).values()), None)
    if isinstance(numbers, dict):
        return numbers
    return {}


def budget_min(cell: str | None) -> float | None:
    """Minutes of the budget that left a run out or stopped it; None for any other end."""
    if key_of(cell) not in (LEFT_OUT, STOPPED):
        return None
    minutes = numbers_of(cell).get("budget_min")
    if isinstance(minutes, int | float) and math.isfinite(minutes):
        return float(minutes)
    return None


def _content(cell: str | None) -> Values:
    try:
        content = parse_json(cell or "{}")
    except ValueError:
        return {}
    if isinstance(content, dict):
        return content
    return {}
