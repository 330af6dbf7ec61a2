"""Measures a script that is not changed: hooks find its models and where its steps end, measure
some steps, and go."""

import gc
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch

from mfulab.core.errors import drop_own_frames
from mfulab.core.parts import leave_out
from mfulab.core.said import Said
from mfulab.loop.interactive import structure
from mfulab.loop.interactive.hooks import Hook, Hooks, skip_frame
from mfulab.loop.interactive.split import Split
from mfulab.loop.interactive.trainings import Optimizers, Training, Trainings, WindowResult
from mfulab.loop.interactive.wanted import Wanted, named_error, with_children
from mfulab.loop.interactive.without_data import unwrapped

# Forward passes without a step of an existing optimiser, after which each of them counts as a step.
LONG = 512
STEPS = 50
SPLIT_STEPS = 8


class Script:
    """Follows the script on the thread that makes this object; its hooks do nothing in other
    threads and in forks. A step ends with a step of the optimiser that steps least often, the last
    one of equals. Without an optimiser each forward pass of a model is a step. The search begins
    anew if an optimiser appears later, or if the one that ends steps stops stepping."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._own = os.getpid(), threading.get_ident()
        self._hooks = Hooks((), self.fail, lambda: None)
        self._in_place = InPlace(
            self._hooks.guarded(self._called), self._hooks.guarded(self._passed)
        )
        self._optimizers = Optimizers()
        self._trainings = Trainings(self._wanted)
        self._is_over = False
        self._search()

    def _search(self) -> None:
        self._roots: dict[int, torch.nn.Module] = {}
        self._inside = set[int]()
        self._forwards = Counter[int]()
        self._bound: _Bound | None = None
        self.follow_compiler()

    def follow_compiler(self) -> None:
        """Puts the searching hooks on. Called again once torch's compiler is imported, so that they
        are off while it works."""
        if self._bound is None and not self._is_over:
            self._hooks.put_on(_nothing, called=self._called, optimizer=(_nothing, self._noticed))

    def _called(self, module: torch.nn.Module, _: object) -> None:
        """Records a model's call. Without any optimiser its forward passes are steps."""
        key = id(module)
        is_part = key in self._inside and key not in self._roots
        is_open = self._bound is not None and self._bound.training is not None
        if is_part or is_open or not self._is_own():
            return
        if key not in self._roots and not self._add_root(module):
            return
        self._forwards[key] += 1
        if self._bound is None and self._is_step(self._forwards[key]):
            self._follow_passes(module)

    def _add_root(self, module: torch.nn.Module) -> bool:
        """Records a model: a module that no other contains. False for one without weights."""
        members = set(map(id, module.modules()))
        self._inside |= members
        if next(module.parameters(), None) is None:
            return False
        outside = leave_out(self._roots, members)
        self._roots = {**outside, id(module): module}
        return True

    def _is_step(self, passes: int) -> bool:
        """True if forward passes of a model count as steps, after so many without a step of an
        optimiser: at once if no optimiser exists. Checks only at a few numbers of passes, since the
        check is slow."""
        warm_up = self._wanted.warm_up
        is_power_of_two = passes & (passes - 1) == 0
        if passes <= warm_up or not (is_power_of_two or passes == warm_up + 1):
            return False
        return passes >= LONG or _optimizer_that_exists() is None

    def _follow_passes(self, module: torch.nn.Module) -> None:
        bound = self._bound = _Bound(module)
        others = [root for root in self._roots.values() if root is not module]
        self._open(bound, [module], others)
        if not structure.is_compiled_in_place(module):
            ended = self._hooks.guarded(self._passed)
            bound.handles.append(module.register_forward_hook(ended))

    def _passed(self, module: torch.nn.Module, *_: object) -> None:
        """Ends a step that is a forward pass."""
        if self._bound is not None and self._bound.ends() is module:
            self._ended()

    def _noticed(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Counts an optimiser's step. Follows the end of the next one if this optimiser steps least
        often, or may take the place of the one that does."""
        if not self._is_own() or torch._C._current_autograd_node() is not None:
            return
        is_new = self._optimizers.note(optimizer)
        bound = self._bound
        self._forwards.clear()
        if bound is None:
            if self._optimizers.is_rarest(optimizer, self._wanted.warm_up):
                bound = self._bound = _Bound(optimizer)
                self._follow(bound, optimizer)
            return
        ends = bound.ends()
        if optimizer is ends:
            bound.taken.note_step()
            return
        takes_over = bound.shares_weights(optimizer)
        if takes_over or is_new or not bound.of_steps or self._optimizers.has_retired(ends):
            self._follow(bound, optimizer)

    def _follow(self, bound: "_Bound", optimizer: torch.optim.Optimizer) -> None:
        # Torch iterates over the global hooks now, after those of the optimiser: only the latter
        # may change.
        if optimizer not in bound.followed:
            bound.followed.add(optimizer)
            hook = self._hooks.guarded(self._stepped)
            bound.handles.append(optimizer.register_step_post_hook(hook))

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Handles the end of a step of an optimiser that ends steps, or will."""
        bound = self._bound
        if bound is None or self._is_over or not self._is_own():
            return
        if optimizer is bound.ends():
            self._ended()
            return
        stepped = self._optimizers.of(optimizer)
        ending = self._optimizers.of(bound.ends())
        has_gone_on = False
        if ending is not None and stepped is not None:
            has_gone_on = ending.last > stepped.last
        if bound.shares_weights(optimizer):
            if not has_gone_on:
                bound.pass_on(optimizer)
                if bound.window is not None and bound.split is None:
                    bound.window.skip()
        else:
            self._leave(bound, is_other_loop=has_gone_on)

    def _leave(self, bound: "_Bound", is_other_loop: bool) -> None:
        """Ends the training that was followed, and searches for the next one. A window that is not
        full is dropped if the loop itself has changed."""
        if bound.window is not None:
            if is_other_loop and bound.split is None:
                error = RuntimeError("another optimiser")
                bound.window.__exit__(RuntimeError, error, None)
            else:
                bound.keep()
        bound.note_time()
        self._let_go()
        self._search()

    def _ended(self) -> None:
        """Handles the end of a step."""
        bound = self._bound
        if bound is None or self._is_over or not self._is_own():
            return
        if not bound.of_steps:
            if bound.followed:  # a training has begun, and this pass is part of it
                return
            bound.taken.note_step()
        if bound.training is None:
            with bound.taken.apart():
                self._open(bound, [*self._roots.values()])
        elif bound.split is not None:
            bound.split.step()
            if len(bound.split.steps) > SPLIT_STEPS:
                with bound.taken.apart():
                    self._finish_training(bound)
        elif bound.window is not None:
            if bound.of_steps:
                bound.window.step()
            bound.measured += 1
            if self._is_full(bound):
                with bound.taken.apart():
                    bound.close()
                    bound.split = Split(bound.roots, bound.window.device, self.fail)

    def _is_full(self, bound: "_Bound") -> bool:
        seconds = self._wanted.seconds
        most = self._wanted.steps
        if not most:
            most = STEPS if seconds is None else sys.maxsize
        passed_s = time.perf_counter() - bound.opened_s
        return bound.measured > most or (seconds is not None and passed_s >= seconds)

    def _open(
        self, bound: "_Bound", models: list[torch.nn.Module], others: structure.Modules = ()
    ) -> None:
        from mfulab.loop.interactive.measure import Measurement

        if Measurement._running is not None:
            raise RuntimeError("the script measures itself")
        ends = bound.ends()
        bound.roots = [*models, *others]
        names = tuple(type(unwrapped(model)).__name__ for model in bound.roots)
        bound.training = self._trainings.find(bound.roots, names, ends)
        self._hooks.put_on(_nothing, optimizer=(_nothing, self._noticed))
        if bound.training.is_known:
            bound.roots = []
            self._roots = {}
            return
        device = next((parameter.device for parameter in _parameters_of(ends)), None)
        bound.window = Measurement(
            models, device=device, ceiling_s=self._wanted.ceiling_s, quiet=True
        )
        bound.window.__enter__()
        bound.opened_s = time.perf_counter()

    def _finish_training(self, bound: "_Bound") -> None:
        """Reports what was measured, and removes every hook but the one that notices another
        training."""
        assert bound.training is not None
        bound.keep()
        bound.let_go()
        self._roots = {}
        self._trainings.show_at_once(bound.training)

    def end(self, error: BaseException | None = None) -> None:
        """Ends with the script: reports what was measured by then, or in one sentence why nothing
        was."""
        if self._is_over or os.getpid() != self._own[0]:
            return
        try:
            bound = self._bound
            why = with_children(self._wanted, self._why_nothing(error))
            is_shown = error is None or isinstance(error, KeyboardInterrupt)
            if bound is not None:
                if bound.window is not None and is_shown:
                    bound.keep(error)
                elif bound.window is not None:
                    bound.window.__exit__(type(error), error, None)
                bound.note_time()
            self._let_go()
            if not self._trainings.end() and not self._wanted.is_child:
                self._give_up(why, RuntimeError("ended"))
            self._is_over = True
            self._in_place.close()
        except Exception as failure:
            self.fail(failure)

    def _why_nothing(self, error: BaseException | None) -> Said:
        bound = self._bound
        warm_up = self._wanted.warm_up
        measured = 0
        if bound:
            measured = bound.measured
        steps = self._optimizers.most_steps
        passes = max(self._forwards.values(), default=0)
        if error is not None:
            return Said("ended_by_error", error=type(error).__name__, count=measured)
        if bound is not None and measured > 1:
            return Said("none_could_be_timed", count=measured)
        if steps:
            return Said("ended_with_step", step=steps, warm_up=warm_up)
        idle = None
        if passes > warm_up:
            idle = _optimizer_that_exists()
        if idle is not None:
            return Said("never_stepped", optimizer=idle, passes=passes, first=LONG)
        if bound is not None:
            passes = max(passes, warm_up + 1)
        if passes:
            return Said("ended_with_pass", passes=passes, warm_up=warm_up)
        return Said("no_module_called")

    def fail(self, error: Exception) -> None:
        """Reports in one sentence what went wrong in measuring, and measures nothing more; the
        script goes on."""
        if not self._is_over and os.getpid() == self._own[0]:
            self._give_up(named_error(error), error)

    def _give_up(self, why: Said, error: Exception) -> None:
        self._is_over = True
        with suppress(Exception):
            if self._bound is not None and self._bound.window is not None:
                self._bound.window.__exit__(type(error), error, error.__traceback__)
        with suppress(Exception):
            self._let_go()
        self._in_place.close()
        self._trainings.say_not_measured(why)

    def _let_go(self) -> None:
        """Removes every hook. One that other hooks of its optimiser follow stays and does
        nothing."""
        if self._bound is not None:
            self._bound.let_go()
        self._bound = None
        self._roots.clear()
        self._hooks.close()

    def _is_own(self) -> bool:
        return (os.getpid(), threading.get_ident()) == self._own


def _parameters_of(ends: object) -> Iterator[torch.Tensor]:
    """Yields the parameters that an optimiser trains; nothing for any other object."""
    for group in getattr(ends, "param_groups", ()):
        yield from group["params"]


class _TimeTaken:
    """Time from the first step of a training to the last, and what measuring took of it (`own_s`).
    `from_first` is True if the time before the first step's end does not count."""

    def __init__(self, from_first: bool) -> None:
        self.steps = 0
        self.own_s = 0.0
        self._from_first = from_first
        self._first_s = self._last_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from the first step to the last, without those that measuring took."""
        return max(0.0, self._last_s - self._first_s - self.own_s)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Counts the time inside a `with` block as measuring's own."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.own_s += time.perf_counter() - began

    def note_step(self) -> None:
        """Records the time of a step's end."""
        self.steps += 1
        self._last_s = time.perf_counter()
        if self.steps == 1 and self._from_first:
            self._first_s = self._last_s


class _Bound:
    """Boundary of the steps of the training that is followed: an optimiser or a model, which it
    does not keep alive. Also holds its window, then its split, and the time `taken`."""

    def __init__(self, ends: object) -> None:
        self.of_steps = isinstance(ends, torch.optim.Optimizer)
        self.handles: list[Any] = []
        self.roots: list[torch.nn.Module] = []
        self.followed = weakref.WeakSet[torch.optim.Optimizer]()
        self.training: Training | None = None
        self.window: Any = None
        self.split: Split | None = None
        self.measured = 0
        self.opened_s = 0.0
        # of a model: the time before includes making the counter
        self.taken = _TimeTaken(from_first=not self.of_steps)
        self.pass_on(ends)

    def pass_on(self, ends: object) -> None:
        """Lets another object end the steps of the same model, such as an optimiser made anew."""
        self.ends = weakref.ref(ends)
        self._weights = frozenset(map(id, _parameters_of(ends)))

    def shares_weights(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if an optimiser trains weights of the one that ends steps."""
        if not self.of_steps:
            return False
        return not self._weights.isdisjoint(map(id, _parameters_of(optimizer)))

    def close(self, error: BaseException | None = None) -> None:
        """Closes the window."""
        if not self.of_steps:
            self.window.skip()  # only the forward pass of the last step is over
        self.window.__exit__(error and type(error), error, None)

    def keep(self, error: BaseException | None = None) -> None:
        """Closes what is open, and keeps its result."""
        assert self.training is not None
        split = self.split
        if split is not None:
            split.close()
        elif self.measured > 1:
            self.close(error)
        else:
            self.window.__exit__(RuntimeError, RuntimeError("too short"), None)
        if self.window.row:
            has_parts = split is not None and len(split.steps) > 1
            result = WindowResult.of(self.window, split if has_parts else None)
            self.training.keep(result, self.measured, is_full=split is not None)
            self.taken.own_s += self.measured * result.slowed_s
        self.window = self.split = None

    def note_time(self) -> None:
        """Adds the time and the steps so far to those of the training."""
        if self.training is not None:
            self.training.seconds += self.taken.seconds
            self.training.steps += self.taken.steps

    def let_go(self) -> None:
        """Closes the split, and removes the hooks that no other hook follows."""
        if self.split is not None:
            self.split.close()
        for handle in self.handles:
            hooks = handle.hooks_dict_ref() or {}
            if not self.of_steps or [*hooks][-1:] == [handle.id]:
                handle.remove()
        self.handles = []
        self.roots = []
        self.followed.clear()


class InPlace:
    """Follows models that `model.compile()` compiles in place, for which torch calls no hook of a
    module. `called` is called with the model before each call, `passed` after it."""

    def __init__(self, called: Hook, passed: Hook) -> None:
        self._called = called
        self._passed = passed
        self._undo = ExitStack()
        compiles = torch.nn.Module.compile

        def compiled(module: torch.nn.Module, *args: object, **kwargs: object) -> None:
            try:
                compiles(module, *args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise
            self._follow(module)

        self._undo.enter_context(patch.object(torch.nn.Module, "compile", compiled))

    def close(self) -> None:
        """Stops following models."""
        self._undo.close()
        self._called = self._passed = _nothing

    def _follow(self, module: torch.nn.Module) -> None:
        call = module._compiled_call_impl
        assert call is not None

        def followed(*args: object, **kwargs: object) -> object:
            self._called(module, args)
            try:
                returned = call(*args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise
            self._passed(module)
            return returned

        skip_frame(followed)
        module._compiled_call_impl = followed


def _optimizer_that_exists() -> str | None:
    """Name of the class of an optimiser in this process; None if there is none."""
    for item in gc.get_objects():
        if issubclass(type(item), torch.optim.Optimizer):
            return type(item).__name__
    return None


def _nothing(*_: object) -> None:
    """Does nothing: a hook where only its neighbour is needed."""
