"""Window while it is open: samplers, a trace and a published rate beside the loop, cut into
laps."""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from mfulab.core.files import scratch
from mfulab.device.samplers.reading import Readings, first_available, sampling
from mfulab.loop.interactive import row
from mfulab.loop.interactive.given import Given
from mfulab.loop.interactive.loop import Loop
from mfulab.loop.interactive.published import Published
from mfulab.loop.interactive.row import LoopStep
from mfulab.timing.instruments import Instruments
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.operators import BlockTrace


class Laps:
    """Steps of a window, and what the samplers read over each of its laps."""

    def __init__(self) -> None:
        self.steps: list[LoopStep] = []
        self._readings: list[tuple[float, Readings]] = []

    def add(self, steps: Sequence[LoopStep], readings: Readings) -> None:
        """Adds what was read over these steps."""
        self._readings.append((sum(step.seconds for step in steps), readings))

    @property
    def last(self) -> Readings:
        """Readings of the last lap."""
        return self._readings[-1][1]

    @property
    def merged(self) -> Readings:
        """Readings of all laps as one."""
        return row.merged(self._readings)


class OpenWindow:
    """Opens a window on a loop, in the process that makes this object. Steps and readings go to
    `laps`. `undo` closes everything that was opened, also after an error."""

    def __init__(
        self,
        loop: Loop,
        device: torch.device,
        given: Given,
        dtype: Callable[[], torch.dtype],
        laps: Laps,
        undo: ExitStack,
    ) -> None:
        self.laps = laps
        self.undo = undo
        self._loop = loop
        self._device = device
        self._trace_path = given.trace
        self._trace: BlockTrace | None = None
        self._settled = False
        self._process = os.getpid()
        path = Path(given.series or undo.enter_context(scratch()) / "series.csv")
        instruments = undo.enter_context(Instruments(device, path.parent, name=path.name))
        self._samplers = instruments.samplers()
        loop.clock.synchronise()
        self._sampling = undo.enter_context(ExitStack())  # of the lap under way
        self._start_sampling()
        self._memory = instruments.memory
        published = Published(device, dtype)
        undo.callback(published.close)
        undo.callback(loop.phases.close)
        loop.open(self._settle, published.note_steps)

    def keep(self) -> None:
        """Keeps everything open beyond the `with` block of the stack that was given."""
        self.undo = self.undo.pop_all()

    def is_own_process(self) -> bool:
        """True in the process that opened the window; False in its forks."""
        return os.getpid() == self._process

    def _start_sampling(self) -> None:
        self._readings = self._sampling.enter_context(sampling(self._samplers))

    def _settle(self) -> None:
        """Restarts the samplers once nothing is being counted any more, so that no reading covers
        steps that the counter slowed."""
        if self._settled or self._loop.phases.counting:
            return
        self._settled = True
        gc.collect()  # else garbage of counting would be collected in a timed step
        self._loop.clock.synchronise()
        if self._loop.phases.done:
            self._sampling.close()
            self._start_sampling()
        if self._trace_path:
            self._trace = BlockTrace(self._device, Path(self._trace_path))
            self._trace.start()

    def cut(self) -> list[LoopStep]:
        """Ends a lap. Returns its steps, and keeps them with what the samplers read over it."""
        steps = self._loop.cut(self._sampling.close)
        self.laps.steps += steps
        if steps:
            readings = first_available(self._readings)
            self.laps.add(steps, readings | {"memory_bytes": self._memory.read()})
        return steps

    def begin_lap(self) -> None:
        """Begins a lap after a cut."""
        self._start_sampling()
        self._loop.mark("begin")

    def stop_trace(self) -> Readings:
        """Ends the trace; returns shares of the traced time, none without a trace."""
        if self._trace is None:
            return {}
        return self._trace.stop()

    @property
    def analysis(self) -> Analysis | None:
        """Analysis of the trace; None without one, or before it ends."""
        if self._trace is None:
            return None
        return self._trace.analysis
