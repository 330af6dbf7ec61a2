"""Bytes that an operator of a trace moves at least: each operand and result once, from recorded shapes and types. A
result that the record does not tell is left out."""

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.said import Said
from mfulab.flops.recorded import NO_SHAPES, NO_VALUES, TYPES

# Bytes of an element by the names of types in traces; of floating-point types those of their format.
_FLOATS = {name: ELEMENT_BYTES[held] for name, held in TYPES.items() if "char" not in name}
_SIZES = _FLOATS | {
    **dict.fromkeys(("bool", "signed char", "unsigned char"), 1.0),
    **dict.fromkeys(("short", "short int"), 2.0),
    "int": 4.0,
    **dict.fromkeys(("long", "long int", "c10::complex<float>"), 8.0),
}
# Bytes by the numbers of torch's ScalarType, as conversions record what they convert to.
_SCALAR_TYPES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, *(0,) * 7, 1, 1, 1, 1)
# Operators by what they write, without underscores around their names.
_TABLE = data(Path(__file__).with_name("elementwise.yaml"))["written"]
_KINDS = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def recorded_bytes(name: str, shapes: Sequence[Any], types: Sequence[str], values: Sequence[Any]) -> float | Said:
    """Bytes of one call that multiplies nothing, or why its record does not tell them. `shapes` (`Input Dims`) of a
    fused Triton kernel are also of its results."""
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
        size = max([_FLOATS[each] for _, each in held if each in _FLOATS] or [_SIZES[each] for _, each in held])
        return read + result * (1.0 if kind == "truth" else size)
    number = str(values[1]) if len(values) > 1 else ""
    if kind == "conversion":
        known = number.isdecimal() and int(number) < len(_SCALAR_TYPES) and _SCALAR_TYPES[int(number)]
        return read + prod(tensors[0]) * known if known else NO_VALUES
    if kind == "looked_up":
        side = "0" if name.endswith("embedding") else number
        if len(tensors) != 2 or not side.isdecimal() or int(side) >= len(tensors[0]):
            return NO_VALUES
        return moved[1] + 2 * of_first * prod(tensors[1]) / max(1, tensors[0][int(side)])
    return {"first": read + of_first, "none": read, "filled": of_first}.get(kind or "", Said("no_traffic"))
