"""Reasons why a run was ended from outside or left out: a key of the catalogues' section `verdict`
and its numbers, as JSON. Standard library alone, as the client that starts each run imports it."""

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
# Ends after which another process of the same run may well succeed.
BY_CHANCE = (SIGNALLED, INTERRUPTED, UNSUPERVISED)


def ending(key: str, **numbers: float | str) -> str:
    """JSON of one key and its numbers."""
    return json.dumps({key: numbers}, ensure_ascii=False)


def key_of(cell: str | None) -> str:
    """Key in a cell of `ended_by`; "" if the cell is empty or unreadable."""
    return next(iter(_content(cell)), "")


def numbers_of(cell: str | None) -> Values:
    """Numbers in a cell of `ended_by`; empty if there are none."""
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
