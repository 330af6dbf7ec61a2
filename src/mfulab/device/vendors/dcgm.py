"""Counters of a data center GPU without GPM, from the page of a dcgm-exporter that somebody runs on this machine.

The exporter shows means over its own interval, 30 s unless `-c` says otherwise. A window's value is the mean of those
that appeared in it; the page is asked once a second.
"""

import os
import re
import threading
import time
import urllib.request

from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.vendors.gpm import UNITS

ADDRESS = "MFULAB_DCGM"  # of the page, where it is not the usual one
USUAL = "http://localhost:9400/metrics"
PATIENCE_S, INTERVAL_S, MOST_BYTES = 0.5, 1.0, 4 << 20
LEAST = 2  # values that must have appeared in a window
FIELDS = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "graphics_active_percent",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active_percent",
    "DCGM_FI_PROF_SM_OCCUPANCY": "occupancy_percent",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active_percent",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active_percent",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": "fp64_active_percent",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": "fp32_active_percent",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": "fp16_active_percent",
}
_LINE = re.compile(r'^(DCGM_FI_PROF_\w+)\{[^}]*\bUUID="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


def address() -> str:
    """The address at which an exporter's page would be."""
    return os.environ.get(ADDRESS) or USUAL


def page(uuid: str) -> dict[str, float] | None:
    """Columns of one GPU as the page shows them now, in percent; None where no exporter answers."""
    try:
        with urllib.request.urlopen(address(), timeout=PATIENCE_S) as answer:  # noqa: S310 - the user's own
            text = answer.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return None
    found = {}
    for name, known, value in _LINE.findall(text):
        if name in FIELDS and known == uuid:
            found[FIELDS[name]] = 100 * float(value)
    return found


class DcgmSampler:
    """Means of what the page showed anew in the window; `without` says why there is no stricter source."""

    def __init__(self, uuid: str, without: str, interval_s: float = INTERVAL_S) -> None:
        self._uuid, self._without, self._interval_s = uuid, without, interval_s
        self._seen: list[dict[str, float]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_s = 0.0

    def start(self) -> None:
        first = page(self._uuid)
        self._seen, self._over, self._thread = [], threading.Event(), None
        self._began_s = time.perf_counter()
        if first is not None:
            self._seen.append(first)
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            now = page(self._uuid)
            if now is not None and now != self._seen[-1]:
                self._seen.append(now)

    def stop(self) -> Readings:
        window_s = time.perf_counter() - self._began_s
        if self._thread is None:
            reason = f"{self._without}, and no dcgm-exporter answers at {address()}"
            return {name: Reading(None, unit, "DCGM", reason=reason) for name, unit in UNITS.items()}
        self._over.set()
        self._thread.join()
        return {name: self._reading(name, unit, window_s) for name, unit in UNITS.items()}

    def _reading(self, name: str, unit: str, window_s: float) -> Reading:
        new = [values[name] for values in self._seen[1:] if name in values]  # the first is of the time before
        reason = (
            "" if len(new) >= LEAST else f"{len(new)} new values in {window_s:.0f} s: start the exporter with -c 1000"
        )
        if name not in self._seen[-1]:
            reason = f"{self._without}, and the dcgm-exporter's list of counters lacks it for this GPU"
        value = None if reason else sum(new) / len(new)
        return Reading(value, unit, "DCGM, as its exporter shows it", window_s, reason)
