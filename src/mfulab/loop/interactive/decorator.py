"""`@mfulab.measured` on a function that is one training step."""

import atexit
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from mfulab.core.errors import drop_own_frames
from mfulab.loop.interactive.measure import Measurement, Models

P = ParamSpec("P")
R = TypeVar("R")


def measured(
    function: Callable[P, R] | None = None,
    *,
    model: Models | None = None,
    steps: int = 50,
    warm_up: int = 3,
    **options: Any,
) -> Any:
    """Decorates a function that is one training step: measures `steps` calls after `warm_up` calls,
    and prints their ladder.

        @mfulab.measured
        def train_step(batch): ...

    Later calls run as if it were not there. The window is `train_step.window`, with `row` and
    `verdict`. A program that ends earlier prints what was measured by then. One more step is
    counted first. `model` defaults to the modules among the arguments, and to those of the object
    whose method the step is. `options` are those of `mfulab.measure`. Raises ValueError if `steps`
    or `warm_up` is out of range.
    """
    if steps < 1 or warm_up < 0:
        raise ValueError(
            f"steps={steps}, warm_up={warm_up}: give 1 step or more, and 0 or more before them"
        )
    if function is None:
        return functools.partial(measured, model=model, steps=steps, warm_up=warm_up, **options)
    calls = 0
    last = warm_up + 1 + steps

    @functools.wraps(function)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal calls
        calls += 1
        if calls == warm_up + 1:
            models = _modules((args, kwargs)) if model is None else model
            wrapper.window = Measurement(models, **options).__enter__()
            atexit.register(wrapper.window.__exit__, None, None, None)
        if not warm_up < calls <= last:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            wrapper.window.__exit__(type(error), error, error.__traceback__)
            drop_own_frames(error)
            raise
        wrapper.window.step()
        if calls == last:
            wrapper.window.__exit__(None, None, None)
            atexit.unregister(wrapper.window.__exit__)
        return result

    wrapper: Any = step
    wrapper.window = None
    return wrapper


def _modules(arguments: object) -> list[torch.nn.Module]:
    """Outermost modules among the arguments, and in the attributes of objects among them."""
    modules: list[torch.nn.Module] = []
    for leaf in tree_leaves(arguments):
        is_holder = not isinstance(leaf, torch.nn.Module | torch.Tensor | torch.optim.Optimizer)
        values = vars(leaf).values() if is_holder and hasattr(leaf, "__dict__") else [leaf]
        modules += [value for value in values if isinstance(value, torch.nn.Module)]
    inner = set[int]()
    for module in modules:
        inner.update(id(child) for child in module.modules() if child is not module)
    outermost = {id(module): module for module in modules if id(module) not in inner}
    return list(outermost.values())
