"""What a user's loop really ran: every call of the model by shapes and format, forward and backward; and its FLOPs.

Forward and backward passes are noticed by hooks, so nothing in the loop has to change. FLOPs are counted after the
window, on the meta device, once for each distinct set of input shapes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

# Beyond as many different shapes (a growing cache in generation, say) counting would take longer than the loop.
MOST_SHAPES = 16


@dataclass
class Signature:
    """One distinct way in which the model was called: its arguments without data."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    forwards: int = 0
    backwards: int = 0


@dataclass
class CallLog:
    """Counts forward and backward passes of `model` while it is open; `on_forward` is called before each forward."""

    model: torch.nn.Module
    on_forward: Callable[[], None] = lambda: None
    signatures: dict[str, Signature] = field(default_factory=dict)
    formats: Counter[torch.dtype] = field(default_factory=Counter)
    _handles: list[Any] = field(default_factory=list)

    def open(self) -> None:
        """Begins to listen."""
        self._handles = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ]

    def close(self) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def assume(self, batch: Any, steps: int, training: bool) -> None:
        """Notes `steps` calls with `batch` (a tensor, a tuple or a dict) that went past the hooks."""
        arguments, keywords = ((), batch) if isinstance(batch, dict) else (batch, {})
        if not isinstance(arguments, tuple):
            arguments = tuple(arguments) if isinstance(arguments, list) else (arguments,)
        signature = self._signature(arguments, keywords)
        signature.forwards, signature.backwards = steps, steps if training else 0

    @property
    def forwards(self) -> int:
        return sum(signature.forwards for signature in self.signatures.values())

    @property
    def backwards(self) -> int:
        return sum(signature.backwards for signature in self.signatures.values())

    @property
    def samples(self) -> int | None:
        """Samples that went forward: the first dimension of each call's first tensor."""
        total = 0
        for signature in self.signatures.values():
            tensors = [leaf for leaf in _leaves(signature) if isinstance(leaf, torch.Tensor) and leaf.ndim]
            if not tensors:
                return None
            total += tensors[0].shape[0] * signature.forwards
        return total or None

    def _before(self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.on_forward()
        self.formats[_format(module)] += 1

    def _after(
        self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        signature = self._signature(arguments, keywords)
        signature.forwards += 1
        differentiable = [leaf for leaf in tree_flatten(_plain(output))[0] if _has_gradient(leaf)]
        if differentiable:
            noticed = False

            def notice(gradient: torch.Tensor) -> None:
                nonlocal noticed
                if not noticed:  # an output of several tensors has one backward pass
                    noticed = True
                    signature.backwards += 1

            for tensor in differentiable:
                tensor.register_hook(notice)

    def _signature(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Signature:
        leaves, structure = tree_flatten((arguments, keywords))
        described = [
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            for leaf in leaves
        ]
        key = f"{described}{structure}"
        if key not in self.signatures:
            self.signatures[key] = Signature(*tree_map_only(torch.Tensor, _without_data, (arguments, keywords)))
        return self.signatures[key]


@dataclass(frozen=True)
class LoopFlops:
    """FLOPs of all calls: what the model needs, of that in convolutions, and what was executed, again included.

    `elements` were read and written by the operators that count.
    """

    model: int
    convolutions: int
    executed: int
    elements: int
    uncounted: tuple[str, ...]


class UncountedError(Exception):
    """The calls' FLOPs cannot be counted; the message says why."""


def count_calls(log: CallLog) -> LoopFlops:
    """Counts every signature once on the meta device and multiplies; raises UncountedError with the reason."""
    if not log.signatures:
        raise UncountedError("the model was not called inside the window")
    if len(log.signatures) > MOST_SHAPES:
        raise UncountedError(
            f"the model was called with {len(log.signatures)} different shapes; {MOST_SHAPES} are counted"
        )
    model = convolutions = executed = elements = 0
    uncounted: set[str] = set()
    for signature in log.signatures.values():
        counted = _count(unwrapped(log.model), signature)
        forward, backward = counted.sum("forward"), counted.sum("backward")
        again = counted.sum("recomputed")
        model += signature.forwards * forward.flops + signature.backwards * backward.flops
        executed += signature.forwards * forward.executed_flops
        executed += signature.backwards * (backward.executed_flops + again.executed_flops)
        elements += signature.forwards * forward.elements + signature.backwards * backward.elements
        for key, totals in counted.totals.items():
            if "convolution" in key.operator and key.direction != "recomputed":
                times = signature.forwards if key.direction == "forward" else signature.backwards
                convolutions += times * totals.flops
        uncounted |= set(counted.uncounted)
    return LoopFlops(model, convolutions, executed, elements, tuple(sorted(uncounted)))


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch.compile's and data parallelism's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def _count(model: torch.nn.Module, signature: Signature) -> Any:
    from mfulab.flops.count import CountError, count
    from mfulab.models.build import first_tensor

    state = {
        name: _without_data(tensor).requires_grad_(tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }

    def step() -> torch.Tensor:
        output = torch.func.functional_call(model, state, signature.arguments, signature.keywords)
        return first_tensor(output).sum()

    try:
        with torch.set_grad_enabled(bool(signature.backwards)):
            return count(model, step, backward=bool(signature.backwards)).operations
    except CountError as error:
        raise UncountedError(str(error)) from error


def _format(module: torch.nn.Module) -> torch.dtype:
    """The dtype that products take here: autocast's inside it, else that of the parameters."""
    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.get_default_dtype() if parameter is None else parameter.dtype


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def _plain(output: Any) -> Any:
    """A model's output in containers that can be walked through: transformers' are mappings."""
    return dict(output) if hasattr(output, "keys") else output


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _leaves(signature: Signature) -> list[Any]:
    return tree_flatten((signature.arguments, signature.keywords))[0]
