"""Base of the trainers' callbacks: opens a window after the first steps, and takes a lap every few
steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mfulab.device.compute import has_ranks
from mfulab.loop.goodput.journal import Journal, journal_of
from mfulab.loop.interactive.measure import Measurement, Models, facts_of

Log = Callable[[dict[str, float]], object]


class TrainingWindow:
    """Base of a callback. Its window opens after `warm_up` steps, is logged every `every` steps,
    and shown at the end. The journal in the folder `job` covers the whole training from the
    process's start: see `mfulab goodput`. `options` are those of `mfulab.measure`. `window` is None
    before the first steps are over."""

    def __init__(
        self,
        *,
        every: int = 50,
        warm_up: int = 3,
        job: str | Path | Journal | None = None,
        **options: Any,
    ) -> None:
        if every < 1 or warm_up < 1:
            raise ValueError(f"every={every}, warm_up={warm_up}: give 1 or more of each")
        self._every = every
        self._warm_up = warm_up
        self._options = options
        self._steps = 0
        self._is_open = False
        self.window: Measurement | None = None
        self.journal = journal_of(job)

    def _mark(self, span: str, step: int | None = None, **facts: object) -> None:
        if self.journal:
            self.journal.mark(span, step, **facts)

    def _begin(self, step: int) -> None:
        """Begins a training after `step` steps of the job. First closes a training before it whose
        end went unnoticed."""
        rank_fields = {}
        if has_ranks():
            rank_fields = {"rank": dist.get_rank(), "world": dist.get_world_size()}
        self._mark("restore" if step else "setup", step, **rank_fields)
        self._close(RuntimeError("the training ended without a word"))
        self._steps = 0

    def _step(self, models: Callable[[], Models], log: Log, done: int) -> None:
        self._steps += 1
        if self.journal:
            self.journal.step(done)
        if self._is_open and self.window is not None:
            self.window.step()
            if (self._steps - self._warm_up) % self._every:
                return
            metrics = self.window.lap()
            if metrics:
                log(metrics)
                self._mark("measuring", **facts_of(self.window.row))
        elif self._steps >= self._warm_up:
            self.window = Measurement(models(), **self._options).__enter__()
            self._is_open = True
            self._mark("measuring")

    def _skip(self, span: str) -> None:
        self._mark(span)
        if self.window is not None:
            self.window.skip()

    def _close(self, error: BaseException | None = None, log: Log | None = None) -> None:
        """Ends the window: logs its totals and prints the ladder. After an error it does neither;
        after Ctrl-C it only prints."""
        if self._is_open and self.window is not None:
            self._is_open = False
            if error is None:
                self.window.__exit__(None, None, None)
            else:
                self.window.__exit__(type(error), error, error.__traceback__)
            metrics = self.window.metrics()
            if log and metrics:
                log(metrics)
            self._mark("measuring", **facts_of(self.window.row))
