"""Structure of a phase, noted cheaply: modules called, in order, what they are given, and the graph they make."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as global_hooks
from torch.nn.utils.rnn import PackedSequence

from mfulab.flops.layers import compiled_models_unwarned

# Autograd's names of operators that cost no FLOPs of a model: elementwise ones, sums, views, losses.
CHEAP = frozenset(
    """
    Abs Add AddN AsStrided BinaryCrossEntropyWithLogits Cat Clamp ClampMin Clone Cos CrossEntropyLoss Detach Div
    Exp Expand Gelu HuberLoss Index L1Loss Log LogSoftmax Logsigmoid Max Maximum Mean Min Minimum MseLoss Mul
    Neg NllLoss NllLoss2D Norm Permute Pow Relu Reshape ReshapeAlias Rsub Select Sigmoid Silu Sin Slice
    SmoothL1Loss Softmax Softplus Split Sqrt Squeeze Stack Std Sub Sum T Tanh ToCopy Transpose Unbind Unsqueeze
    UnsafeView Var View Where
    """.split()  # noqa: SIM905
)


class Inside(NamedTuple):
    """Summary of what ran: hashes of modules in order and of shapes given to those with parameters; the elements of
    these; the first two dimensions of the first tensor whose second is the batch (`batch_first=False`)."""

    modules: int = 0
    shapes: int = 0
    elements: int = 0
    leading: tuple[int, ...] = ()


class Structure:
    """Notes every module that the thread calls, from one `take` to the next; compiled code shows none.

    Args:
        models: noted by their caller, with `note`, once it knows that a phase begins.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._thread = threading.get_ident()
        self._roots = frozenset(map(id, models))
        self.modules = self._shapes = self._elements = self.calls = 0
        self._leading: tuple[int, ...] = ()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside it module calls are noted; hooks are global ones, which the fast paths of torch's own layers allow."""
        handle = global_hooks.register_module_forward_pre_hook(self._called)
        try:
            with compiled_models_unwarned():
                yield
        finally:
            handle.remove()

    def take(self) -> Inside:
        """Gives what ran since the last call, and begins anew."""
        found = Inside(self.modules, self._shapes, self._elements, self._leading)
        self.modules = self._shapes = self._elements = self.calls = 0
        self._leading = ()
        return found

    def _called(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread or id(module) in self._roots:
            return
        self.note(module, arguments)

    def note(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        """Notes a call."""
        kind, own = type(module), module._parameters
        if "_graph" in module.__dict__:
            return  # a traced one: torch runs such under its own operators too, in whatever order
        self.calls += 1
        if not own:
            self.modules = hash((self.modules, kind))
            return
        try:
            with as_plain_torch():
                self._note_weights(kind, module.__dict__, own, arguments)
        except Exception:  # weights that are made in this very call
            self.modules = hash((self.modules, kind, "unknown"))

    def _note_weights(self, kind: type, held: dict[str, Any], own: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        weight = next((each for each in own.values() if each is not None), None)
        shape = None if weight is None else (weight.shape, weight.dtype)
        form = len(own), held.get("stride"), held.get("padding"), held.get("dilation")
        self.modules = hash((self.modules, kind, shape, form))
        given = arguments[0] if arguments else None
        if type(given) is PackedSequence:
            given = given.data
        if isinstance(given, torch.Tensor):
            size = given.shape
            self._shapes = hash((self._shapes, size))
            self._elements += size.numel()
            if not self._leading and len(size) == 3 and held.get("batch_first") is False:
                self._leading = tuple(size[:2])


def as_plain_torch() -> Any:
    """Keeps the loop's own function modes from seeing what is asked of tensors inside."""
    return torch._C.DisableTorchFunction() if torch._C._len_torch_function_stack() else nullcontext()


def nodes_of(outputs: Any) -> Iterator[Any]:
    """Every node of the graph of a backward pass."""
    given = outputs if isinstance(outputs, Sequence) else [outputs]
    waiting = [node for output in given if (node := getattr(output, "grad_fn", None)) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for other, _ in node.next_functions:
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)


def graph_hash(outputs: Any, begin: int, spans: Sequence[tuple[int, int]]) -> int:
    """The operators that may cost FLOPs in the graph of a backward pass, and the shapes of their results and weights.

    Args:
        outputs: what the backward pass begins from.
        begin: autograd's number from which on nodes count.
        spans: beginnings and ends of the numbers that do not, in order.
    """
    code, starts = 0, [start for start, _ in spans]
    for node in nodes_of(outputs):
        number = node._sequence_nr()
        place = bisect_right(starts, number) - 1
        if number < begin or number >= 2**63 or (place >= 0 and number < spans[place][1]):
            continue
        name = node.name()
        if name.rstrip("0123456789").removesuffix("Backward") not in CHEAP:
            leaves = (getattr(other, "variable", None) for other, _ in node.next_functions)
            weights = tuple(tuple(leaf.shape) for leaf in leaves if leaf is not None)
            code = hash((code, name, weights, *(tuple(each.shape) for each in node._input_metadata)))
    return code


def guarded(hook: Callable[..., None], failed: Callable[[Exception], None]) -> Callable[..., None]:
    """Wraps a hook, after whose own errors the loop goes on."""

    def safe(*given: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            with as_plain_torch():
                hook(*given)
        except Exception as error:
            failed(error)

    return safe
