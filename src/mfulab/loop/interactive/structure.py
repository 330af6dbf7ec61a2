"""Structure of a phase, recorded cheaply: the modules called, in order, the shapes that they were
given, the graph."""

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

MOST_NOTED = 4096  # calls of modules after which the record is reduced to a hash
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


Modules = Sequence[torch.nn.Module]
Shape = tuple[int, ...]
Arguments = tuple[object, ...]
_GUARD = "not G['__import_torch_dot_nn_dot_modules_dot_module']._global_forward_pre_hooks"


class Inside(NamedTuple):
    """Summary of what ran in a phase. `modules` is a hash of the modules in order. `shapes` is a
    hash of the shapes given to modules with parameters, `elements` the number of elements in them.
    `leading` holds the first two dimensions of the first tensor given to a layer with
    `batch_first=False`. It is empty without such a tensor, and None without such a layer."""

    modules: int = 0
    shapes: int = 0
    elements: int = 0
    leading: Shape | None = None


class Structure:
    """Records every module that the thread calls, from one `take` to the next; the caller records
    calls of `models` itself."""

    def __init__(self, models: Modules) -> None:
        self._roots = frozenset(map(id, models))
        self._thread = threading.get_ident()
        self._noted: list[Any] = []
        self._shapes: list[Shape] = []  # of what modules with parameters were given
        self._leading: Shape | None = None

    def called(self, module: torch.nn.Module, arguments: Arguments) -> None:
        """Records a call of a module that is none of the models, if it is on the thread."""
        if threading.get_ident() == self._thread and id(module) not in self._roots:
            self.note(module, arguments)

    def take(self) -> Inside:
        """Returns what ran since the last call, and begins anew."""
        if not self._noted:
            return _NOTHING
        shapes = 0
        if self._shapes:
            shapes = hash(tuple(self._shapes))
        elements = sum(map(math.prod, self._shapes))
        inside = Inside(_hash(self._noted), shapes, elements, self._leading)
        self._noted = []
        self._shapes = []
        self._leading = None
        return inside

    def note(self, module: torch.nn.Module, arguments: Arguments) -> None:
        """Records a call."""
        fields = module.__dict__
        noted = self._noted
        if "_graph" in fields or "_parameters" not in fields:
            return  # a traced module, which torch also runs under its own operators, in any order
        if len(noted) > MOST_NOTED:
            noted[:] = [_hash(noted)]
        parameters = fields["_parameters"]
        if not parameters:
            noted.append(type(module))
            return
        try:
            noted += _form_of(module, parameters)
            self._note_shape(fields, arguments)
        except Exception:  # a lazy module, whose weights are made in this very call
            self._noted += (type(module), "unknown")

    def _note_shape(self, fields: Mapping[str, object], arguments: Arguments) -> None:
        is_time_first = fields.get("batch_first") is False
        if is_time_first and self._leading is None:
            self._leading = ()
        value = None
        if arguments:
            value = arguments[0]
        if type(value) is PackedSequence:
            value = value.data
        if not isinstance(value, torch.Tensor):
            return
        shape = sizes_of(value)
        self._shapes.append(shape)
        if is_time_first and len(shape) == 3 and not value.is_nested and not self._leading:
            self._leading = tuple(shape[:2])


def _form_of(
    module: torch.nn.Module, parameters: Mapping[str, torch.Tensor | None]
) -> tuple[object, ...]:
    """Identity of a module with weights: its type, its first weight that is not None, and its
    stride, padding and dilation."""
    fields = module.__dict__
    for weight in parameters.values():  # a generator would take longer
        if weight is not None:
            break
    form: Any = len(parameters)
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


def sizes_of(tensor: torch.Tensor) -> Shape:
    """Shape of a tensor. For a nested tensor: its number of sequences, the shape of all rows
    together and, on a CPU, the length of each sequence."""
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout != torch.jagged:
        return tuple(tensor._nested_tensor_size().flatten().tolist())  # this tensor is on the host
    jagged: Any = tensor
    values = jagged._values
    offsets = jagged._offsets  # `values()` and `offsets()` would make nodes in the graph
    lengths = ()
    if offsets.device.type == "cpu":
        lengths = offsets.diff().tolist()
    return (offsets.numel() - 1, *values.shape, *sorted(lengths))


def vmapped() -> Shape:
    """Batch sizes that `torch.vmap` hides from the shapes inside it."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    sizes = list[int]()
    for interpreter in stack:
        if interpreter.key() == torch._C._functorch.TransformType.Vmap:
            sizes.append(torch._C._functorch.CVmapInterpreterPtr(interpreter).batchSize())
    return tuple(sizes)


def real_tokens_of(arguments: Arguments, keywords: Mapping[str, object]) -> RealTokens | None:
    """Real tokens of a counted call; None if they are unknown. Looking at the batch is not counted,
    and its errors are ignored."""
    with suppress(Exception), _disable_current_modes():
        return real_tokens(arguments, keywords)
    return None


# Number of the node that autograd makes next in this thread.
sequence_number = torch._C._autograd._get_sequence_nr


def number(outputs: object) -> int:
    """Sequence number of the newest node that a backward pass starts from; -1 if there is none."""
    numbers = (node._sequence_nr() for node in _starts(outputs))
    return max((number for number in numbers if number < 2**63), default=-1)


def _starts(outputs: object) -> list[Node]:
    listed = outputs if isinstance(outputs, Sequence) else [outputs]
    return drop_none(getattr(output, "grad_fn", None) for output in listed)


def nodes_of(outputs: object) -> Iterator[Node]:
    """Yields every node in the graph of a backward pass."""
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
    """True if compiled code, or a higher-order operator, made a node in the graph of a backward
    pass."""
    return any(
        node.name().endswith(("CompiledFunctionBackward", "AutogradOpBackward"))
        for node in nodes_of(outputs)
    )


def graphs_compiled() -> int:
    """Number of graphs that torch.compile has made in this process. Imports nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return dynamo.counters["stats"].get("unique_graphs", 0)


def hooks_are_guarded_against() -> bool:
    """True if a hook on all modules makes torch compile code anew: code with `super().__call__`, in
    torch 2.14 and later."""
    with suppress(Exception):  # other versions of torch lack these records of compiled code
        entries_of = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
        references = sys.modules["torch._dynamo.convert_frame"].input_codes.seen
        for code in drop_none(reference() for reference in references):
            if any(_GUARD in str(entry.guard_manager) for entry in entries_of(code)):
                return True
    return False


def is_compiled(module: torch.nn.Module) -> bool:
    """True if a module, or its forward, is compiled."""
    return (
        is_compiled_in_place(module)
        or hasattr(module, "_orig_mod")
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """True if `module.compile()` has compiled its call, for which torch calls no hook."""
    return getattr(module, "_compiled_call_impl", None) is not None


def graph_hash(outputs: object, begin: int, spans: Sequence[tuple[int, int]]) -> int:
    """Hash of the operators that may cost FLOPs in the graph of a backward pass from `outputs`, by
    shapes of results and weights. Nodes before `begin` and inside `spans`, which are in order, do
    not count."""
    code = 0
    starts = [start for start, _ in spans]
    for node in nodes_of(outputs):
        number = node._sequence_nr()
        index = bisect_right(starts, number) - 1
        if number < begin or number >= 2**63 or (index >= 0 and number < spans[index][1]):
            continue
        name = node.name()
        if name.rstrip("0123456789").removesuffix("Backward") not in CHEAP:
            leaves = drop_none(getattr(other, "variable", None) for other, _ in node.next_functions)
            weights = tuple(tuple(leaf.shape) for leaf in leaves)
            results = [tuple(result.shape) for result in node._input_metadata]
            code = hash((code, name, weights, *results))
    return code
