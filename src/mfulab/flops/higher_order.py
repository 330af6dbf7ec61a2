"""Runs higher-order operators inside a counter as plain branches and loops, so that their bodies
are counted. torch traces a body's backward pass, and runs body and trace where no dispatch mode
sees them. Plain branches and loops compute the same values, and each operator has its place in the
forward or backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.map import map_impl
from torch._ops import HigherOrderOperator

from mfulab.core.errors import drop_own_frames
from mfulab.core.said import Said, SaidError

Body = Callable[..., Any]


class UnknownCostError(SaidError, RuntimeError):
    """Raised if a body's cost depends on data that is not available."""


@contextmanager
def bodies_seen(
    listens: Callable[[Any], bool], branches: Callable[[Body, Body, Sequence[Any]], Any]
) -> Iterator[None]:
    """Makes `cond`, `scan`, `map` and `while_loop` run their bodies visibly while entered, if
    `listens(arguments)` is True. `branches` computes a `cond` whose predicate has no data."""
    dispatch = HigherOrderOperator.dispatch

    def cond(pred: object, yes: Body, no: Body, operands: Sequence[object] = ()) -> Any:
        try:
            chosen = yes if pred else no
        except RuntimeError:
            return branches(yes, no, operands)
        return chosen(*operands)

    loops: dict[str, Body] = {"cond": cond, "scan": _scan, "while_loop": _while_loop}
    loops |= {operator.name(): _plain(operator) for operator in (map_impl, associative_scan_op)}

    def seen(operator: Any, key: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = loops.get(operator.__name__)
        # a transform of torch.func is handled first
        transformed = key == torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode
        try:
            if run is None or transformed or not listens((args, kwargs)):
                return dispatch(operator, key, *args, **kwargs)
            return run(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    with patch.object(HigherOrderOperator, "dispatch", seen):
        yield


def _plain(operator: HigherOrderOperator) -> Any:
    """The operator's implementation in plain Python, if it has one."""
    return operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)


def _scan(
    combine: Body, init: Sequence[Any], xs: Sequence[Tensor], additional: Sequence[Any] = ()
) -> Any:
    """Runs a scan as a loop over the rows of `xs`."""
    carried = tuple(init)
    rows = list[Sequence[Any]]()
    read = [x for x in (*xs, *additional) if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in read):
        # torch uses one backward body for all steps, so the first carry gets a gradient even if
        # it is not used.
        carried = tuple(
            tensor.detach().requires_grad_() if _is_constant(tensor) else tensor for tensor in init
        )
    for row in zip(*(tensor.unbind() for tensor in xs), strict=True):
        results = tuple(combine(*carried, *row, *additional))
        carried = results[: len(init)]
        rows.append(results[len(init) :])
    stacked = []
    for column in zip(*rows, strict=True):
        stacked.append(torch.stack(column) if isinstance(column[0], Tensor) else column[0])
    return *carried, *stacked


def _is_constant(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad


def _while_loop(
    condition: Body,
    body: Body,
    carried: Sequence[object],
    additional: Sequence[object] = (),
    *_: object,
    **__: object,
) -> Any:
    """Runs a while_loop as a Python loop. Raises UnknownCostError if the condition has no data."""

    def goes_on() -> bool:
        try:
            return bool(condition(*carried, *additional))
        except RuntimeError as error:
            raise UnknownCostError(Said("loop_needs_data")) from error

    if not goes_on():
        return tuple(tensor.clone() if isinstance(tensor, Tensor) else tensor for tensor in carried)
    while True:
        carried = tuple(body(*carried, *additional))
        if not goes_on():
            return carried


def open_kernel(operator: HigherOrderOperator, arguments: Iterable[object]) -> Body | None:
    """Returns the plain implementation of an operator that calls a Python body. None if a counter
    cannot see inside the operator."""
    for argument in arguments:
        is_body = callable(argument) and not isinstance(argument, Tensor | torch._ops.OperatorBase)
        if is_body:
            return _plain(operator)
    return None
