"""Hardware counters of data center GPUs without GPM, from the page of a dcgm-exporter. Each value
is a mean over 30 s, unless the exporter's `-c` sets another interval."""

import os
import re
import threading
import time

from mfulab.core import web
from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Readings, Watched, missing, sampler
from mfulab.device.vendors.gpm import UNITS

ADDRESS = "MFULAB_DCGM"  # environment variable with the page's URL, if not the usual one
USUAL = "http://localhost:9400/metrics"
PATIENCE_S = 0.5
INTERVAL_S = 1.0
MOST_BYTES = 4 << 20
LEAST = 2  # minimum number of new values in a window
# Counter names without the prefix DCGM_FI_PROF_ → columns.
FIELDS = {
    "GR_ENGINE_ACTIVE": "graphics_active_percent",
    "SM_ACTIVE": "sm_active_percent",
    "SM_OCCUPANCY": "occupancy_percent",
    "PIPE_TENSOR_ACTIVE": "tensor_active_percent",
    "DRAM_ACTIVE": "dram_active_percent",
    "PIPE_FP64_ACTIVE": "fp64_active_percent",
    "PIPE_FP32_ACTIVE": "fp32_active_percent",
    "PIPE_FP16_ACTIVE": "fp16_active_percent",
}
LONGEST = 4096  # characters per line; an exporter's lines have a few hundred
_LINE = re.compile(r'DCGM_FI_PROF_(\w+)\{[^}]*\bUUID="([^"]+)"[^}]*\} (\S+)')


def address() -> str:
    """URL of the exporter's page."""
    return os.environ.get(ADDRESS) or USUAL


def page(uuid: str) -> dict[str, float] | None:
    """Current values of one GPU on the exporter's page, in percent by column. None if no exporter
    reports this GPU."""
    try:
        # behind a proxy, localhost would be another machine
        text = web.fetched(address(), PATIENCE_S, MOST_BYTES, by_proxy=False)
        shown = _counters(text.decode(errors="replace"), uuid)
    except (web.WebError, ValueError):  # another service may listen there
        return None
    return shown or None


def _counters(text: str, uuid: str) -> dict[str, float]:
    counters = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line) if len(line) < LONGEST else None
        if found is None:
            continue
        name, whose, value = found.groups()
        if name in FIELDS and whose == uuid:
            counters[FIELDS[name]] = 100 * float(value)
    return counters


@sampler
def dcgm_sampler(uuid: str, without: Said, interval_s: float = INTERVAL_S) -> Watched:
    """Means over the values that were new on the page in the window. `without` is why no more
    direct source is used."""
    first = page(uuid)
    if first is None:
        yield
        absent = Said("and_no_exporter", why=without, address=address())
        return missing(UNITS, "DCGM", absent)
    seen = [first]
    over = threading.Event()
    began_s = time.perf_counter()

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
        # without the first value, which is from before the window
        new = [values[name] for values in seen[1:] if name in values]
        reason: Said | None = None
        if name not in seen[-1]:
            reason = Said("not_exported", why=without)
        elif len(new) < LEAST:
            reason = Said("few_exported", count=len(new), seconds=window_s)
        value = None if reason else sum(new) / len(new)
        readings[name] = Reading(value, unit, "DCGM, as its exporter shows it", window_s, reason)
    return readings
