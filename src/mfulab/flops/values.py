"""Small tensors on the meta device that keep their values, so that code which reads a few of them runs there too.

Schedules of dropout rates (`[x.item() for x in torch.linspace(0, 0.1, 12)]`), masks that are looked at for zeros,
sequence lengths: a few numbers decide what is built, and no device is needed to know them.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

LARGEST = 4096
"""Elements up to which a tensor keeps its values."""

LARGEST_INTEGERS = 2**20
"""The same for integers: distances between 1024 tokens, of which masks are made."""

LARGEST_MASK = 2**26
"""The same for tensors of true and false, which say who attends to whom: 64 MiB."""

_VALUES = WeakIdKeyDictionary()


def value_of(tensor: Any) -> torch.Tensor | None:
    """The values of a meta tensor that kept them."""
    return _VALUES.get(tensor) if isinstance(tensor, torch.Tensor) else None


_aten = torch.ops.aten


class _UnknownError(Exception):
    pass


class KnownValues(TorchDispatchMode):
    """Inside it, each operator on small meta tensors whose values are known runs on a CPU as well."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator is _aten._local_scalar_dense.default and args[0] in _VALUES:
            return _VALUES[args[0]].item()
        device = kwargs.get("device")
        leaves_meta = device is not None and torch.device(device).type != "meta"
        if leaves_meta and operator is _aten._to_copy.default and args[0] in _VALUES:
            return operator(_VALUES[args[0]], **kwargs)
        out = operator(*args, **kwargs)
        results = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        if results and all(_is_kept(leaf) for leaf in results):
            self._note(operator, args, kwargs, results)
        else:
            self._forget(operator, args)
        return out

    def _note(self, operator: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
        try:
            on_cpu = {key: torch.device("cpu") if key == "device" and value else value for key, value in kwargs.items()}
            known = operator(*self._known(args), **self._known(on_cpu))
        except (_UnknownError, NotImplementedError, RuntimeError, IndexError, ValueError):
            self._forget(operator, args)
            return
        for result, value in zip(results, tree_flatten(known)[0], strict=False):
            _VALUES[result] = value

    def _known(self, arguments: Any) -> Any:
        def value(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return tensor
            if tensor not in _VALUES:
                raise _UnknownError
            return _VALUES[tensor]

        return tree_map_only(torch.Tensor, value, arguments)

    def _forget(self, operator: Any, args: Any) -> None:
        """Forgets what unknown values overwrite, and its views."""
        if not operator._schema.is_mutable:
            return
        for written in tree_flatten(args[:1])[0]:
            if isinstance(written, torch.Tensor) and written in _VALUES:
                storage = _VALUES[written].untyped_storage()._cdata
                for tensor in list(_VALUES):
                    if _VALUES[tensor].untyped_storage()._cdata == storage:
                        del _VALUES[tensor]


def _is_kept(tensor: torch.Tensor) -> bool:
    limit = LARGEST if tensor.is_floating_point() or tensor.is_complex() else LARGEST_INTEGERS
    return tensor.is_meta and tensor.numel() <= (LARGEST_MASK if tensor.dtype == torch.bool else limit)
