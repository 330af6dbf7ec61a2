"""A script that is not changed: hooks find its models and where its steps end, measure some of them, and go."""

import gc
import itertools
import json
import os
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.device import is_gpu
from mfulab.device.compute import is_first_rank
from mfulab.loop.interactive.hooks import Hooks, apart
from mfulab.loop.interactive.without_data import unwrapped
from mfulab.timing.clocks import clock_for

# Forward passes without a step of the optimiser that exists, after which each of them counts as a step.
LONG = 512
STEPS = 50
SPLIT_STEPS = 8


class Script:
    """Follows the script from the thread that makes this object; its hooks do nothing in threads and forks of it. A
    step ends with that optimiser's step which comes least often, the last of equals; without one each forward pass of a
    module is a step. An optimiser that appears later lets the search begin anew. `wanted` are the command's options."""

    def __init__(self, name: str, **wanted: Any) -> None:
        self._wanted, self._own = SimpleNamespace(name=name, **wanted), (os.getpid(), threading.get_ident())
        self._hooks = Hooks((), self.fail, lambda: None)
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._is_over = False
        self._search()

    def _search(self) -> None:
        self._roots: dict[int, torch.nn.Module] = {}
        self._inside, self._forwards = set[int](), Counter[int]()
        self._boundary: Any = None
        self._window: Any = None
        self._split: Any = None
        self._is_stale, self._steps = False, 0
        self.follow_compiler()

    def follow_compiler(self) -> None:
        """Puts the searching hooks on; again once torch's compiler is imported, so that they are off while it works."""
        if self._boundary is None and not self._is_over:
            self._hooks.put_on(_nothing, called=self._called, optimizer=(_nothing, self._noticed))

    def _called(self, module: torch.nn.Module, _: Any) -> None:
        """Notes a module that no other holds: a model. Without any optimiser its forward passes are steps."""
        place = id(module)
        if (place in self._inside and place not in self._roots) or not self._is_own():
            return
        if place not in self._roots:
            members = set(map(id, module.modules()))
            self._inside |= members
            if next(module.parameters(), None) is None:
                return
            self._roots = {key: root for key, root in self._roots.items() if key not in members} | {place: module}
        self._forwards[place] = passes = self._forwards[place] + 1
        is_due = passes > self._wanted.warm_up and (passes & (passes - 1) == 0 or passes == self._wanted.warm_up + 1)
        if self._boundary is not None or not is_due:
            return
        if passes >= LONG or not (
            self._optimizers or any(issubclass(type(item), torch.optim.Optimizer) for item in gc.get_objects())
        ):
            self._boundary = module
            self._open([module])
            self._handle = module.register_forward_hook(self._hooks.guarded(self._ended))

    def _noticed(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Counts an optimiser's step, and awaits the end of the next one of the rarest optimiser."""
        if not self._is_own() or torch._C._current_autograd_node() is not None:
            return
        if self._boundary is not None:
            self._is_stale = self._is_stale or optimizer not in self._optimizers
        steps = self._optimizers[optimizer] = self._optimizers.get(optimizer, 0) + 1
        self._forwards.clear()
        if self._boundary is None and steps == min(self._optimizers.values()) >= self._wanted.warm_up:
            self._boundary = optimizer
            # Torch walks the global hooks now, and an optimiser's own before them: only there may others change.
            self._handle = optimizer.register_step_post_hook(self._hooks.guarded(self._ended))

    def _ended(self, *_: Any) -> None:
        """Follows the end of a step."""
        if self._is_over or not self._is_own():
            return
        if self._is_stale:
            if self._window is not None:
                self._window.__exit__(RuntimeError, RuntimeError("another optimiser"), None)
            self._let_go()
            self._search()
        elif self._window is None:
            self._open([*self._roots.values()])
        elif self._split is not None:
            self._split.step()
            if len(self._split.steps) > SPLIT_STEPS:
                self._tell()
        else:
            if isinstance(self._boundary, torch.optim.Optimizer):
                self._window.step()
            self._steps += 1
            most_s = self._wanted.seconds
            most = self._wanted.steps or (STEPS if most_s is None else sys.maxsize)
            if self._steps > most or (most_s is not None and time.perf_counter() - self._began >= most_s):
                self._close()
                self._split = Split(self._window.models, self._window.device, self.fail)

    def _open(self, models: list[torch.nn.Module]) -> None:
        from mfulab.loop.interactive.measure import Measurement

        if Measurement._running is not None:
            raise RuntimeError("the script measures itself")
        groups = getattr(self._boundary, "param_groups", ())
        device = next((parameter.device for group in groups for parameter in group["params"]), None)
        self._hooks.put_on(_nothing, optimizer=(_nothing, self._noticed))
        self._window = Measurement(models, device=device, ceiling_s=self._wanted.ceiling_s, quiet=True)
        self._window.__enter__()
        self._began = time.perf_counter()

    def _close(self, error: BaseException | None = None) -> None:
        """Ends the window."""
        if not isinstance(self._boundary, torch.optim.Optimizer):
            self._window.skip()  # of the last step the forward pass alone is over
        self._window.__exit__(error and type(error), error, None)

    def _tell(self) -> None:
        """Prints the ladder, writes the row, and takes every hook off."""
        window, wanted, split, boundary = self._window, self._wanted, self._split, self._boundary
        self._let_go()
        if not window.row:
            self._is_over = True
            return
        row = window.row | (split.row() if split else {})
        text, names = Texts(wanted.language, "script"), [type(unwrapped(model)).__name__ for model in window.models]
        models, ends = ", ".join(dict.fromkeys(names)) or "—", type(boundary).__name__
        of_forwards = not isinstance(boundary, torch.optim.Optimizer)
        if is_first_rank():
            how = text("forward_step", ends=names[0]) if of_forwards else text("optimizer_step", ends=ends)
            times = {name: row.get(f"{name}_ms") for name in PARTS}
            parts = [text(name, ms=f"{ms:.3f}") for name, ms in times.items() if ms is not None]
            with apart(window.device):
                from mfulab.core.terminal import Terminal
                from mfulab.loop.interactive.show import show

                console = Terminal(stderr=True)
                console.print(text("models", models=models, how=how))
                show(window, console, wanted.language)
                if parts:
                    clock, count = text("events" if is_gpu(window.device) else "host"), len(split.steps) - 1
                    console.print(text("phases", parts=" · ".join(parts), clock=clock, count=count))
        if wanted.out:
            rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            if dist.is_available() and dist.is_initialized():
                rank, ranks = dist.get_rank(), dist.get_world_size()
            reasons = {name: reading.reason for name, reading in window.readings.items() if reading.reason}
            about = {"script": wanted.name, "models": names, "step_of": names[0] if of_forwards else ends}
            about |= {"rank": rank, "ranks": ranks, "verdict": window.verdict and window.verdict.cause}
            out = wanted.out.with_name(f"{wanted.out.stem}.rank{rank}{wanted.out.suffix}") if rank else wanted.out
            try:
                write_text(out, json.dumps(about | row | {"reasons": reasons}, ensure_ascii=False, default=str) + "\n")
            except Exception as error:
                print(f"mfulab measure {wanted.name}: the row is not written: {error}", file=sys.stderr)
        self._is_over = True

    def end(self, error: BaseException | None = None) -> None:
        """Ends with the script: tells what was measured by then, or in one sentence why nothing is."""
        if self._is_over or os.getpid() != self._own[0]:
            return
        try:
            steps, window = self._steps, self._window
            if window is not None and window.tells(error) and (window.row or steps > 1):
                if not window.row:
                    self._close(error)
                self._tell()
                return
            why = "it ended before its main thread called a module with parameters"
            if error is not None:
                why = f"ended by {type(error).__name__} after {steps} measured steps"
            elif seen := max(self._optimizers.values(), default=max(self._forwards.values(), default=0)):
                why = f"it ended with step {seen}; measuring begins after --warm-up {self._wanted.warm_up} and one more"
            self._give_up(why, RuntimeError("ended"))
        except Exception as failure:
            self.fail(failure)

    def fail(self, error: Exception) -> None:
        """Says in one sentence what went wrong in measuring, and measures nothing more; the script goes on."""
        if not self._is_over and os.getpid() == self._own[0]:
            self._give_up(f"{type(error).__name__}: {error}", error)

    def _give_up(self, why: str, error: Exception) -> None:
        self._is_over = True
        with suppress(OSError, ValueError):
            print(f"mfulab measure {self._wanted.name}: nothing is measured: {why}", file=sys.stderr)
        with suppress(Exception):
            if self._window is not None:
                self._window.__exit__(type(error), error, error.__traceback__)
        with suppress(Exception):
            self._let_go()

    def _let_go(self) -> None:
        """Takes every hook off; one that others of its optimiser follow stays and does nothing."""
        if self._split is not None:
            self._split.close()
        self._roots.clear()
        if self._boundary is not None and hasattr(self, "_handle"):
            hooks = self._handle.hooks_dict_ref() or {}
            if isinstance(self._boundary, torch.nn.Module) or [*hooks][-1:] == [self._handle.id]:
                self._handle.remove()
        self._hooks.close()
        self._boundary = self._window = self._split = None

    def _is_own(self) -> bool:
        return (os.getpid(), threading.get_ident()) == self._own


PARTS = ("loader", "copy", "forward", "backward", "optimiser", "other")


class Split:
    """Divides steps into phases by marks at the ends of their calls; marks follow one another without a gap. On a GPU
    they are events of the current stream: nothing waits for them. `steps` names the marks of each, the running one too.
    """

    def __init__(self, models: list[torch.nn.Module], device: torch.device, failed: Callable[..., None]) -> None:
        self._clock, self._thread = clock_for(device), threading.get_ident()
        self.steps: list[list[str]] = [[]]
        self._running = ["other"]
        self._hooks, self._undo = Hooks(models, failed, lambda: None), ExitStack()
        self._undo.callback(self._hooks.close)
        self.close = self._undo.close
        begin, end = self._hooks.guarded(self._begin), self._hooks.guarded(self._end)

        def around(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*given: Any, **options: Any) -> Any:
                begin(name)
                try:
                    return method(*given, **options)
                finally:
                    end()

            return timed

        engine = around("backward", torch.autograd._engine_run_backward)
        optimizer = (lambda *_: self._begin("optimiser"), lambda *_: self._end())
        self._hooks.put_on(lambda _: self._begin("forward"), lambda *_: self._end(), None, optimizer, engine)
        loader: Any = dataloader
        targets = [(loader._BaseDataLoaderIter, "__next__", "loader"), (loader.DataLoader, "__iter__", "loader")]
        if is_gpu(device):  # on a CPU nothing is copied to the device
            targets += [(torch.Tensor, "to", "copy"), (torch.Tensor, "cuda", "copy")]
        for owner, method, name in targets:
            self._undo.enter_context(patch.object(owner, method, around(name, getattr(owner, method))))
        self._clock.mark()

    def _begin(self, name: str) -> None:
        """Begins a phase; inside an optimiser's step, which may run a whole step, others have their own time."""
        if threading.get_ident() != self._thread:
            return
        is_own = self._running[-1] in ("other", "optimiser")
        if is_own:
            self._mark()
        # Else a part of the running one: a checkpoint's forward pass, a model in another.
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
        """Mean ms of each phase, as a loader may make every nth step wait; None without it. Waits for a GPU to end."""
        whole, total_s = self.steps[:-1], defaultdict[str, float](float)  # the last one is under way
        for name, seconds in zip(itertools.chain(*whole), self._clock.intervals(), strict=False):
            total_s[name] += seconds
        return {f"{name}_ms": 1e3 * total_s[name] / len(whole) if name in total_s else None for name in PARTS}


def _nothing(*_: Any) -> None:
    """Is what a hook does that is only there for its neighbour."""
