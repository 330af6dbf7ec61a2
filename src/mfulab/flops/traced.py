"""FLOPs and bytes of operators that a trace recorded: their shapes, given to the same formulas as a count. A trace
holds inputs alone, so the shape of a convolution's output is computed from stride, padding and dilation ("Concrete
Inputs"). What its record does not tell is none, with a reason, never 0."""

import ast
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import starmap, zip_longest
from math import prod
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.said import Said
from mfulab.flops.attention import ATTENTION, SIGNATURES, bind
from mfulab.flops.cost import Cost
from mfulab.flops.operators import FORMULAS, convolution_flops

# The formats of matmuls, by the names of types in traces.
TYPES = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
TYPES |= {f"c10::Float8_{name}": "fp8" for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}
TYPES |= {"signed char": "int8", "unsigned char": "int8", "c10::Float4_e2m1fn_x2": "fp4"}
# The same types as XLA names them.
XLA_TYPES = {
    "f64": "double", "f32": "float", "f16": "c10::Half", "bf16": "c10::BFloat16", "f8e4m3fn": "c10::Float8_e4m3fn",
    "f8e5m2": "c10::Float8_e5m2", "f8e4m3fnuz": "c10::Float8_e4m3fnuz", "f8e5m2fnuz": "c10::Float8_e5m2fnuz",
    "s8": "signed char", "u8": "unsigned char",
}  # fmt: skip
_CONVOLUTIONS = {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}
_PLAIN = {"aten::cudnn_convolution", "aten::mkldnn_convolution", "aten::miopen_convolution", "aten::_conv_depthwise2d"}

_COUNTED = "xla::matmul"  # its FLOPs and bytes come with it
# With what torch.compile makes of matmuls: operators on a CPU, and Inductor's own templates.
_MULTIPLYING = ("triton_tem_", "mkldnn::_linear", "mkldnn::_convolution", "mkl::_mkl_linear", _COUNTED)


def is_traced_matmul(name: str) -> bool:
    """True if an operator of a trace is a matmul, convolution or attention, whose arguments tell its cost."""
    # Whatever aten::matmul is given, it calls another of these.
    return (name in FORMULAS and name != "aten::matmul") or name.startswith(_MULTIPLYING)


@dataclass(frozen=True)
class Shaped:
    """Stands for a tensor in a formula: its shape, and whether its elements are complex."""

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
        """Says whether a multiply-add is four real ones."""
        return self.complex


@dataclass(frozen=True)
class Traced:
    """Cost of one call, as far as its record holds it."""

    cost: Cost | None  # None if the record does not hold it
    matmul: tuple[int, int, int, int] | None = None  # (batch, m, n, k) where the call is one matmul
    convolution: tuple[int, int, int, int] | None = None  # (pixels out, channels, filters, taps) without groups
    attention: tuple[int, int, int, bool] | None = None  # (queries, keys, width of a head, causal) without lengths
    reason: Said | None = None  # why there is no cost
    elements: int | None = None  # read and written, each operand and result once, where that is told
    bytes_moved: int | None = None  # the same where the record says it in bytes


NO_SHAPES, NO_VALUES = Said("no_shapes"), Said("no_argument_values")


def traced_cost(name: str, shapes: Sequence[Any], values: Sequence[Any], types: Sequence[str] = ()) -> Traced:
    """Cost of a call of operator `name`: shapes are `Input Dims`, values `Concrete Inputs`, types `Input type`."""
    if name.startswith(_COUNTED):
        flops, moved = values
        return Traced(Cost.of(flops), bytes_moved=moved)
    if not any(shapes):
        return Traced(None, reason=NO_SHAPES)
    arguments = [*starmap(_argument, zip_longest(shapes, values[: len(shapes)], types[: len(shapes)], fillvalue=""))]
    try:
        if name.startswith("triton_tem_"):
            return _template(arguments)
        if name.startswith(("mkldnn::", "mkl::")) and isinstance(arguments[2], Shaped) and arguments[2].ndim > 1:
            del arguments[1]  # an addend, or the packed weight, before the weight
        if name == "mkldnn::_convolution_pointwise":
            x, weight, _, padding, stride, dilation = arguments[:6]
            return _convolution("aten::convolution", [x, weight, None, stride, padding, dilation, False])
        if name in ("mkldnn::_linear_pointwise", "mkl::_mkl_linear"):
            x, weight = arguments[:2]
            return _one_matmul(1, prod(x.shape[:-1]), weight.shape[0], x.shape[-1])
        if name in _CONVOLUTIONS or name in _PLAIN:
            return _convolution(name, arguments)
        if name == "aten::convolution_backward" and (len(arguments) < 11 or not isinstance(arguments[10], list)):
            return Traced(None, reason=NO_VALUES)
        cost = FORMULAS[name](*arguments, out=None)
        matmul = _matmul(name, arguments)
        if matmul:
            return replace(_one_matmul(*matmul), cost=Cost.of(cost))
        traced = Traced(Cost.of(cost), elements=_elements(name, arguments))
        if name == "aten::convolution_backward":
            gradient, x, weight = arguments[:3]
            return replace(traced, convolution=_as_matmul(x.shape, weight.shape, gradient.shape, bool(arguments[7])))
        return replace(traced, attention=_attention(name, arguments))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ZeroDivisionError):
        return Traced(None, reason=Said("no_formula_for", {"shapes": str(list(shapes))}))


def traced_format(types: Sequence[str]) -> str | None:
    """The format of a matmul by its operands' types; the narrower where they differ; None where none is told."""
    formats = [TYPES[kind] for kind in types if kind in TYPES]
    order = list(dict.fromkeys(TYPES.values()))
    return max(formats, key=order.index) if formats else None


def _argument(shape: Any, value: Any, kind: str) -> Any:
    if isinstance(shape, list) and shape:
        is_complex = "complex" in kind
        several = [Shaped(tuple(sides)) for sides in shape] if isinstance(shape[0], list) else None
        return several or Shaped(tuple(shape), is_complex)
    return _value(value) if isinstance(value, str) else value


@functools.cache
def _value(text: str) -> Any:
    try:
        return ast.literal_eval(re.sub(r"\b(true|false)\b", lambda word: word[0].title(), text)) if text else None
    except (ValueError, SyntaxError):
        return text


def _matmul(name: str, arguments: list[Any]) -> tuple[int, int, int, int] | None:
    tensors = [argument for argument in arguments if isinstance(argument, Shaped)]
    short = name.removeprefix("aten::")
    if short not in ("mm", "bmm", "_int_mm", "_scaled_mm", "addmm", "baddbmm", "_addmm_activation", "linear"):
        return None
    a, b = tensors[1:3] if "add" in short else tensors[:2]
    if short == "linear":
        # Old profilers mix the shapes of other calls into a call's own.
        if a.shape[-1] != b.shape[-1] or len(tensors) > 3:
            raise ValueError(f"{a.shape} meets {b.shape}")
        return 1, prod(a.shape[:-1]), b.shape[0], b.shape[1] if b.ndim > 1 else 1
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{a.shape} meets {b.shape}")
    return prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]


def _as_matmul(
    x: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], transposed: bool
) -> tuple[int, int, int, int] | None:
    """(pixels out, channels, filters, taps) of a convolution of all channels by all filters."""
    channels = x[1 - len(weight)]
    is_whole = not transposed and channels == weight[1]
    return (prod(output) // weight[0], channels, weight[0], prod(weight[2:])) if is_whole else None


def _attention(name: str, arguments: list[Any]) -> tuple[int, int, int, bool] | None:
    """(queries, keys, width of a head, causal) of an attention over whole sequences; a mask may leave tiles out."""
    given = bind(SIGNATURES[name], arguments, {}) if name in SIGNATURES else {}
    if not given or given.get("mask") is not None:
        return None
    query = given["query"].shape
    return query[-2], given["key"].shape[-2], query[-1], bool(given.get("is_causal"))


def _elements(name: str, arguments: list[Any]) -> int | None:
    """Elements of operands and results, once each, of attention and of a convolution's backward pass."""
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
    x, weight = arguments[0], arguments[1]
    transposed = name in _CONVOLUTIONS and bool(arguments[6])
    if name in _CONVOLUTIONS or name == "aten::_conv_depthwise2d":
        first = 3 if name in _CONVOLUTIONS else 4  # behind bias; kernel size, bias
        stride, padding, dilation = arguments[first : first + 3]
    else:
        first = 3 - isinstance(arguments[2], list)  # mkldnn and miopen take a bias before, which may be None
        padding, stride, dilation = arguments[first : first + 3]
    if not isinstance(stride, list) or not isinstance(padding, list):
        return Traced(None, reason=NO_VALUES)
    sides = len(weight.shape) - 2
    stride, padding, dilation = (given * sides if len(given) == 1 else given for given in (stride, padding, dilation))
    places = zip(x.shape[-sides:], padding, dilation, weight.shape[2:], stride, strict=True)
    output = (
        x.shape[0] if x.ndim == sides + 2 else 1,
        weight.shape[0],
        *((size + 2 * pad - spread * (kernel - 1) - 1) // step + 1 for size, pad, spread, kernel, step in places),
    )
    flops = convolution_flops(x.shape, weight.shape, output, transposed)
    moved = x.numel() + weight.numel() + prod(output)
    as_matmul = _as_matmul(x.shape, weight.shape, output, transposed)
    return Traced(Cost.of(flops), elements=None if transposed else moved, convolution=as_matmul)


def _template(arguments: list[Any]) -> Traced:
    """Inductor's Triton template of a matmul, by the only m, n, k that fit the shapes of all its tensors."""
    tensors = [argument.shape for argument in arguments if isinstance(argument, Shaped) and argument.ndim >= 2]
    candidates = {
        (prod(a[:-2]), a[-2], b[-1], a[-1])
        for a in tensors
        for b in tensors
        for c in tensors
        if a is not b and c is not a and c is not b
        and a[:-2] == b[:-2] == c[:-2] and a[-1] == b[-2] and c[-2:] == (a[-2], b[-1])
    }  # fmt: skip
    if len(candidates) != 1:
        return Traced(None, reason=Said("ambiguous_template"))
    return _one_matmul(*candidates.pop())


def _one_matmul(batch: int, m: int, n: int, k: int) -> Traced:
    sides, moved = (batch, m, n, k), batch * (m * k + k * n + m * n)
    return Traced(Cost.of(2 * prod(sides)), sides, elements=moved)


# Bytes of an element by the names of types in traces; of floating-point types those of their format.
_FLOATS = {name: ELEMENT_BYTES[held] for name, held in TYPES.items() if "char" not in name}
_SIZES = _FLOATS | {"bool": 1.0, "signed char": 1.0, "unsigned char": 1.0, "short": 2.0, "short int": 2.0}
_SIZES |= {"int": 4.0, "long": 8.0, "long int": 8.0, "c10::complex<float>": 8.0}
# Bytes by the numbers of torch's ScalarType, as conversions record what they convert to.
_SCALAR_TYPES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, *(0,) * 7, 1, 1, 1, 1)
# Operators by what they write, without underscores around their names.
_TABLE = data(Path(__file__).with_name("elementwise.yaml"))["written"]
_KINDS = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def traced_bytes(name: str, shapes: Sequence[Any], types: Sequence[str], values: Sequence[Any]) -> float | Said:
    """Bytes of one call that multiplies nothing, or why its shapes, types and values do not tell them."""
    held = [(shape, kind) for shape, kind in zip(shapes, types, strict=False) if shape]
    if not held:
        return NO_SHAPES
    if any(kind not in _SIZES or not all(isinstance(side, int) for side in shape) for shape, kind in held):
        return Said("no_types")
    tensors = [shape for shape, _ in held]
    moved = [prod(shape) * _SIZES[kind] for shape, kind in held]
    read, of_first = sum(moved), moved[0]
    if name.startswith("triton_"):
        return read
    kind = _KINDS.get(name.rpartition("::")[2].strip("_").removeprefix("native_"))
    if kind in ("broadcast", "truth"):
        result = prod(map(max, zip_longest(*map(reversed, tensors), fillvalue=1)))
        size = max([_FLOATS[text] for _, text in held if text in _FLOATS] or [_SIZES[text] for _, text in held])
        return read + result * (1.0 if kind == "truth" else size)
    number = str(values[1]) if len(values) > 1 else ""
    if kind == "conversion":
        element_bytes = number.isdecimal() and int(number) < len(_SCALAR_TYPES) and _SCALAR_TYPES[int(number)]
        return read + prod(tensors[0]) * element_bytes if element_bytes else NO_VALUES
    if kind == "looked_up":
        side = "0" if name.endswith("embedding") else number
        if len(tensors) != 2 or not side.isdecimal() or int(side) >= len(tensors[0]):
            return NO_VALUES
        return moved[1] + 2 * of_first * prod(tensors[1]) / max(1, tensors[0][int(side)])
    return {"first": read + of_first, "none": read, "filled": of_first}.get(kind or "", Said("no_traffic"))
