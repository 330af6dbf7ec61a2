"""FLOPs and bytes of operators recorded in a trace: their shapes go to the same formulas as in a
count. A trace holds only inputs, so the shape of a convolution's output is computed from stride,
padding and dilation ("Concrete Inputs"). Whatever the record does not hold is None with a reason,
never 0."""

import ast
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, starmap, zip_longest
from math import prod
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.said import Said
from mfulab.flops.attention import ATTENTION, SIGNATURES, bind
from mfulab.flops.cost import Cost
from mfulab.flops.operators import FORMULAS, convolution_flops, formula_of
from mfulab.flops.registry.entry import FAULTS, Registered
from mfulab.flops.registry.expression import Operand, UnknownError
from mfulab.flops.registry.step import NO_STEP, StepWork

# Type names in traces → number formats of matmuls.
TYPES = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
TYPES |= {f"c10::Float8_{name}": "fp8" for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}
TYPES |= {"signed char": "int8", "unsigned char": "int8", "c10::Float4_e2m1fn_x2": "fp4"}
# XLA's type names → type names in traces.
XLA_TYPES = {
    "f64": "double", "f32": "float", "f16": "c10::Half", "bf16": "c10::BFloat16", "f8e4m3fn": "c10::Float8_e4m3fn",
    "f8e5m2": "c10::Float8_e5m2", "f8e4m3fnuz": "c10::Float8_e4m3fnuz", "f8e5m2fnuz": "c10::Float8_e5m2fnuz",
    "s8": "signed char", "u8": "unsigned char",
}  # fmt: skip
_CONVOLUTIONS = {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}
_PLAIN = {
    "aten::cudnn_convolution",
    "aten::mkldnn_convolution",
    "aten::miopen_convolution",
    "aten::_conv_depthwise2d",
}

_COUNTED = "xla::matmul"  # its FLOPs and bytes are in the record
# Beginnings of names that torch.compile gives to matmuls: on a CPU, and Inductor's templates.
_MULTIPLYING = (
    "triton_tem_",
    "mkldnn::_linear",
    "mkldnn::_convolution",
    "mkl::_mkl_linear",
    _COUNTED,
)


def is_traced_matmul(name: str) -> bool:
    """True if an operator of a trace is a matmul, convolution or attention, so that its cost
    follows from its arguments."""
    # aten::matmul always calls another of these, which is counted instead.
    if name == "aten::matmul":
        return False
    return formula_of(name) is not None or name.startswith(_MULTIPLYING)


def asks_step(name: str) -> bool:
    """True if an operator's work depends on lengths that only the engine's step holds."""
    formula = formula_of(name)
    return isinstance(formula, Registered) and formula.of_step


@dataclass(frozen=True)
class Shaped:
    """Stand-in for a tensor in a formula: its shape, and whether its elements are complex."""

    shape: tuple[int, ...]
    complex: bool = False

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def is_complex(self) -> bool:
        """True if elements are complex, so that a multiply-add is four real ones."""
        return self.complex


@dataclass(frozen=True)
class Traced:
    """Cost of one call, as far as its record determines it."""

    cost: Cost | None  # None if the record does not determine it
    matmul: tuple[int, int, int, int] | None = None  # (batch, m, n, k) if the call is one matmul
    # (pixels out, channels, filters, taps) of a convolution without groups
    convolution: tuple[int, int, int, int] | None = None
    # (queries, keys, width of a head, causal) of attention without lengths
    attention: tuple[int, int, int, bool] | None = None
    reason: Said | None = None  # why there is no cost
    # elements read and written, each operand and result once, if known
    elements: int | None = None
    bytes_moved: float | None = None  # the same in bytes, if the record has them
    format: str | None = None  # number format of the matmul, if its formula names one
    of_step: bool = False  # whether calls with equal arguments may cost differently


NO_SHAPES = Said("no_shapes")
NO_VALUES = Said("no_argument_values")


def traced_cost(
    name: str, shapes: Sequence[Any], values: Sequence[Any], types: Sequence[str] = (),
    step: StepWork | None = None,
) -> Traced:  # fmt: skip
    """Cost of a call of operator `name`. `shapes` are the trace's `Input Dims`, `values` its
    `Concrete Inputs`, `types` its `Input type`. `step` holds the lengths of the engine's step that
    the call belongs to."""
    if name.startswith(_COUNTED):
        work, moved = values
        return Traced(Cost(*work), bytes_moved=moved)
    formula = formula_of(name)
    if isinstance(formula, Registered) and formula.uncounted:
        return Traced(None, reason=Said("uncounted_operator"))
    if not any(shapes):
        return Traced(None, reason=NO_SHAPES)
    if isinstance(formula, Registered):
        return _registered(formula, shapes, values, types, step)
    try:
        return _of_torch(name, list(starmap(_argument, _recorded(shapes, values, types))))
    except FAULTS:
        return Traced(None, reason=Said("no_formula_for", {"shapes": str(list(shapes))}))


def _recorded(
    shapes: Sequence[object], values: Sequence[object], types: Sequence[str]
) -> Iterable[tuple[Any, Any, str]]:
    """Yields shape, value and type of each argument, with "" for those that were not recorded."""
    count = len(shapes)
    return zip_longest(shapes, values[:count], types[:count], fillvalue="")


def _of_torch(name: str, arguments: list[Any]) -> Traced:
    """Cost of a call of torch's own operators, or of those added by `register`."""
    if name.startswith("triton_tem_"):
        return _template(arguments)
    if name.startswith(("mkldnn::", "mkl::")):
        return _of_inductor(name, arguments)
    if name in _CONVOLUTIONS or name in _PLAIN:
        return _convolution(name, arguments)
    if name == "aten::convolution_backward":
        return _convolution_backward(name, arguments)
    cost = _counted(name, arguments)
    matmul = _matmul(name, arguments)
    if matmul:
        return replace(_one_matmul(*matmul), cost=cost)
    return Traced(cost, elements=_elements(name, arguments), attention=_attention(name, arguments))


def _counted(name: str, arguments: list[Any]) -> Cost:
    """Cost by a formula in code. Raises UnknownError if the formula returns None."""
    cost = FORMULAS[name](*arguments, out=None)
    if cost is None:
        raise UnknownError(name)
    return Cost.of(cost)


def _of_inductor(name: str, arguments: list[Any]) -> Traced:
    """Cost of an operator that torch.compile makes of a linear layer or convolution on a CPU."""
    if isinstance(arguments[2], Shaped) and arguments[2].ndim > 1:
        del arguments[1]  # an addend or the packed weight, before the weight
    x, weight = arguments[:2]
    if name.startswith("mkldnn::_convolution"):
        _, padding, stride, dilation = arguments[2:6]
        plain = [x, weight, None, stride, padding, dilation, False]
        return _convolution("aten::convolution", plain)
    return _one_matmul(1, prod(x.shape[:-1]), weight.shape[0], x.shape[-1])


def _convolution_backward(name: str, arguments: list[Any]) -> Traced:
    if len(arguments) < 11 or not isinstance(arguments[10], list):
        return Traced(None, reason=NO_VALUES)
    cost = _counted(name, arguments)
    gradient, x, weight = arguments[:3]
    transposed = bool(arguments[7])
    return Traced(
        cost,
        elements=_elements(name, arguments),
        convolution=_as_matmul(x.shape, weight.shape, gradient.shape, transposed),
    )


def _registered(
    formula: Registered, shapes: Sequence[object], values: Sequence[object], types: Sequence[str],
    step: StepWork | None,
) -> Traced:  # fmt: skip
    """Cost of a call by a formula from a file."""
    given = list(starmap(_operand, _recorded(shapes, values, types)))
    arguments = dict(zip(formula.arguments, given, strict=False))
    kinds = dict(zip(formula.arguments, types, strict=False))
    try:
        work = formula.work(arguments, step or NO_STEP)
    except UnknownError as error:
        of_step = formula.of_step and step is None
        reason = Said("no_step_lengths") if of_step else Said("no_value", {"name": error.name})
        return Traced(None, reason=reason, of_step=formula.of_step)
    except FAULTS:
        return Traced(None, reason=Said("no_formula_for", {"shapes": str(list(shapes))}))
    elements = None
    if work.matmul:
        batch, m, n, k = work.matmul
        elements = batch * (m * k + k * n + m * n)
    return Traced(
        work.cost, work.matmul, elements=elements, bytes_moved=work.bytes_moved,
        format=_format_of(formula.format, kinds, types), of_step=formula.of_step,
    )  # fmt: skip


def _operand(shape: object, value: object, kind: str) -> Any:
    """Converts an argument to the form that formulas in files read."""
    argument = _argument(shape, value, kind)
    if isinstance(argument, Shaped):
        return Operand(argument.shape, _SIZES.get(kind))
    return argument


def _format_of(told: str, kinds: dict[str, str], types: Sequence[str]) -> str | None:
    """Number format of a matmul: the one that the formula names, or that of the argument that it
    names. Else the narrower of the operands' formats, except bytes, which hold packed weights."""
    if told in kinds:
        return TYPES.get(kinds[told])
    if told in ELEMENT_BYTES:
        return told
    return traced_format([kind for kind in types if kind != "unsigned char"])


def traced_format(types: Sequence[str]) -> str | None:
    """Number format of a matmul by its operands' types, the narrower one if they differ. None if no
    type is known."""
    formats = []
    for kind in types:
        if kind in TYPES:
            formats.append(TYPES[kind])
    order = list(dict.fromkeys(TYPES.values()))
    if formats:
        return max(formats, key=order.index)
    return None


def _argument(shape: object, value: object, kind: str) -> Any:
    """Converts a recorded argument: tensors to `Shaped`, lists of tensors to lists of it, others to
    their values."""
    if isinstance(shape, list) and shape:
        is_complex = "complex" in kind
        several = None
        if isinstance(shape[0], list):
            several = [Shaped(tuple(sides)) for sides in shape]
        return several or Shaped(tuple(shape), is_complex)
    if isinstance(value, str):
        return _value(value)
    return value


@functools.cache
def _value(text: str) -> Any:
    """Parses a recorded value; None if it is empty, and the text itself if it is no literal."""
    try:
        if text:
            return ast.literal_eval(re.sub(r"\b(true|false)\b", lambda word: word[0].title(), text))
        return None
    except (ValueError, SyntaxError):
        return text


def _matmul(name: str, arguments: list[Any]) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of a call that is one matmul, else None. Raises ValueError if the shapes do
    not fit."""
    tensors = []
    for argument in arguments:
        if isinstance(argument, Shaped):
            tensors.append(argument)
    short = name.removeprefix("aten::")
    if short not in (
        "mm",
        "bmm",
        "_int_mm",
        "_scaled_mm",
        "addmm",
        "baddbmm",
        "_addmm_activation",
        "linear",
    ):
        return None
    a, b = tensors[1:3] if "add" in short else tensors[:2]
    if short == "linear":
        # Old profilers mix the shapes of other calls into a call's own.
        if a.shape[-1] != b.shape[-1] or len(tensors) > 3:
            raise ValueError(f"{a.shape} meets {b.shape}")
        return 1, prod(a.shape[:-1]), prod(b.shape[:-1]), b.shape[-1]
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{a.shape} meets {b.shape}")
    return prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]


def _as_matmul(
    x: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], transposed: bool
) -> tuple[int, int, int, int] | None:
    """(pixels out, channels, filters, taps) of a convolution. None if it is transposed or has
    groups."""
    channels = x[1 - len(weight)]
    is_whole = not transposed and channels == weight[1]
    if is_whole:
        return (prod(output) // weight[0], channels, weight[0], prod(weight[2:]))
    return None


def _attention(name: str, arguments: list[Any]) -> tuple[int, int, int, bool] | None:
    """(queries, keys, width of a head, causal) of attention over whole sequences. None with a mask,
    which may leave tiles out, and for other operators."""
    given = {}
    if name in SIGNATURES:
        given = bind(SIGNATURES[name], arguments, {})
    if not given or given.get("mask") is not None:
        return None
    query = given["query"].shape
    return query[-2], given["key"].shape[-2], query[-1], bool(given.get("is_causal"))


def _elements(name: str, arguments: list[Any]) -> int | None:
    """Elements of operands and results, each once, of attention or of a convolution's backward
    pass. None for other operators."""
    if name == "aten::convolution_backward":
        gradient, x, weight = (tensor.numel() for tensor in arguments[:3])
        needs_x, needs_weight = arguments[10][:2]
        return gradient + x + weight + (x if needs_x else 0) + (weight if needs_weight else 0)
    if name not in ATTENTION:
        return None
    given = bind(ATTENTION[name], arguments, {})
    q, k, v = (given[part] for part in ("query", "key", "value"))
    operands = q.numel() + k.numel() + v.numel()
    return operands * (2 if "backward" in name else 1) + q.numel() // q.shape[-1] * v.shape[-1]


def _convolution(name: str, arguments: list[Any]) -> Traced:
    x = arguments[0]
    weight = arguments[1]
    transposed = name in _CONVOLUTIONS and bool(arguments[6])
    if name in _CONVOLUTIONS or name == "aten::_conv_depthwise2d":
        first = 3 if name in _CONVOLUTIONS else 4  # after bias; or after kernel size and bias
        stride, padding, dilation = arguments[first : first + 3]
    else:
        # mkldnn and miopen take a bias before these, which may be None
        first = 2 if isinstance(arguments[2], list) else 3
        padding, stride, dilation = arguments[first : first + 3]
    if not isinstance(stride, list) or not isinstance(padding, list):
        return Traced(None, reason=NO_VALUES)
    output = _convolved(x, weight, (padding, dilation, stride))
    flops = convolution_flops(x.shape, weight.shape, output, transposed)
    moved = x.numel() + weight.numel() + prod(output)
    as_matmul = _as_matmul(x.shape, weight.shape, output, transposed)
    return Traced(Cost.of(flops), elements=None if transposed else moved, convolution=as_matmul)


def _convolved(x: Shaped, weight: Shaped, given: Sequence[list[int]]) -> tuple[int, ...]:
    """Shape of a convolution's output. `given` are padding, dilation and stride, each with one
    number per side or one for all."""
    sides = weight.ndim - 2
    of_sides = [numbers * sides if len(numbers) == 1 else numbers for numbers in given]
    output = [x.shape[0] if x.ndim == sides + 2 else 1, weight.shape[0]]
    for size, taps, pad, spread, step in zip(
        x.shape[-sides:], weight.shape[2:], *of_sides, strict=True
    ):
        reach = spread * (taps - 1) + 1
        output.append((size + 2 * pad - reach) // step + 1)
    return tuple(output)


def _template(arguments: list[Any]) -> Traced:
    """Cost of Inductor's Triton template of a matmul, if only one m, n, k fits the shapes of all
    its tensors."""
    tensors = []
    for one in arguments:
        if isinstance(one, Shaped) and one.ndim >= 2:
            tensors.append(one.shape)
    candidates = set[tuple[int, int, int, int]]()
    for a, b, c in permutations(tensors, 3):
        is_batch = a[:-2] == b[:-2] == c[:-2]
        if is_batch and a[-1] == b[-2] and c[-2:] == (a[-2], b[-1]):
            candidates.add((prod(a[:-2]), a[-2], b[-1], a[-1]))
    if len(candidates) != 1:
        return Traced(None, reason=Said("ambiguous_template"))
    return _one_matmul(*candidates.pop())


def _one_matmul(batch: int, m: int, n: int, k: int) -> Traced:
    sides = (batch, m, n, k)
    moved = batch * (m * k + k * n + m * n)
    return Traced(Cost.of(2 * prod(sides)), sides, elements=moved)


# Type names in traces → bytes per element. Floating-point types have those of their format.
_FLOATS = {name: ELEMENT_BYTES[held] for name, held in TYPES.items() if "char" not in name}
_SIZES = _FLOATS | {
    "bool": 1.0,
    "signed char": 1.0,
    "unsigned char": 1.0,
    "short": 2.0,
    "short int": 2.0,
}
_SIZES |= {"int": 4.0, "long": 8.0, "long int": 8.0, "c10::complex<float>": 8.0}
# Bytes per element by number of torch's ScalarType; conversions record this number.
_SCALAR_TYPES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, *(0,) * 7, 1, 1, 1, 1)
# Operator, without underscores around its name → kind of result that it writes.
_TABLE = data(Path(__file__).with_name("elementwise.yaml"))["written"]
_KINDS = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def traced_bytes(
    name: str, shapes: Sequence[Any], types: Sequence[str], values: Sequence[Any]
) -> float | Said:
    """Bytes that one call moves, for operators without a matmul. Returns the reason instead if its
    shapes, types and values do not determine them."""
    tensors = []
    for pair in zip(shapes, types, strict=False):
        if pair[0]:
            tensors.append(_Tensor(*pair))
    if not tensors:
        return NO_SHAPES
    if not all(tensor.has_size for tensor in tensors):
        return Said("no_types")
    if name.startswith("triton_"):
        return sum(tensor.bytes for tensor in tensors)
    number = ""
    if len(values) > 1:
        number = str(values[1])
    short = name.rpartition("::")[2].strip("_").removeprefix("native_")
    written = _WRITTEN.get(_KINDS.get(short, ""))
    if written is None:
        return Said("no_traffic")
    return written(_Moved(name, tensors, number))


@dataclass(frozen=True)
class _Tensor:
    """An operand as recorded in a trace."""

    shape: Sequence[int]
    kind: str  # name of its type

    @property
    def has_size(self) -> bool:
        return self.kind in _SIZES and all(isinstance(side, int) for side in self.shape)

    @property
    def bytes(self) -> float:
        return prod(self.shape) * _SIZES[self.kind]


@dataclass(frozen=True)
class _Moved:
    """Operands of a call without a matmul. `number` is its second argument: a type or a
    dimension."""

    name: str
    tensors: Sequence[_Tensor]
    number: str

    @property
    def read(self) -> float:
        return sum(tensor.bytes for tensor in self.tensors)

    def first(self) -> float:
        """Bytes of the first operand."""
        return self.tensors[0].bytes

    def broadcast_elements(self) -> int:
        """Elements of the result of broadcasting all operands."""
        reversed_shapes = [reversed(tensor.shape) for tensor in self.tensors]
        return prod(map(max, zip_longest(*reversed_shapes, fillvalue=1)))

    def broadcast(self) -> float:
        """Bytes read and written, if the result has the widest floating-point type of the operands,
        or else their widest type."""
        kinds = [tensor.kind for tensor in self.tensors]
        floats = []
        for kind in kinds:
            if kind in _FLOATS:
                floats.append(_FLOATS[kind])
        widest = max(floats or [_SIZES[kind] for kind in kinds])
        return self.read + self.broadcast_elements() * widest

    def converted(self) -> float | Said:
        """Bytes read and written, if `number` is the result's type."""
        size = 0
        if self.number.isdecimal() and int(self.number) < len(_SCALAR_TYPES):
            size = _SCALAR_TYPES[int(self.number)]
        if not size:
            return NO_VALUES
        return self.read + prod(self.tensors[0].shape) * size

    def looked_up(self) -> float | Said:
        """Bytes of the indices, and of the table's rows that they select, read and written."""
        side = "0"
        if not self.name.endswith("embedding"):
            side = self.number
        sides = len(self.tensors[0].shape)
        if len(self.tensors) != 2 or not side.isdecimal() or int(side) >= sides:
            return NO_VALUES
        table, indices = self.tensors
        rows = max(1, table.shape[int(side)])
        return indices.bytes + 2 * table.bytes * prod(indices.shape) / rows


# Kind of result → bytes read and written.
_WRITTEN: dict[str, Callable[[_Moved], float | Said]] = {
    "none": lambda moved: moved.read,
    "first": lambda moved: moved.read + moved.first(),
    "filled": _Moved.first,
    "broadcast": _Moved.broadcast,
    "truth": lambda moved: moved.read + moved.broadcast_elements(),
    "conversion": _Moved.converted,
    "looked_up": _Moved.looked_up,
}
