"""Which tensors the forward pass keeps for the backward pass."""

from types import TracebackType
from typing import Any

import torch


class SavedTensors:
    """Inside it, whatever autograd saves is noted, each piece of memory once, parameters and buffers left out."""

    def __init__(self, model: torch.nn.Module) -> None:
        own = [*model.parameters(), *model.buffers()]
        # Kept alive, so that no later storage takes the address of a freed one.
        self._known = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in own}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)
        self.elements = 0
        self.fixed_bytes = 0

    def __enter__(self) -> "SavedTensors":
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _note(self, tensor: torch.Tensor) -> Any:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = storage
                if tensor.is_floating_point() or tensor.is_complex():
                    self.elements += storage.nbytes() // tensor.element_size()
                else:
                    self.fixed_bytes += storage.nbytes()
        return tensor
