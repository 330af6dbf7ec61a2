"""Collectives of several ranks held against one another: who transfers, who waits, and for whom."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

Place = TypeVar("Place")  # a rank, or a device of one


def waits(calls: Mapping[Place, Mapping[str, Sequence[int]]]) -> dict[Place, tuple[int, int]]:
    """Transfer and waiting of each rank, ns, over the collectives that all ranks recorded equally often.

    A collective ends on all ranks at about the same time, so the shortest is the transfer, and what a rank's own takes
    beyond it is waiting. `calls` holds for each rank the ns of its collectives in order, by name.
    """
    first, *others = calls.values()
    shared = [name for name in first if all(len(other.get(name, ())) == len(first[name]) for other in others)]
    found = dict.fromkeys(calls, (0, 0))
    for name in shared:
        for times in zip(*(calls[rank][name] for rank in calls), strict=True):
            transfer = min(times)
            for rank, time in zip(calls, times, strict=True):
                found[rank] = (found[rank][0] + transfer, found[rank][1] + time - transfer)
    return found if shared else {}
