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
from mfulab.flops.cost import Cost, Matmul
from mfulab.flops.operators import FORMULAS, convolution_flops, formula_of
from mfulab.flops.registry.entry import FAULTS, Registered
from mfulab.flops.registry.expression import Operand, UnknownError
from mfulab.flops.registry.step import NO_STEP, StepWork

# Type names in traces → number formats of matmuls.
TYPES = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "signed char": "int8",
    "unsigned char": "int8",
    "c10::Float4_e2m1fn_x2": "fp4",
}
# XLA's type names → type names in traces.
XLA_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "c10::Half",
    "bf16": "c10::BFloat16",
    "f8e4m3fn": "c10::Float8_e4m3fn",
    "f8e5m2": "c10::Float8_e5m2",
    "f8e4m3fnuz": "c10::Float8_e4m3fnuz",
    "f8e5m2fnuz": "c10::Float8_e5m2fnuz",
    "s8": "signed char",
    "u8": "unsigned char",
}
_CONVOLUTIONS = {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}
_DEVICE_CONVOLUTIONS = {
    "aten::cudnn_convolution",
    "aten::mkldnn_convolution",
    "aten::miopen_convolution",
    "aten::_conv_depthwise2d",
}

_XLA_MATMUL = "xla::matmul"  # its FLOPs and bytes are in the record
# Beginnings of names that torch.compile gives to matmuls: on a CPU, and Inductor's templates.
_COMPILED_MATMULS = (
    "triton_tem_",
    "mkldnn::_linear",
    "mkldnn::_convolution",
    "mkl::_mkl_linear",
    _XLA_MATMUL,
)


def is_traced_matmul(name: str) -> bool:
    """True if an operator of a trace is a matmul, convolution or attention, so that its cost
    follows from its arguments."""
    # aten::matmul always calls another of these, which is counted instead.
    if name == "aten::matmul":
        return False
    return formula_of(name) is not None or name.startswith(_COMPILED_MATMULS)


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
    matmul: Matmul | None = None  # (batch, m, n, k) if the call is one matmul
    # (pixels out, channels, filters, taps) of a convolution without groups
    convolution: Matmul | None = None
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
    name: str,
    shapes: Sequence[Any],
    values: Sequence[Any],
    types: Sequence[str] = (),
    step: StepWork | None = None,
) -> Traced:
    """Cost of a call of operator `name`. `shapes` are the trace's `Input Dims`, `values` its
    `Concrete Inputs`, `types` its `Input type`. `step` holds the lengths of the engine's step that
    the call belongs to."""
    if name.startswith(_XLA_MATMUL):
        flops, bytes_moved = values
        return Traced(Cost(*flops), bytes_moved=bytes_moved)
    formula = formula_of(name)
    if isinstance(formula, Registered) and formula.uncounted:
        return Traced(None, reason=Said("uncounted_operator"))
    if not any(shapes):
        return Traced(None, reason=NO_SHAPES)
    if isinstance(formula, Registered):
        return _registered(formula, shapes, values, types, step)
    try:
        arguments = list(starmap(_argument, _recorded(shapes, values, types)))
        return _of_torch(name, arguments)
    except FAULTS:
        return Traced(None, reason=Said("no_formula_for", shapes=str(list(shapes))))


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
    if name in _CONVOLUTIONS or name in _DEVICE_CONVOLUTIONS:
        return _convolution(name, arguments)
    if name == "aten::convolution_backward":
        return _convolution_backward(name, arguments)
    cost = _formula_cost(name, arguments)
    matmul = _matmul(name, arguments)
    if matmul:
        return replace(_traced_matmul(*matmul), cost=cost)
    elements = _elements(name, arguments)
    return Traced(cost, elements=elements, attention=_attention(name, arguments))


def _formula_cost(name: str, arguments: list[Any]) -> Cost:
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
    return _traced_matmul(1, prod(x.shape[:-1]), weight.shape[0], x.shape[-1])


def _convolution_backward(name: str, arguments: list[Any]) -> Traced:
    if len(arguments) < 11 or not isinstance(arguments[10], list):
        return Traced(None, reason=NO_VALUES)
    cost = _formula_cost(name, arguments)
    gradient, x, weight = arguments[:3]
    transposed = bool(arguments[7])
    return Traced(
        cost,
        elements=_elements(name, arguments),
        convolution=_as_matmul(x.shape, weight.shape, gradient.shape, transposed),
    )


def _registered(
    formula: Registered,
    shapes: Sequence[object],
    values: Sequence[object],
    types: Sequence[str],
    step: StepWork | None,
) -> Traced:
    """Cost of a call by a formula from a file."""
    operands = starmap(_operand, _recorded(shapes, values, types))
    arguments = dict(zip(formula.arguments, operands, strict=False))
    kinds = dict(zip(formula.arguments, types, strict=False))
    try:
        work = formula.work(arguments, step or NO_STEP)
    except UnknownError as error:
        reason = Said("no_value", name=error.name)
        if formula.of_step and step is None:
            reason = Said("no_step_lengths")
        return Traced(None, reason=reason, of_step=formula.of_step)
    except FAULTS:
        return Traced(None, reason=Said("no_formula_for", shapes=str(list(shapes))))
    elements = None
    if work.matmul:
        batch, m, n, k = work.matmul
        elements = batch * (m * k + k * n + m * n)
    return Traced(
        work.cost,
        work.matmul,
        elements=elements,
        bytes_moved=work.bytes_moved,
        format=_format_of(formula.format, kinds, types),
        of_step=formula.of_step,
    )


def _operand(shape: object, value: object, kind: str) -> Any:
    """Converts an argument to the form that formulas in files read."""
    argument = _argument(shape, value, kind)
    if isinstance(argument, Shaped):
        return Operand(argument.shape, _TYPE_BYTES.get(kind))
    return argument


def _format_of(format_or_argument: str, kinds: dict[str, str], types: Sequence[str]) -> str | None:
    """Number format of a matmul: the one that the formula names, or that of the argument that it
    names. Else the narrower of the operands' formats, except bytes, which hold packed weights."""
    if format_or_argument in kinds:
        return TYPES.get(kinds[format_or_argument])
    if format_or_argument in ELEMENT_BYTES:
        return format_or_argument
    return traced_format([kind for kind in types if kind != "unsigned char"])


def traced_format(types: Sequence[str]) -> str | None:
    """Number format of a matmul by its operands' types, the narrower one if they differ. None if no
    type is known."""
    formats = [TYPES[kind] for kind in types if kind in TYPES]
    from_wide_to_narrow = list(dict.fromkeys(TYPES.values()))
    return max(formats, key=from_wide_to_narrow.index, default=None)


def _argument(shape: object, value: object, kind: str) -> Any:
    """Converts a recorded argument: tensors to `Shaped`, lists of tensors to lists of it, others to
    their values."""
    if isinstance(shape, list) and shape:
        if isinstance(shape[0], list):
            return [Shaped(tuple(sides)) for sides in shape]
        return Shaped(tuple(shape), complex="complex" in kind)
    if isinstance(value, str):
        return _value(value)
    return value


@functools.cache
def _value(text: str) -> Any:
    """Parses a recorded value; None if it is empty, and the text itself if it is no literal."""
    if not text:
        return None
    literal = re.sub(r"\b(true|false)\b", lambda word: word[0].title(), text)
    try:
        return ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return text


_ONE_MATMUL = (
    "mm",
    "bmm",
    "_int_mm",
    "_scaled_mm",
    "linear",
    "addmm",
    "baddbmm",
    "_addmm_activation",
)


def _matmul(name: str, arguments: list[Any]) -> Matmul | None:
    """(batch, m, n, k) of a call that is one matmul, else None. Raises ValueError if the shapes do
    not fit."""
    short = name.removeprefix("aten::")
    if short not in _ONE_MATMUL:
        return None
    tensors = [argument for argument in arguments if isinstance(argument, Shaped)]
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
) -> Matmul | None:
    """(pixels out, channels, filters, taps) of a convolution. None if it is transposed or has
    groups."""
    channels = x[1 - len(weight)]
    has_groups = channels != weight[1]
    if transposed or has_groups:
        return None
    filters = weight[0]
    return prod(output) // filters, channels, filters, prod(weight[2:])


def _attention(name: str, arguments: list[Any]) -> tuple[int, int, int, bool] | None:
    """(queries, keys, width of a head, causal) of attention over whole sequences. None with a mask,
    which may leave tiles out, and for other operators."""
    if name not in SIGNATURES:
        return None
    named = bind(SIGNATURES[name], arguments, {})
    if named.get("mask") is not None:
        return None
    *_, queries, width = named["query"].shape
    keys = named["key"].shape[-2]
    return queries, keys, width, bool(named.get("is_causal"))


def _elements(name: str, arguments: list[Any]) -> int | None:
    """Elements of operands and results, each once, of attention or of a convolution's backward
    pass. None for other operators."""
    if name == "aten::convolution_backward":
        gradient, x, weight = (tensor.numel() for tensor in arguments[:3])
        needs_x, needs_weight = arguments[10][:2]
        results = 0
        if needs_x:
            results += x
        if needs_weight:
            results += weight
        return gradient + x + weight + results
    if name not in ATTENTION:
        return None
    named = bind(ATTENTION[name], arguments, {})
    query, key, value = named["query"], named["key"], named["value"]
    operands = query.numel() + key.numel() + value.numel()
    output = query.numel() // query.shape[-1] * value.shape[-1]
    if "backward" in name:  # reads the output's gradient, and writes a gradient of each operand
        return 2 * operands + output
    return operands + output


def _convolution(name: str, arguments: list[Any]) -> Traced:
    x, weight = arguments[:2]
    transposed = False
    if name in _CONVOLUTIONS:
        transposed = bool(arguments[6])
        stride, padding, dilation = arguments[3:6]  # after the bias
    elif name == "aten::_conv_depthwise2d":
        stride, padding, dilation = arguments[4:7]  # after kernel size and bias
    elif isinstance(arguments[2], list):
        padding, stride, dilation = arguments[2:5]
    else:  # mkldnn and miopen take a bias before these, which may be None
        padding, stride, dilation = arguments[3:6]
    if not isinstance(stride, list) or not isinstance(padding, list):
        return Traced(None, reason=NO_VALUES)
    output = _convolved(x, weight, padding, dilation, stride)
    flops = convolution_flops(x.shape, weight.shape, output, transposed)
    elements = None
    if not transposed:
        elements = x.numel() + weight.numel() + prod(output)
    as_matmul = _as_matmul(x.shape, weight.shape, output, transposed)
    return Traced(Cost.of(flops), elements=elements, convolution=as_matmul)


def _convolved(
    x: Shaped, weight: Shaped, padding: list[int], dilation: list[int], stride: list[int]
) -> tuple[int, ...]:
    """Shape of a convolution's output. Padding, dilation and stride have one number per side, or
    one for all."""
    sides = weight.ndim - 2
    per_side = []
    for numbers in (padding, dilation, stride):
        if len(numbers) == 1:
            numbers = numbers * sides
        per_side.append(numbers)
    batch = 1
    if x.ndim == sides + 2:
        batch = x.shape[0]
    output = [batch, weight.shape[0]]
    sizes = x.shape[-sides:]
    for size, taps, pad, spread, step in zip(sizes, weight.shape[2:], *per_side, strict=True):
        reach = spread * (taps - 1) + 1
        output.append((size + 2 * pad - reach) // step + 1)
    return tuple(output)


def _template(arguments: list[Any]) -> Traced:
    """Cost of Inductor's Triton template of a matmul, if only one m, n, k fits the shapes of all
    its tensors."""
    shapes = []
    for argument in arguments:
        if isinstance(argument, Shaped) and argument.ndim >= 2:
            shapes.append(argument.shape)
    candidates = set[Matmul]()
    for a, b, c in permutations(shapes, 3):
        same_batch = a[:-2] == b[:-2] == c[:-2]
        if same_batch and a[-1] == b[-2] and c[-2:] == (a[-2], b[-1]):
            candidates.add((prod(a[:-2]), a[-2], b[-1], a[-1]))
    if len(candidates) != 1:
        return Traced(None, reason=Said("ambiguous_template"))
    return _traced_matmul(*candidates.pop())


def _traced_matmul(batch: int, m: int, n: int, k: int) -> Traced:
    sides = (batch, m, n, k)
    elements = batch * (m * k + k * n + m * n)
    return Traced(Cost.of(2 * prod(sides)), sides, elements=elements)


# Type names in traces → bytes per element. Floating-point types have those of their format.
_FLOAT_BYTES = {name: ELEMENT_BYTES[form] for name, form in TYPES.items() if "char" not in name}
_TYPE_BYTES = _FLOAT_BYTES | {
    "bool": 1.0,
    "signed char": 1.0,
    "unsigned char": 1.0,
    "short": 2.0,
    "short int": 2.0,
    "int": 4.0,
    "long": 8.0,
    "long int": 8.0,
    "c10::complex<float>": 8.0,
}
# Bytes per element by number of torch's ScalarType; conversions record this number.
_SCALAR_TYPES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, *(0,) * 7, 1, 1, 1, 1)
# Operator, without underscores around its name → kind of result that it writes.
_TABLE = data(Path(__file__).with_name("elementwise.yaml"))["written"]
_RESULT_KINDS = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def traced_bytes(
    name: str, shapes: Sequence[Any], types: Sequence[str], values: Sequence[Any]
) -> float | Said:
    """Bytes that one call moves, for operators without a matmul. Returns the reason instead if its
    shapes, types and values do not determine them."""
    tensors = []
    for shape, kind in zip(shapes, types, strict=False):
        if shape:
            tensors.append(_Recorded(shape, kind))
    if not tensors:
        return NO_SHAPES
    if not all(tensor.has_size for tensor in tensors):
        return Said("no_types")
    if name.startswith("triton_"):
        return sum(tensor.bytes for tensor in tensors)
    number = str(values[1]) if len(values) > 1 else ""
    short = name.rpartition("::")[2].strip("_").removeprefix("native_")
    bytes_moved = _BYTES_MOVED.get(_RESULT_KINDS.get(short, ""))
    if bytes_moved is None:
        return Said("no_traffic")
    return bytes_moved(_Operands(name, tensors, number))


@dataclass(frozen=True)
class _Recorded:
    """An operand as recorded in a trace."""

    shape: Sequence[int]
    kind: str  # name of its type

    @property
    def has_size(self) -> bool:
        return self.kind in _TYPE_BYTES and all(isinstance(side, int) for side in self.shape)

    @property
    def bytes(self) -> float:
        return prod(self.shape) * _TYPE_BYTES[self.kind]


@dataclass(frozen=True)
class _Operands:
    """Operands of a call without a matmul. `number` is its second argument: a type or a
    dimension."""

    name: str
    tensors: Sequence[_Recorded]
    number: str

    @property
    def read(self) -> float:
        return sum(tensor.bytes for tensor in self.tensors)

    def first(self) -> float:
        """Bytes of the first operand."""
        return self.tensors[0].bytes

    def broadcast_elements(self) -> int:
        """Elements of the result of broadcasting all operands."""
        from_last = [reversed(tensor.shape) for tensor in self.tensors]
        return prod(map(max, zip_longest(*from_last, fillvalue=1)))

    def broadcast(self) -> float:
        """Bytes read and written, if the result has the widest floating-point type of the operands,
        or else their widest type."""
        kinds = [tensor.kind for tensor in self.tensors]
        floats = [kind for kind in kinds if kind in _FLOAT_BYTES]
        element_bytes = max(_TYPE_BYTES[kind] for kind in floats or kinds)
        return self.read + self.broadcast_elements() * element_bytes

    def converted(self) -> float | Said:
        """Bytes read and written, if `number` is the result's type."""
        if not self.number.isdecimal() or int(self.number) >= len(_SCALAR_TYPES):
            return NO_VALUES
        element_bytes = _SCALAR_TYPES[int(self.number)]
        if not element_bytes:
            return NO_VALUES
        return self.read + prod(self.tensors[0].shape) * element_bytes

    def looked_up(self) -> float | Said:
        """Bytes of the indices, and of the table's rows that they select, read and written."""
        dimension = "0" if self.name.endswith("embedding") else self.number
        if len(self.tensors) != 2 or not dimension.isdecimal():
            return NO_VALUES
        table, indices = self.tensors
        if int(dimension) >= len(table.shape):
            return NO_VALUES
        rows = max(1, table.shape[int(dimension)])
        return indices.bytes + 2 * table.bytes * prod(indices.shape) / rows


# Kind of result → bytes read and written.
_BYTES_MOVED: dict[str, Callable[[_Operands], float | Said]] = {
    "none": lambda operands: operands.read,
    "first": lambda operands: operands.read + operands.first(),
    "filled": _Operands.first,
    "broadcast": _Operands.broadcast,
    "truth": lambda operands: operands.read + operands.broadcast_elements(),
    "conversion": _Operands.converted,
    "looked_up": _Operands.looked_up,
}
