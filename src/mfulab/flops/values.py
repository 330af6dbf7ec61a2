"""Keeps the values of small tensors on the meta device, so that code that reads some of them runs
there, too."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

# Most elements of a tensor that keeps its values: floats; integers, such as distances between 1024
# tokens; boolean tensors, such as attention masks (64 MiB), and floats selected by them.
LARGEST = 4096
LARGEST_INTEGERS = 2**20
LARGEST_MASK = 2**26
_VALUES = WeakIdKeyDictionary()
_aten = torch.ops.aten


def value_of(tensor: object) -> torch.Tensor | None:
    """Values that were kept for a meta tensor. None if there are none."""
    if isinstance(tensor, torch.Tensor):
        return _VALUES.get(tensor)
    return None


class _UnknownError(Exception):
    pass


class KnownValues(TorchDispatchMode):
    """Runs each operator on a CPU as well, if its inputs are small meta tensors with known
    values."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operator is _aten._local_scalar_dense.default and args[0] in _VALUES:
            return _VALUES[args[0]].item()
        device = kwargs.get("device")
        leaves_meta = device is not None and torch.device(device).type != "meta"
        if leaves_meta and operator is _aten._to_copy.default and args[0] in _VALUES:
            return operator(_VALUES[args[0]], **kwargs)
        out = operator(*args, **kwargs)
        if not _remember(operator, args, kwargs, out) and operator._schema.is_mutable:
            _forget(args[:1])
        return out


def _remember(operator: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> bool:
    """Computes and keeps the values of a call's results. Returns False if they are too large or
    depend on unknown values."""
    results = _tensors(out)
    if not results:
        return False
    is_mask = _is_mask(operator, args)
    if not all(_is_kept(result, is_mask) for result in results):
        return False
    on_cpu = dict(kwargs)
    if on_cpu.get("device"):
        on_cpu["device"] = torch.device("cpu")
    with suppress(_UnknownError, NotImplementedError, RuntimeError, IndexError, ValueError):
        computed = operator(*_known(args), **_known(on_cpu))
        for result, value in zip(results, tree_flatten(computed)[0], strict=False):
            _VALUES[result] = value
        return True
    return False


def _forget(written: object) -> None:
    """Forgets values that unknown ones overwrite, in all their views."""
    storages = {_storage(_VALUES[tensor]) for tensor in _tensors(written) if tensor in _VALUES}
    views = [tensor for tensor, value in _VALUES.items() if _storage(value) in storages]
    for tensor in views:
        del _VALUES[tensor]


def _tensors(tree: object) -> list[torch.Tensor]:
    leaves, _ = tree_flatten(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _known(arguments: object) -> Any:
    """Replaces meta tensors by their values. Raises _UnknownError if one is unknown."""

    def value(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta and tensor not in _VALUES:
            raise _UnknownError
        if tensor.is_meta:
            return _VALUES[tensor]
        return tensor

    return tree_map_only(torch.Tensor, value, arguments)


def _is_mask(operator: Any, args: Any) -> bool:
    """True if an operator selects between two scalars by a known mask, or views or copies a tensor
    with known values."""
    first, *others = args or (None,)
    if not isinstance(first, torch.Tensor) or first not in _VALUES:
        return False
    if operator._overloadpacket is _aten.where:
        return all(getattr(other, "numel", int)() <= 1 for other in others)
    return operator.is_view or operator is _aten._to_copy.default


def _is_kept(tensor: torch.Tensor, is_mask: bool) -> bool:
    """True if a meta tensor is small enough to keep its values."""
    limit = LARGEST_INTEGERS
    if is_mask or tensor.dtype == torch.bool:
        limit = LARGEST_MASK
    elif tensor.is_floating_point() or tensor.is_complex():
        limit = LARGEST
    return tensor.is_meta and tensor.numel() <= limit
