"""Memory of a step's tensors: those saved for the backward pass, and all that are alive at the same
time."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from mfulab.flops.layers import Opened
from mfulab.flops.memory import onednn_lstm_workspace


@dataclass(frozen=True)
class MemorySize:
    """Memory in two parts: floats, whose size depends on the number format, and bytes that do not
    depend on it."""

    elements: int = 0  # floats
    fixed_bytes: int = 0  # integers and masks

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "MemorySize":
        """Memory of the whole storage behind a tensor."""
        size = tensor.untyped_storage().nbytes()
        is_float = tensor.is_floating_point() or tensor.is_complex()
        if is_float:
            return cls(elements=size // tensor.element_size())
        return cls(fixed_bytes=size)

    def __add__(self, other: "MemorySize") -> "MemorySize":
        return MemorySize(self.elements + other.elements, self.fixed_bytes + other.fixed_bytes)

    def __sub__(self, other: "MemorySize") -> "MemorySize":
        return MemorySize(self.elements - other.elements, self.fixed_bytes - other.fixed_bytes)

    def bytes(self, element_bytes: int = 4) -> int:
        """Total in bytes if each float takes `element_bytes`."""
        return self.elements * element_bytes + self.fixed_bytes


class _Storages:
    """Storages that were added and are still alive, by address."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in tensors:
            self.add(tensor)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._alive

    def add(self, tensor: torch.Tensor, when_gone: Callable[[], None] = lambda: None) -> bool:
        """Adds a tensor's storage. Returns True if it is new; False also for tensors that are not
        strided. Calls `when_gone` once the storage is freed."""
        if tensor.layout != torch.strided:
            return False
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return False

        def remove(_: object) -> None:
            # The address may be reused from now on.
            del self._alive[key]
            when_gone()

        self._alive[key] = weakref.ref(storage, remove)
        return True


class SavedTensors(Opened):
    """Records what autograd saves for backward while entered, except parameters and buffers.
    Tensors saved by torch.func cannot be seen; `interrupted` is True if there were any."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.total = MemorySize()
        self.interrupted = False
        self.seen = _Storages((*model.parameters(), *model.buffers()))
        # sequence number of a node → parameter's name (or ""), shape
        self.of_nodes: dict[int, list[tuple[str, list[int]]]] = {}
        self._names = dict[int, str]()  # by storage
        for name, parameter in model.named_parameters():
            if parameter.layout == torch.strided:
                self._names[parameter.untyped_storage()._cdata] = name
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def parts(self) -> Iterator[AbstractContextManager[Any]]:
        yield patch.object(torch.autograd.graph, "disable_saved_tensors_hooks", self._without())
        yield self._hooks

    def _without(self) -> Callable[[str], AbstractContextManager[None]]:
        """Returns a replacement for torch's `disable_saved_tensors_hooks` that first removes our
        hooks. torch.func calls it, and would fail if hooks were set."""
        disable = torch.autograd.graph.disable_saved_tensors_hooks

        @contextmanager
        def disabled(message: str) -> Iterator[None]:
            top = torch._C._autograd._top_saved_tensors_default_hooks(True)
            with ExitStack() as back:
                if top is not None and top[0] == self._note:
                    self.interrupted = True
                    self._hooks.__exit__()
                    back.callback(self._hooks.__enter__)
                with disable(message):
                    yield

        return disabled

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hook for a tensor that autograd saves."""
        name = ""
        if tensor.layout == torch.strided:
            name = self._names.get(tensor.untyped_storage()._cdata, "")
        if not tensor.is_nested:
            number = torch._C._autograd._get_sequence_nr() - 1
            self.of_nodes.setdefault(number, []).append((name, [*tensor.shape]))
        if self.seen.add(tensor):
            self.total += MemorySize.of(tensor)
        return tensor


class LstmsOnCpu(ExitStack):
    """Computes what oneDNN saves for LSTMs on a CPU beyond the operators counted on the meta
    device; the result is `more`. torch uses oneDNN for fp32, and for bf16 if the CPU has the
    instructions, but not with projections or packed sequences."""

    def __init__(self, model: torch.nn.Module, saved: SavedTensors) -> None:
        super().__init__()
        self.more = MemorySize()
        self._saved = saved
        self._before = MemorySize(), False
        self._outputs: list[tuple[weakref.ref[torch.UntypedStorage], int]] = []
        self.callback(self._subtract_shared)
        for module in model.modules():
            if isinstance(module, torch.nn.LSTM) and not module.proj_size:
                self.callback(module.register_forward_pre_hook(self._enter).remove)
                self.callback(module.register_forward_hook(self._leave).remove)

    def _enter(self, module: torch.nn.Module, arguments: Sequence[object]) -> None:
        x = _first_of(arguments)
        is_saved = False
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            is_saved = x.untyped_storage() in self._saved.seen
        self._before = self._saved.total, is_saved

    def _leave(self, lstm: Any, arguments: Sequence[object], output: Any) -> None:
        """Adds what oneDNN would save for this call, minus what was saved during it."""
        x = _first_of(arguments)
        if not isinstance(x, torch.Tensor) or not x.is_meta or not output[0].requires_grad:
            return
        batch = 1
        if x.ndim == 3:
            batch = x.shape[0] if lstm.batch_first else x.shape[1]
        steps = x.numel() // x.shape[-1] // max(batch, 1)
        before, is_input_saved = self._before
        needed = MemorySize()
        if not is_input_saved:
            needed += MemorySize(x.numel())
        for layer in range(lstm.num_layers):
            needed += _saved_by_layer(lstm, layer, steps, batch)
        self.more += needed - (self._saved.total - before)
        if not lstm.bidirectional:
            hidden = steps * batch * lstm.hidden_size
            self._outputs.append((weakref.ref(output[0].untyped_storage()), hidden))

    def _subtract_shared(self) -> None:
        """Subtracts outputs that a later operator saved as well."""
        for storage, size in self._outputs:
            alive = storage()
            if alive is not None and alive in self._saved.seen:
                self.more -= MemorySize(size)


class LiveTensors:
    """A simulated allocator. Memory is alive from the operator that makes it until its last
    reference is gone. Memory that no operator made (parameters, inputs) is not counted. `peak` is
    the largest sum, at 4 bytes per float."""

    def __init__(self) -> None:
        self.alive = MemorySize()
        self.peak = MemorySize()
        self._seen = _Storages()

    def note(self, read: Iterable[torch.Tensor], written: Iterable[torch.Tensor]) -> None:
        """Records one operator call by the tensors that it read and wrote."""
        for tensor in read:
            self._seen.add(tensor)
        for tensor in written:
            if tensor.layout != torch.strided:
                continue
            size = MemorySize.of(tensor)
            freed = MemorySize() - size
            if self._seen.add(tensor, partial(self._change, freed)):
                self._change(size)
        self.peak = max(self.peak, self.alive, key=MemorySize.bytes)

    def _change(self, difference: MemorySize) -> None:
        self.alive += difference


def _first_of(arguments: Sequence[object]) -> object:
    """The first argument; None if there is none."""
    return next(iter(arguments), None)


def _saved_by_layer(lstm: torch.nn.LSTM, layer: int, steps: int, batch: int) -> MemorySize:
    """Memory that oneDNN saves for the backward pass of one layer, over all its directions."""
    directions = 2 if lstm.bidirectional else 1
    width = lstm.hidden_size
    inputs = lstm.input_size
    if layer:
        inputs = width * directions
    hidden = steps * batch * width
    elements, fixed = onednn_lstm_workspace(steps, batch, inputs, width)
    per_direction = hidden + 4 * batch * width + elements
    if not lstm.bias:  # without biases, zeros of the weights' shapes are saved
        per_direction += 4 * width * (inputs + width)
    saved = directions * per_direction
    # A later layer also saves its input: dropout's result and mask, or the joined directions.
    if layer and lstm.dropout and lstm.training:
        saved += 2 * hidden * directions
    elif layer and directions > 1:
        saved += hidden * directions
    return MemorySize(saved, directions * fixed)
