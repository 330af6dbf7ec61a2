"""Several stretches or ranks as one: readings of laps averaged over time, values of ranks as the job's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mfulab.device.samplers.reading import Readings
from mfulab.mfu.utilization import of_peak, product, ratio, tflop_s, total

# Totals of a lap; everything else is a mean over it, and the peak of memory the largest.
_SUMMED, _LARGEST = frozenset({"window_energy_j"}), frozenset({"memory_bytes", "other_processes"})


def merged(laps: Sequence[tuple[float, Readings]]) -> Readings:
    """Readings of laps as those of all: means weighted by the laps' seconds, sums and largest values."""
    if len(laps) == 1:
        return laps[0][1]
    found: Readings = {}
    for name in dict.fromkeys(name for _, readings in laps for name in readings):
        of_all = [(seconds, readings[name]) for seconds, readings in laps if name in readings]
        told = [(seconds, reading) for seconds, reading in of_all if reading.value is not None]
        if not told:
            found[name] = of_all[0][1]
            continue
        values = [reading.value or 0.0 for _, reading in told]
        if name in _SUMMED:
            value = sum(values)
        elif name in _LARGEST:
            value = max(values)
        else:
            value = sum(s * v for (s, _), v in zip(told, values, strict=True)) / sum(s for s, _ in told)
        windows = [reading.window_s for _, reading in told]
        length = sum(w for w in windows if w is not None) if None not in windows else None
        found[name] = replace(told[-1][1], value=value, window_s=length)
    return found


def over_ranks(row: Mapping[str, Any]) -> dict[str, Any]:
    """A window's row over all ranks, a collective call: see `Measurement.job`."""
    own = {name: row.get(name) for name in ("flops", "executed_flops", "mfu_percent", "hfu_percent", "tflop_s")}
    own["seconds"] = row["flops"] / row["tflop_s"] / 1e12 if own["flops"] and own["tflop_s"] else row.get("time_s")
    ranks: list[Any] = [own]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(ranks, own)
    return as_job(ranks)


def as_job(ranks: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The job's values from those of its ranks: `flops`, `executed_flops` and `seconds` of a mean step, `mfu_percent`.

    What a rank does not know the job does not know either. A rank's peak follows from its own MFU.
    """
    seconds = [rank["seconds"] for rank in ranks]
    slowest = max(range(len(ranks)), key=lambda place: seconds[place] or 0.0)
    longest = seconds[slowest]

    flops, executed = (total(*(rank[name] for rank in ranks)) for name in ("flops", "executed_flops"))
    peak = total(*(ratio(product(100, rank["tflop_s"]), rank["mfu_percent"]) or None for rank in ranks))
    return {
        "ranks": len(ranks),
        "tflop_s": tflop_s(flops, longest),
        "mfu_percent": of_peak(flops, longest, peak),
        "hfu_percent": of_peak(executed, longest, peak),
        "slowest_rank": slowest,
        "rank_mfu_percent": [rank["mfu_percent"] for rank in ranks],
        "rank_step_s": seconds,
    }
