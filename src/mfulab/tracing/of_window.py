"""Computes once the facts that all devices of a window share, and each device's activities. Work
grows with the trace alone, however many devices it names."""

import re

import numpy as np

from mfulab.tracing import shares
from mfulab.tracing.attribution import Attribution, OpenCalls
from mfulab.tracing.tiles import multiplies
from mfulab.tracing.trace import COMPUTE, Indices, Trace, Transfer, grouped, launch_of
from mfulab.tracing.window import Window

_SYNCHRONISES = re.compile(r"Synchronize|Memcpy(?!.*Async)")
_NOTHING = np.empty(0, np.int64)


class OfWindow:
    """One window of a trace: its product calls and waits, and the activities of each device."""

    def __init__(self, trace: Trace, attribution: Attribution, window: Window) -> None:
        self.trace = trace
        self.attribution = attribution
        self.window = window
        host = trace.host
        called = window.called(host.begin)
        is_product = attribution.product == np.arange(len(host))
        self.roots: Indices = np.flatnonzero(is_product & called)
        self.has_backward = bool(attribution.backward[called].any())
        # The last element stands for index -1, no call.
        self.recomputed = np.append(attribution.recomputed, False)
        self.host_names = np.append(host.name, -1)
        self.multiplies = trace.named(multiplies)
        self.launched = launch_of(trace)
        self.waits = shares.waits(trace)
        self.synchronising = _synchronising(trace)
        self._set_devices()

    def _set_devices(self) -> None:
        """Groups activities and transfers by device."""
        trace = self.trace
        self._executed = self.window.executed(trace.activities)
        self._inside = _by_device(trace, self._executed)
        # The device with most activities first.
        self.devices = sorted(self._inside, key=lambda number: -len(self._inside[number]))
        is_kernel = trace.activities.kind == COMPUTE
        is_owned = self.attribution.product_of_activity >= 0
        self._owned = np.flatnonzero(is_kernel & is_owned)
        self._owned_by = _by_device(trace, self._owned)
        self._roots = set(self.roots.tolist())
        self._transfers = dict[int, list[Transfer]]()
        for transfer in sorted(trace.collectives):
            self._transfers.setdefault(transfer.device, []).append(transfer)

    def executed(self, device: int | None) -> Indices:
        """Indices of the activities that overlap the window, on one device or, if None, on all."""
        if device is None:
            return self._executed
        return self._inside.get(device, _NOTHING)

    def kernels_of_products(self, device: int | None) -> dict[int, list[int]]:
        """Indices of the kernels of each product call of the window, on one device or, if None, on
        all."""
        indices = self._owned
        if device is not None:
            indices = self._owned_by.get(device, _NOTHING)
        owners = self.attribution.product_of_activity[indices]
        kernels = dict[int, list[int]]()
        for owner, index in zip(owners.tolist(), indices.tolist(), strict=True):
            if owner in self._roots:
                kernels.setdefault(owner, []).append(index)
        return kernels

    def transfers(self, device: int | None) -> list[Transfer]:
        """Kernels of collectives on one device or, if None, on all, in order of begin."""
        if device is None:
            return sorted(self.trace.collectives)
        return self._transfers.get(device, [])


def _by_device(trace: Trace, indices: Indices) -> dict[int, Indices]:
    """Groups indices of activities by device."""
    of_device = trace.activities.device[indices]
    return {number: indices[mine] for number, mine in grouped(of_device)}


def _synchronising(trace: Trace) -> OpenCalls:
    """Runtime calls in which the host waits for a device."""
    launches = trace.launches
    waited = np.flatnonzero(trace.named(_SYNCHRONISES.search)[launches.name])
    order = waited[np.argsort(launches.begin[waited], kind="stable")]
    none = np.full(len(launches.begin), -1)
    return OpenCalls(launches.begin, launches.end, launches.thread, none, order)
