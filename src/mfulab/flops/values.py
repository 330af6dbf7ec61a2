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

_aten = torch.ops.aten


class _UnknownError(Exception):
    pass


class KnownValues(TorchDispatchMode):
    """Inside it, each operator on small meta tensors whose values are known runs on a CPU as well."""

    def __init__(self) -> None:
        super().__init__()
        self._values = WeakIdKeyDictionary()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator is _aten._local_scalar_dense.default and args[0] in self._values:
            return self._values[args[0]].item()
        if operator is _aten._to_copy.default and args[0] in self._values and _leaves_meta(kwargs):
            return operator(self._values[args[0]], **kwargs)
        out = operator(*args, **kwargs)
        results = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        if results and all(leaf.is_meta and leaf.numel() <= LARGEST for leaf in results):
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
            self._values[result] = value

    def _known(self, arguments: Any) -> Any:
        def value(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return tensor
            if tensor not in self._values:
                raise _UnknownError
            return self._values[tensor]

        return tree_map_only(torch.Tensor, value, arguments)

    def _forget(self, operator: Any, args: Any) -> None:
        """Forgets what unknown values overwrite, and its views."""
        if not operator._schema.is_mutable:
            return
        for written in tree_flatten(args[:1])[0]:
            if isinstance(written, torch.Tensor) and written in self._values:
                storage = self._values[written].untyped_storage()._cdata
                for tensor in list(self._values):
                    if self._values[tensor].untyped_storage()._cdata == storage:
                        del self._values[tensor]


def _leaves_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type != "meta"
