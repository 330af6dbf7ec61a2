"""Base of the trainers' callbacks: a window after the first steps, a lap every so many."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mfulab.loop.goodput.journal import Journal, journal_of
from mfulab.loop.interactive.measure import Measurement, Models, facts_of

Log = Callable[[dict[str, float]], object]


class TrainingWindow:
    """Base of a callback: its window opens after `warm_up` steps, is logged every `every`, and
    shown at the end. The whole training is kept in the folder `job`, from the process's start: see
    `mfulab goodput`. `options` are those of `mfulab.measure`. `window` is None before the first
    steps are over."""

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
        """Begins a training after so many steps of the job, and after the end of one before it that
        nobody noticed."""
        is_joined = dist.is_available() and dist.is_initialized()
        rank_fields = {}
        if is_joined:
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
            if (self._steps - self._warm_up) % self._every == 0 and (metrics := self.window.lap()):
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
        """Ends the window: logs the whole and prints the ladder; after an error nothing, after
        Ctrl-C without a log."""
        if self._is_open and self.window is not None:
            self._is_open = False
            self.window.__exit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )
            if log and (metrics := self.window.metrics()):
                log(metrics)
            self._mark("measuring", **facts_of(self.window.row))
