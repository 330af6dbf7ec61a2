"""A dispatch mode that applies a formula to each operator, and records pass, layer, number format
and bytes."""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from mfulab.core.errors import drop_own_frames
from mfulab.core.parts import leave_out
from mfulab.core.said import Said
from mfulab.flops.attention import ATTENTION
from mfulab.flops.cost import FLOPS, Cost
from mfulab.flops.elementwise import other_flops
from mfulab.flops.experts import expert_numbers, unread_elements
from mfulab.flops.flex import flex_attention_seen
from mfulab.flops.higher_order import Body, UnknownCostError, bodies_seen, open_kernel
from mfulab.flops.layers import LayerTracker, Opened, Pass
from mfulab.flops.operators import FORMULAS, formula_of, grouped_matmul, operator_name
from mfulab.flops.tensors import LiveTensors
from mfulab.flops.written import PRODUCTS, WrittenAttention

# FLOPs of `recomputed` are executed, but not needed.
PASSES: tuple[Pass, ...] = ("forward", "backward", "recomputed")
# Operators that add their first operand, the addend, to a product of the next two.
_ADDENDS_FIRST = ("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::addbmm", "aten::_addmm")
_SAME_VALUES = frozenset(
    {"aten::expand", "aten::alias", "aten::t", "aten::transpose", "aten::unsqueeze", "aten::view"}
)
LOOK_UPS = frozenset(
    {"aten::embedding", "aten::_embedding_bag", "aten::index", "aten::index_select", "aten::gather"}
)

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Key:
    """Key by which calls are summed. `dtype` is set only for operators that count towards MFU;
    `side` is as in Cost."""

    layer: str
    operator: str
    direction: Pass
    dtype: torch.dtype | None = None
    side: int = 0


@dataclass
class Totals:
    """Sums over calls. FLOPs are as in Cost; `other_flops` do not count towards MFU; `bounds` is
    the number of calls whose cost is an upper bound. Operators that count towards MFU read and
    wrote `elements`, all others `other_elements`. Of stacked experts, only those that tokens choose
    count as read, as if tokens were routed evenly at random."""

    calls: int = 0
    flops: int = 0
    causal_flops: int = 0
    executed_flops: int = 0
    attention_flops: int = 0
    rectangle_flops: int = 0
    padding_flops: int = 0
    unfilled_flops: int = 0
    bounds: int = 0
    other_flops: int = 0
    elements: int = 0
    other_elements: int = 0

    @classmethod
    def of(cls, cost: Cost) -> "Totals":
        """Totals of one call."""
        flops = {name: getattr(cost, name) for name in FLOPS}
        return cls(calls=1, bounds=int(cost.bound), **flops)

    def add(self, other: "Totals") -> None:
        """Adds `other` to these sums."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def subtract(self, other: "Totals") -> None:
        """Subtracts `other` from these sums."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) - getattr(other, name))


@dataclass
class Operations:
    """Result of a count: sums by layer, operator, pass and format, and operators without a formula.
    `unshown` are FLOPs that ran outside modules and made no autograd node."""

    totals: dict[Key, Totals] = field(default_factory=dict)
    uncounted: Counter[str] = field(default_factory=Counter)
    unshown: int = 0

    def add(self, other: "Operations") -> None:
        """Adds `other` to these sums."""
        for key, totals in other.totals.items():
            self.totals.setdefault(key, Totals()).add(totals)
        self.uncounted.update(other.uncounted)
        self.unshown += other.unshown

    def sum(
        self, direction: Pass | None = None, layer: str | None = None, operator: str | None = None
    ) -> Totals:
        """Sums all totals that match the arguments. `layer` includes the layers inside it."""
        total = Totals()
        for key, totals in self.totals.items():
            inside = not layer or key.layer == layer or key.layer.startswith(layer + ".")
            if inside and direction in (None, key.direction) and operator in (None, key.operator):
                total.add(totals)
        return total

    @property
    def model_flops(self) -> int:
        """FLOPs that MFU counts: forward and backward, with attention counted full."""
        return self.sum("forward").flops + self.sum("backward").flops

    def by_format(self, executed: bool = False) -> dict[tuple[torch.dtype, bool], int]:
        """Needed or executed FLOPs, by the operands' dtype and whether by convolutions, which have
        a TF32 switch of their own."""
        flops: Counter[tuple[torch.dtype, bool]] = Counter()
        passes = PASSES if executed else PASSES[:2]
        for key, totals in self.totals.items():
            if key.dtype is not None and key.direction in passes:
                count = totals.executed_flops if executed else totals.flops
                flops[key.dtype, "conv" in key.operator] += count
        return dict(flops)


class OperatorCounter(Opened):
    """Counts every operator that runs while entered, on any device, with or without data. The
    result is in `operations`.

    The step's values do not change. Torch's dispatcher shows each operator after autocast and below
    tensor subclasses, so DTensor, FSDP2 and quantised weights show what this rank computes. Code
    compiled by torch.compile runs eagerly. Replaying a CUDA graph runs no operators, so count a
    step before its capture.

    The formula of an operator is this project's, else torch's, else that of elementwise arithmetic.
    Operators without any are listed in `operations.uncounted`. Passes are those of
    `LayerTracker.layer_and_pass`. With `memory`, `live` tracks the memory of live tensors.
    """

    def __init__(self, layers: LayerTracker, memory: bool = True) -> None:
        super().__init__()
        self.operations = Operations()
        self.live = LiveTensors()
        # FLOPs by sequence number of an autograd node, and pass
        self.by_node: Counter[tuple[int, Pass]] = Counter()
        self._layers = layers
        self._tracks_memory = memory
        self._written = WrittenAttention()
        self._zeros: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._experts = expert_numbers(layers.model)

    def parts(self) -> Iterator[AbstractContextManager[Any]]:
        yield self._layers
        yield flex_attention_seen(self.add)
        yield bodies_seen(self._is_active, self._run_both_branches)
        yield self._listening()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with eager_stance(), Dispatch(self):
            yield

    def _multiplies_zeros(self, name: str, args: tuple[object, ...]) -> bool:
        """True if an operand of a product is a zero that stands for a missing tangent."""
        if not self._zeros:
            return False
        factors = args[1:] if name.startswith(_ADDENDS_FIRST) else args
        return any(tensor in self._zeros for tensor in _tensors(factors))

    def _is_active(self, arguments: object) -> bool:
        """True if this counter's dispatch mode is active, and neither tracing nor foreign fake
        tensors are involved."""
        modes = []
        if torch._C._len_torch_dispatch_stack():
            modes = _get_current_dispatch_mode_stack()
        dispatch = None
        for mode in modes:
            if isinstance(mode, Dispatch) and mode.counter is self:
                dispatch = mode
            elif mode.is_infra_mode() and not isinstance(mode, FakeTensorMode):
                return False
        return dispatch is not None and not dispatch.is_foreign(tree_leaves(arguments))

    def _run_both_branches(self, yes: Body, no: Body, operands: Sequence[object]) -> Any:
        """Counts a conditional whose predicate has no data, by running both branches. Raises
        UnknownCostError if their costs differ."""
        _, other = self._run_apart(no, operands)
        out, taken = self._run_apart(yes, operands)
        if taken.model_flops != other.model_flops:
            raise UnknownCostError(
                Said("branches_differ", taken=taken.model_flops, other=other.model_flops)
            )
        self.operations.add(taken)
        return out

    def _run_apart(self, body: Body, operands: Sequence[object]) -> tuple[Any, Operations]:
        """Runs a body. Returns its result, and its operations, which are not added to the
        counter's."""
        before = self.operations
        self.operations = Operations()
        try:
            return body(*operands), self.operations
        finally:
            self.operations = before

    def add(
        self, operator: object, out: object, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        """Adds one call of an operator: a `torch.ops` overload packet, a higher-order operator or a
        Triton kernel."""
        name = operator_name(operator)
        read = _tensors((args, kwargs))
        written = _tensors(out)
        if self._tracks_memory:
            self.live.note(read, written)
        self._layers.read(read)
        layer, direction = self._layers.layer_and_pass()
        is_nested = any(tensor.is_nested for tensor in read)
        try:
            cost = _cost(operator, name, out, args, kwargs)
        except RuntimeError:
            if not is_nested:
                raise
            cost = None  # a nested tensor has no plain shape: the operator is uncounted
        if cost:
            if self._multiplies_zeros(name, args):
                cost = Cost(0, 0, cost.executed_flops)
            key = Key(layer, name, direction, read[0].dtype if read else None, cost.side)
            scores = out if name in PRODUCTS and not is_nested else None
            call = self._product(key, cost, read, written, args, scores)
        else:
            key = Key(layer, name, direction)
            call = self._other(operator, name, read, written, out, args, kwargs)
        self.operations.totals.setdefault(key, Totals()).add(call)

    def _product(
        self, key: Key, cost: Cost, read: Tensors, written: Tensors, args: Any, scores: Any
    ) -> Totals:
        """Totals of one call that counts towards MFU."""
        name = key.operator
        if scores is not None:  # this matmul may be part of attention written out
            module = self._layers.model.get_submodule(key.layer)
            a, b = args[-2:] if name == "aten::bmm" else args[1:3]
            plain = cost
            cost = self._written.cost(module, plain, a, b)
            if key.direction != "backward":
                self._written.record(key, module, cost, plain, scores)
        node = self._layers.node(read)
        self.by_node[node, key.direction] += cost.flops
        if node < 0 and self._layers.is_idle:
            self.operations.unshown += cost.flops
        call = Totals.of(cost)
        call.elements = elements(read + written)
        if FORMULAS.get(name) is grouped_matmul and args[1].ndim == 3:
            call.elements -= unread_elements(self._experts, args[0], args[1])
        return call

    def _other(
        self,
        operator: Any,
        name: str,
        read: Tensors,
        written: Tensors,
        out: Any,
        args: Any,
        kwargs: Any,
    ) -> Totals:
        """Totals of one call that does not count towards MFU."""
        # torch multiplies by a zero scalar where an input has no tangent. This is executed, but
        # not needed.
        is_zero = name == "aten::zeros" and not out.ndim
        if is_zero or (name in _SAME_VALUES and args[0] in self._zeros):
            self._zeros[out] = True
        correction = self._written.follow(name, out, args)
        if correction is not None:
            corrected_key, before, after = correction
            totals = self.operations.totals.setdefault(corrected_key, Totals())
            totals.subtract(Totals.of(before))
            totals.add(Totals.of(after))
        flops = other_flops(operator, read + written, args, kwargs)
        if flops is None:
            self.operations.uncounted[name] += 1
        if name in LOOK_UPS:  # reads as much of a table as it writes
            read = [tensor for tensor in read if tensor is not args[0]]
            read += written[:1]
        call = Totals(calls=1, other_flops=flops or 0)
        is_view = flops == 0 and _shares_memory(read, written)
        if not is_view:  # a view moves nothing
            call.other_elements = elements(read + written)
        return call


def eager_stance() -> AbstractContextManager[Any]:
    """Makes code compiled by torch.compile run eagerly, from this call until the context ends.
    Without it, a dispatch mode would make compiled code fall back to eager for good."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return _EagerStanceWhenLoaded()


class _EagerStanceWhenLoaded(AbstractContextManager[None]):
    """Makes compiled code run eagerly from the first use of torch.compile on, which loads the
    compiler. torch.cond and scan use it, too."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._compile = torch.compile
        self._undo.enter_context(patch.object(torch, "compile", self._first))

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        importlib.import_module("torch._dynamo")
        self._undo.close()
        self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        return self._compile(*args, **kwargs)

    def __exit__(self, *error: object) -> None:
        self._undo.close()


class Dispatch(TorchDispatchMode):
    """Decomposes operators as far as torch would, runs them, and passes them to the counter."""

    supports_higher_order_operators = True

    def __init__(self, counter: OperatorCounter) -> None:
        super().__init__()
        self.counter = counter
        self._fake_modes = [
            mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, FakeTensorMode)
        ]

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            return self._run(operator, types, args, kwargs or {})
        except BaseException as error:
            drop_own_frames(error)
            raise

    def _run(self, operator: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs one operator and counts it, or decomposes it first."""
        # A tensor subclass is unwrapped first: operators on its inner tensors are what runs.
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        # Fake tensors made inside the step, as by DTensor to find global shapes.
        if FakeTensor in types and self.is_foreign(tree_leaves((args, kwargs))):
            return operator(*args, **kwargs)
        if isinstance(operator, torch._ops.HigherOrderOperator):
            return self._higher_order(operator, args, kwargs)
        tensors = _tensors(args)
        device = tensors[0].device.type if tensors else "cpu"
        is_nested = any(tensor.is_nested for tensor in tensors)  # which cannot be decomposed
        if not is_nested and _is_composite(operator, device):
            with self:
                return operator._op_dk(
                    torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs
                )
        out = operator(*args, **kwargs)
        self.counter.add(operator._overloadpacket, out, args, kwargs)
        return out

    def is_foreign(self, leaves: Sequence[object]) -> bool:
        """True if any leaf is a fake tensor of a mode entered inside the step, which only traces
        and computes nothing."""
        return any(
            isinstance(leaf, FakeTensor) and leaf.fake_mode not in self._fake_modes
            for leaf in leaves
        )

    def _higher_order(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Runs a higher-order operator: with its body visible if there is a plain implementation,
        else as one operator."""
        kernel = None
        if not formula_of(operator_name(operator)):
            kernel = open_kernel(operator, tree_leaves((args, kwargs)))
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs)
        out = operator(*args, **kwargs)
        if operator.__name__ == "out_dtype":  # wraps another operator, to return a wider format
            self.counter.add(args[0]._overloadpacket, out, args[2:], kwargs)
        else:
            self.counter.add(operator, out, args, kwargs)
        return out


@cache
def _is_composite(operator: Any, device: str) -> bool:
    """True if torch decomposes an operator on this kind of device. A kernel for the device takes
    precedence, and may round differently."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = operator.name()
    if operator.namespace == "prim" or not has_kernel(name, "CompositeImplicitAutograd"):
        return False
    return not has_kernel(name, torch._C._dispatch_key_for_device(device))


def _gradient_count(name: str) -> int:
    """Number of gradients that a fused kernel always makes; 0 for other operators."""
    if name == "aten::mkldnn_rnn_layer_backward":
        return 7
    is_attention = name in ATTENTION and name.endswith("_backward")
    if is_attention and not name.startswith("mfulab"):
        return 3
    return 0


def _is_needed(node: Any) -> bool:
    """True if the running backward pass will execute an autograd node, or needs its gradient."""
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient `torch.autograd.grad` returns
        return True


_VECTOR_PRODUCTS = ("MvBackward", "AddmvBackward", "DotBackward", "VdotBackward")


def _cost(operator: Any, name: str, out: Any, args: Any, kwargs: Any) -> Cost | None:
    """Cost of a call by this project's formula, else by torch's. None for operators that do not
    count towards MFU."""
    node = torch._C._current_autograd_node()
    formula = formula_of(name)
    if formula is not None:
        # `out` only receives the result, and is no operand.
        keywords = leave_out(kwargs, ("out",))
        count = _gradient_count(name)
        if count and node is not None and len(node.next_functions) >= count:
            # The kernel computes all gradients, even those that autograd does not need.
            functions = node.next_functions[:count]
            keywords["needs_gradient"] = [_is_needed(function) for function, _ in functions]
        cost = formula(*args, out=out, **keywords)
        if cost is None:
            return None
        return Cost.of(cost)
    if operator in flop_registry:
        return Cost.of(flop_registry[operator](*args, out_val=out, **kwargs))
    if name != "aten::mul" or node is None or not node.name().startswith(_VECTOR_PRODUCTS):
        return None
    if not all(isinstance(arg, torch.Tensor) for arg in args):
        return None
    # Gradient of a matrix-vector or dot product: [m, 1]·[1, n], which torch broadcasts.
    return Cost.of(2 * out.numel())


def _tensors(tree: object) -> Tensors:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def elements(tensors: list[torch.Tensor]) -> int:
    """Number of elements in memory. A dimension of stride 0 repeats the same elements, and does not
    count."""
    return sum(map(_elements, tensors))


def _elements(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel():
        return tensor.numel()
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
    return count


def _shares_memory(read: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
    """True if everything written shares its storage with a tensor that was read, as for a view."""
    if not written or any(tensor.layout != torch.strided for tensor in written):
        return False
    strided = [tensor for tensor in read if tensor.layout == torch.strided]
    return _storages(written) <= _storages(strided)


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def layer_rows(model: torch.nn.Module, operations: Operations) -> list[dict[str, object]]:
    """Returns FLOPs and bytes (4 per element) by layer: a row per module, in the model's order,
    including the modules inside it."""
    sums = dict[tuple[str, str], Totals]()
    for name, _ in model.named_modules():
        sums["forward", name] = Totals()
        sums["backward", name] = Totals()
    for key, totals in operations.totals.items():
        for layer in {"", *accumulate(key.layer.split("."), "{}.{}".format)}:
            if (key.direction, layer) in sums:
                sums[key.direction, layer].add(totals)
    step_flops = sums["forward", ""].flops + sums["backward", ""].flops
    rows = list[dict[str, object]]()
    for name, module in model.named_modules():
        forward = sums["forward", name]
        backward = sums["backward", name]
        share = None
        if step_flops:
            share = round(100 * (forward.flops + backward.flops) / step_flops, 4)
        row = {
            "layer": name,
            "module": type(module).__name__,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "forward_flops": forward.flops,
            "backward_flops": backward.flops,
            "forward_causal_flops": forward.causal_flops,
            "other_flops": forward.other_flops,
            "other_backward_flops": backward.other_flops,
            "forward_bytes": 4 * (forward.elements + forward.other_elements),
            "backward_bytes": 4 * (backward.elements + backward.other_elements),
            "share_percent": share,
        }
        rows.append(row)
    return rows
