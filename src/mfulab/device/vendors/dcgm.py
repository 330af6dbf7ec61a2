"""Counters of a data center GPU without GPM: means on a dcgm-exporter's page, 30 s each unless `-c` says otherwise."""

import os
import re
import threading
import time
import urllib.request
from http.client import HTTPException

from mfulab.device.samplers.reading import Reading, Readings, Watched, missing, sampler
from mfulab.device.vendors.gpm import UNITS

ADDRESS = "MFULAB_DCGM"  # of the page, where it is not the usual one
USUAL = "http://localhost:9400/metrics"
PATIENCE_S, INTERVAL_S, MOST_BYTES = 0.5, 1.0, 4 << 20
LEAST = 2  # values that must have appeared in a window
# What follows DCGM_FI_PROF_ in a counter's name.
FIELDS = {
    **{"GR_ENGINE_ACTIVE": "graphics_active_percent", "SM_ACTIVE": "sm_active_percent"},
    **{"SM_OCCUPANCY": "occupancy_percent", "PIPE_TENSOR_ACTIVE": "tensor_active_percent"},
    **{"DRAM_ACTIVE": "dram_active_percent", "PIPE_FP64_ACTIVE": "fp64_active_percent"},
    **{"PIPE_FP32_ACTIVE": "fp32_active_percent", "PIPE_FP16_ACTIVE": "fp16_active_percent"},
}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy sees another machine
_LINE = re.compile(r'^DCGM_FI_PROF_(\w+)\{[^}]*\bUUID="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


def address() -> str:
    """The address at which an exporter's page would be."""
    return os.environ.get(ADDRESS) or USUAL


def page(uuid: str) -> dict[str, float] | None:
    """Columns of one GPU as the page shows them now, in percent; None where no exporter counts for it there."""
    try:
        with _DIRECT.open(address(), timeout=PATIENCE_S) as answer:
            lines = _LINE.findall(answer.read(MOST_BYTES).decode(errors="replace"))
        shown = {FIELDS[name]: 100 * float(value) for name, whose, value in lines if name in FIELDS and whose == uuid}
    except (OSError, ValueError, HTTPException):  # another service may listen there
        return None
    return shown or None


@sampler
def dcgm_sampler(uuid: str, without: str, interval_s: float = INTERVAL_S) -> Watched:
    """Means of what the page showed anew in the window; `without` says why there is no stricter source."""
    first = page(uuid)
    if first is None:
        yield
        return missing(UNITS, "DCGM", f"{without}, and no dcgm-exporter shows this GPU's counters at {address()}")
    seen, over, began_s = [first], threading.Event(), time.perf_counter()

    def watch() -> None:
        while not over.wait(interval_s):
            now = page(uuid)
            if now is not None and now != seen[-1]:
                seen.append(now)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    window_s = time.perf_counter() - began_s
    over.set()
    thread.join()
    readings: Readings = {}
    for name, unit in UNITS.items():
        new = [values[name] for values in seen[1:] if name in values]  # the first is of the time before
        reason = ""
        if name not in seen[-1]:
            reason = f"{without}, and the dcgm-exporter's list of counters lacks it for this GPU"
        elif len(new) < LEAST:
            reason = f"{len(new)} new values in {window_s:.0f} s: start the exporter with -c 1000"
        value = None if reason else sum(new) / len(new)
        readings[name] = Reading(value, unit, "DCGM, as its exporter shows it", window_s, reason)
    return readings
