"""Divides the steps of a script into phases: loader, copies, forward and backward pass, optimiser."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import dataloader

from mfulab.core.errors import drop_own_frames
from mfulab.device import is_gpu
from mfulab.loop.interactive.hooks import Hook, Hooks
from mfulab.timing.clocks import clock_for

PHASES = ("loader", "copy", "forward", "backward", "optimiser", "other")


class Split:
    """Divides steps into phases, by marks where one phase follows another. On a GPU the marks are
    events of the current stream: nothing waits for them. `steps` holds the names of each step's
    marks, including the running step's."""

    def __init__(self, models: list[torch.nn.Module], device: torch.device, failed: Hook) -> None:
        self._clock = clock_for(device)
        self._thread = threading.get_ident()
        self.steps: list[list[str]] = [[]]
        self._running = ["other"]
        self._hooks = Hooks(models, failed, lambda: None)
        self._undo = ExitStack()
        self._undo.callback(self._hooks.close)
        self.close = self._undo.close
        begin = self._hooks.guarded(self._begin)
        end = self._hooks.guarded(self._end)

        def around(name: str, method: Callable[..., object]) -> Callable[..., object]:
            def timed(*args: object, **kwargs: object) -> object:
                begin(name)
                try:
                    return method(*args, **kwargs)
                except BaseException as error:
                    drop_own_frames(error)
                    raise
                finally:
                    end()

            return timed

        engine = around("backward", torch.autograd._engine_run_backward)
        optimizer = (lambda *_: self._begin("optimiser"), lambda *_: self._end())
        self._hooks.put_on(
            lambda _: self._begin("forward"), lambda *_: self._end(), None, optimizer, engine
        )
        loader: Any = dataloader
        targets = [
            (loader._BaseDataLoaderIter, "__next__", "loader"),
            (loader.DataLoader, "__iter__", "loader"),
        ]
        if is_gpu(device):  # on a CPU nothing is copied to the device
            targets += [(torch.Tensor, "to", "copy"), (torch.Tensor, "cuda", "copy")]
        for owner, method, name in targets:
            timed = around(name, getattr(owner, method))
            self._undo.enter_context(patch.object(owner, method, timed))
        self._clock.mark()

    def _begin(self, name: str) -> None:
        """Begins a phase. Inside an optimiser's step, which may run a whole training step, other
        phases have their own time."""
        if threading.get_ident() != self._thread:
            return
        is_own = self._running[-1] in ("other", "optimiser")
        if is_own:
            self._mark()
        # Otherwise it is part of the running one: a checkpoint's forward pass, a model in another.
        self._running.append(name if is_own else self._running[-1])

    def _end(self) -> None:
        if threading.get_ident() == self._thread and len(self._running) > 1:
            if self._running[-1] != self._running[-2]:
                self._mark()
            self._running.pop()

    def _mark(self) -> None:
        self._clock.mark()
        self.steps[-1].append(self._running[-1])

    def step(self) -> None:
        """Ends a step, inside the call that ends it."""
        self._mark()
        self._running = ["other"]
        self.steps.append([])

    def row(self) -> dict[str, float | None]:
        """Mean time of each phase in a step (ms), since a loader may make only every nth step wait;
        None for a phase that never ran. Waits for a GPU."""
        finished = self.steps[:-1]  # the last one is under way
        total_s = defaultdict[str, float](float)
        for name, seconds in zip(itertools.chain(*finished), self._clock.intervals(), strict=False):
            total_s[name] += seconds
        row = dict[str, float | None]()
        for name in PHASES:
            row[f"{name}_ms"] = 1e3 * total_s[name] / len(finished) if name in total_s else None
        return row
