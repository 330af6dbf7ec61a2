"""The rungs from busy to useful: which samplers a device gets, in order of preference, and how they fill a row."""

import json
from typing import Any

from mfulab.measure.cpu_sampler import CpuSampler
from mfulab.measure.reading import Readings, Sampler
from mfulab.schema import ProfileRow


def samplers_for(device: Any) -> list[Sampler]:
    """The samplers of a torch.device, the strictest source first."""
    return [CpuSampler()]


def set_readings(row: ProfileRow, readings: Readings) -> None:
    """Writes readings into the row's columns of their names; sources and reasons become JSON beside them."""
    sources, reasons = {}, {}
    for name, reading in readings.items():
        if reading.value is None:
            reasons[name] = reading.reason
        else:
            setattr(row, name, reading.value)
            sources[name] = reading.origin
    row.sources = json.dumps(sources, ensure_ascii=False)
    row.reasons = json.dumps(reasons, ensure_ascii=False) if reasons else None
    row.utilization_source, row.memory_source = sources.get("utilization_percent"), sources.get("memory_bytes")
