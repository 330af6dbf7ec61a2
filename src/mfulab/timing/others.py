"""CPU time that other programs use during a measurement."""

import psutil

from mfulab.device.cpu import SystemSeconds, system_seconds


class Others:
    """Counts the CPU time of all other programs since this object was created."""

    def __init__(self) -> None:
        self._system: SystemSeconds = system_seconds()
        self._own_s = _own_s()

    def percent(self) -> float | None:
        """CPU time of other programs so far, in percent of the CPUs that this process may use. None
        before the first tick of the system's clock. Children of this process count as its own once
        they have ended."""
        now = system_seconds()
        passed = now.total - self._system.total
        if passed <= 0:
            return None
        others = now.busy - self._system.busy - (_own_s() - self._own_s)
        share = others / passed  # the clocks tick separately: may be slightly below 0 or above 1
        return 100 * min(max(0.0, share), 1.0)


def _own_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
