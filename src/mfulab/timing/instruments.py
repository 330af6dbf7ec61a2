"""Instruments that observe one device during a measurement."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mfulab.device import is_gpu
from mfulab.device.gpu import clock_reader
from mfulab.device.samplers.memory import Memory, peak_memory
from mfulab.device.samplers.reading import Sampler
from mfulab.device.samplers.selection import samplers_for
from mfulab.device.samplers.series import INTERVAL_S, Series
from mfulab.timing.clocks import Clock, clock_for
from mfulab.timing.probe import Best, Probe, known_best

if TYPE_CHECKING:
    import torch


class Instruments(AbstractContextManager["Instruments"]):
    """Clock, probe, peak memory, samplers and time series of a device, each created on first use.
    The series is written to `folder`/`name`."""

    def __init__(
        self,
        device: "torch.device",
        folder: Path,
        interval_s: float = INTERVAL_S,
        name: str = "series.csv",
    ) -> None:
        self.device = device
        self.folder = folder
        self.on_gpu = is_gpu(device)
        self.series = Series(device, folder / name, interval_s)

    @cached_property
    def frequency_mhz(self) -> Callable[[], float | None]:
        """Function that reads the device's clock frequency in MHz."""
        return clock_reader(self.device)

    @cached_property
    def clock(self) -> Clock:
        """Clock that marks the ends of steps."""
        return clock_for(self.device)

    @cached_property
    def probe(self) -> Probe:
        """Probe of the machine's state. Keeps memory of its own from its first use on."""
        return Probe(self.device, self.frequency_mhz)

    @cached_property
    def best(self) -> Best:
        """Best state of the machine, from the environment's row."""
        return known_best(self.folder)

    @cached_property
    def memory(self) -> Memory:
        """Peak memory beyond what the process used at the first use of this property."""
        return peak_memory(self.device)

    def samplers(self, *, polled: bool = True) -> list[Sampler]:
        """All samplers of the device, the most direct first. Starts the poller if `polled`."""
        return samplers_for(self.device, [self.series.open()] if polled else [])

    def __exit__(self, *_: object) -> None:
        self.series.close()
