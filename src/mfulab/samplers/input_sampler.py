"""How long the loop waited for its input: the time inside `next()` of every torch DataLoader of this process."""

import time
from typing import Any

from torch.utils.data import dataloader

from mfulab.samplers.reading import Reading, Readings

SOURCE = "time inside the DataLoader's next()"


class InputSampler:
    """Times the method that every DataLoader's iterator is asked by, in this process, between `start` and `stop`.

    On a GPU it is the host that waits: kernels which were queued before may hide it.
    """

    def __init__(self) -> None:
        self._batches, self._waited_s = 0, 0.0

    def start(self) -> None:
        self._batches, self._waited_s = 0, 0.0
        self._next = dataloader._BaseDataLoaderIter.__next__

        def timed(iterator: Any) -> Any:
            began = time.perf_counter()
            try:
                return self._next(iterator)
            finally:
                self._waited_s += time.perf_counter() - began
                self._batches += 1

        dataloader._BaseDataLoaderIter.__next__ = timed  # type: ignore[assignment, method-assign]
        self._began = time.perf_counter()

    def stop(self) -> Readings:
        length_s = time.perf_counter() - self._began
        dataloader._BaseDataLoaderIter.__next__ = self._next  # type: ignore[method-assign]
        share = 100 * self._waited_s / length_s if self._batches else None
        reason = "" if self._batches else "no torch DataLoader was read: the batch lay on the device"
        return {"input_wait_percent": Reading(share, "%", SOURCE, length_s, reason)}
