"""Structure of a phase, noted cheaply: modules called, in order, what they are given, the graph."""

import math
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.core.parts import drop_none
from mfulab.flops.useful import RealTokens, real_tokens

MOST_NOTED = 4096  # calls of modules after which what was noted is made a hash
# Autograd's names of operators that cost no FLOPs of a model: elementwise ones, sums, views,
# losses.
CHEAP = frozenset(
    """
    Abs Add AddN AsStrided BinaryCrossEntropyWithLogits Cat Clamp ClampMin Clone Cos CrossEntropyLoss Detach Div
    Exp Expand Gelu HuberLoss Index L1Loss Log LogSoftmax Logsigmoid Max Maximum Mean Min Minimum MseLoss Mul
    Neg NllLoss NllLoss2D Norm Permute Pow Relu Reshape ReshapeAlias Rsub Select Sigmoid Silu Sin Slice
    SmoothL1Loss Softmax Softplus Split Sqrt Squeeze Stack Std Sub Sum T Tanh ToCopy Transpose Unbind Unsqueeze
    UnsafeView Var View Where
    """.split()  # noqa: SIM905
)


_GUARD = "not G['__import_torch_dot_nn_dot_modules_dot_module']._global_forward_pre_hooks"


class Inside(NamedTuple):
    """Summary of what ran: hashes of modules in order and of shapes given to those with parameters;
    the elements of these; the first two dimensions of the first tensor whose second is the batch
    (`batch_first=False`), empty without such a tensor, None without such a layer."""

    modules: int = 0
    shapes: int = 0
    elements: int = 0
    leading: tuple[int, ...] | None = None


class Structure:
    """Notes every module that the thread calls, from one `take` to the next; its caller notes
    `models` itself."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._roots, self._thread = frozenset(map(id, models)), threading.get_ident()
        self._noted: list[Any] = []
        self._given: list[tuple[int, ...]] = []
        self._leading: tuple[int, ...] | None = None

    def called(self, module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        """Notes a call of any module, from whatever calls it."""
        if threading.get_ident() == self._thread and id(module) not in self._roots:
            self.note(module, arguments)

    def take(self) -> Inside:
        """Gives what ran since the last call, and begins anew."""
        if not self._noted:
            return _NOTHING
        shapes = 0
        if self._given:
            shapes = hash(tuple(self._given))
        elements = sum(map(math.prod, self._given))
        inside = Inside(_hash(self._noted), shapes, elements, self._leading)
        self._noted = []
        self._given = []
        self._leading = None
        return inside

    def note(self, module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        """Notes a call."""
        fields = module.__dict__
        noted = self._noted
        if "_graph" in fields or "_parameters" not in fields:
            return  # a traced one: torch runs such under its own operators too, in whatever order
        if len(noted) > MOST_NOTED:
            noted[:] = [_hash(noted)]
        if not (own := fields["_parameters"]):
            noted.append(type(module))
            return
        try:
            noted += _form_of(module, own)
            self._note_given(fields, arguments)
        except Exception:  # weights that are made in this very call
            self._noted += (type(module), "unknown")

    def _note_given(self, fields: Mapping[str, object], arguments: tuple[object, ...]) -> None:
        is_time_first = fields.get("batch_first") is False
        if is_time_first and self._leading is None:
            self._leading = ()
        given = None
        if arguments:
            given = arguments[0]
        if type(given) is PackedSequence:
            given = given.data
        if not isinstance(given, torch.Tensor):
            return
        size = sizes_of(given)
        self._given.append(size)
        if is_time_first and len(size) == 3 and not given.is_nested and not self._leading:
            self._leading = tuple(size[:2])


def _form_of(module: torch.nn.Module, own: Mapping[str, torch.Tensor | None]) -> tuple[object, ...]:
    """Identity of a module with weights: its type, its first weight that is not None, how it steps."""
    fields = module.__dict__
    for weight in own.values():  # a generator would take longer
        if weight is not None:
            break
    form: Any = len(own)
    if "stride" in fields:
        form = form, fields["stride"], fields.get("padding"), fields.get("dilation")
    if weight is None:
        return type(module), form
    return type(module), form, weight.shape, weight.dtype


_NOTHING = Inside()


def _hash(noted: list[object]) -> int:
    try:
        return hash(tuple(noted))
    except TypeError:  # a module's own `stride` may be a list
        return hash(repr(noted))


def sizes_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's shape; of a nested one its number of sequences, those of its rows together and, on
    a CPU, of each."""
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout != torch.jagged:
        return tuple(tensor._nested_tensor_size().flatten().tolist())  # which lies on the host
    jagged: Any = tensor
    values = jagged._values
    offsets = jagged._offsets  # `values()` would make a node of the graph
    lengths = ()
    if offsets.device.type == "cpu":
        lengths = offsets.diff().tolist()
    return (offsets.numel() - 1, *values.shape, *sorted(lengths))


def vmapped() -> tuple[int, ...]:
    """Sizes that `torch.vmap` hides from the shapes inside it."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    of_vmap = (
        interpreter
        for interpreter in stack
        if interpreter.key() == torch._C._functorch.TransformType.Vmap
    )
    return tuple(
        torch._C._functorch.CVmapInterpreterPtr(interpreter).batchSize() for interpreter in of_vmap
    )


def real_tokens_of(
    arguments: tuple[object, ...], keywords: Mapping[str, object]
) -> RealTokens | None:
    """Real tokens of a counted call; looking at the batch is no part of what is counted, nor may it
    fail."""
    with suppress(Exception), _disable_current_modes():
        return real_tokens(arguments, keywords)
    return None


# Number of the node that autograd makes next in this thread.
sequence_number = torch._C._autograd._get_sequence_nr


def number(outputs: object) -> int:
    """Number of the newest node that a backward pass starts from; -1 for a leaf and for what has
    none."""
    numbers = (node._sequence_nr() for node in _starts(outputs))
    return max((number for number in numbers if number < 2**63), default=-1)


def _starts(outputs: object) -> list[Node]:
    nodes = (
        getattr(output, "grad_fn", None)
        for output in (outputs if isinstance(outputs, Sequence) else [outputs])
    )
    return drop_none(nodes)


def nodes_of(outputs: object) -> Iterator[Node]:
    """Every node of the graph of a backward pass."""
    waiting = _starts(outputs)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for other, _ in node.next_functions:
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)


def holds_compiled(outputs: object) -> bool:
    """True if compiled code, or a higher-order operator, made a node of the graph of a backward
    pass."""
    return any(
        node.name().endswith(("CompiledFunctionBackward", "AutogradOpBackward"))
        for node in nodes_of(outputs)
    )


def graphs_compiled() -> int:
    """Number of graphs that torch.compile has made in this process; looking imports nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return dynamo.counters["stats"].get("unique_graphs", 0)


def hooks_are_guarded_against() -> bool:
    """True if code is compiled anew where all modules have a hook: of `super().__call__`, by torch
    2.14 and later."""
    with suppress(Exception):  # no other torch has what this one keeps of compiled code
        entries_of = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
        codes = (
            code
            for weakref in sys.modules["torch._dynamo.convert_frame"].input_codes.seen
            if (code := weakref())
        )
        return any(
            _GUARD in str(entry.guard_manager) for code in codes for entry in entries_of(code)
        )
    return False


def is_compiled(module: torch.nn.Module) -> bool:
    """True if a module, or its forward, is compiled."""
    return (
        is_compiled_in_place(module)
        or hasattr(module, "_orig_mod")
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """True if `module.compile()` has compiled its call, for which no hook is called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def graph_hash(outputs: object, begin: int, spans: Sequence[tuple[int, int]]) -> int:
    """The operators that may cost FLOPs in the graph of a backward pass from `outputs`, by shapes
    of results and weights; nodes before `begin` and inside `spans`, in order, do not count."""
    code = 0
    starts = [start for start, _ in spans]
    for node in nodes_of(outputs):
        number = node._sequence_nr()
        index = bisect_right(starts, number) - 1
        if number < begin or number >= 2**63 or (index >= 0 and number < spans[index][1]):
            continue
        name = node.name()
        if name.rstrip("0123456789").removesuffix("Backward") not in CHEAP:
            leaves = (getattr(other, "variable", None) for other, _ in node.next_functions)
            weights = tuple(tuple(leaf.shape) for leaf in leaves if leaf is not None)
            code = hash(
                (code, name, weights, *(tuple(result.shape) for result in node._input_metadata))
            )
    return code
