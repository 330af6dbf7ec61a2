"""Base of the trainers' callbacks: a window after the first steps, a lap every so many."""

from collections.abc import Callable
from typing import Any

from mfulab.interactive.measure import Measurement, Models

Log = Callable[[dict[str, float]], object]


class TrainingWindow:
    """Base of a callback: its window opens after `warm_up` steps, is logged every `every`, and shown at the end.

    Args:
        every: steps from one report to the next.
        warm_up: steps that are not measured.
        options: of `mfulab.measure`.

    Attributes:
        window: the `mfulab.measure` window; None before the first steps are over.
    """

    def __init__(self, *, every: int = 50, warm_up: int = 3, **options: Any) -> None:
        if every < 1 or warm_up < 1:
            raise ValueError(f"every={every}, warm_up={warm_up}: give 1 or more of each")
        self._every, self._warm_up, self._options = every, warm_up, options
        self._steps, self._is_open = 0, False
        self.window: Measurement | None = None

    def _begin(self) -> None:
        """Begins a training, after the end of one before it that nobody noticed."""
        self._close(RuntimeError("the training ended without a word"))
        self._steps = 0

    def _step(self, models: Callable[[], Models], log: Log) -> None:
        """Notes the end of a step."""
        self._steps += 1
        if self._is_open and self.window is not None:
            self.window.step()
            if (self._steps - self._warm_up) % self._every == 0 and (found := self.window.lap()):
                log(found)
        elif self._steps >= self._warm_up:
            self.window = Measurement(models(), **self._options).__enter__()
            self._is_open = True

    def _skip(self) -> None:
        """Leaves out what ran since the last step."""
        if self.window is not None:
            self.window.skip()

    def _close(self, error: BaseException | None = None, log: Log | None = None) -> None:
        """Ends the window: logs the whole and prints the ladder, or after an error says nothing."""
        if self._is_open and self.window is not None:
            self._is_open = False
            self.window.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
            if log and (found := self.window.metrics()):
                log(found)
