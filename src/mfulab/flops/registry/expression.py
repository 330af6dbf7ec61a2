"""Arithmetic over an operator's arguments, as files of formulas write it. It reads like Python, but
is neither compiled nor run: a walk over its syntax tree knows a few kinds of nodes and functions.

Expressions have numbers, arguments by name, and `x[-1]` for a side of a tensor or an element of a
list. Operators are `+ - * // / %`, `min`, `max`, `a if b else c` and comparisons. `a | b` is `a` if
its arguments are recorded, else `b`. Functions of a tensor are `numel(x)`, `rows(x)` (all sides but
the last), `bytes(x)` and `width(x)` (bytes per element); `given(x)` is True if an argument was
passed. Query-key pairs are computed by `document` and `packed`, and from an engine's annotation of
its step by `step`, `context` and `generation`. The last three with the suffix `_keys` return the
number of keys.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from mfulab.core.errors import shortened
from mfulab.flops.cost import Pairs, document_pairs, packed_pairs
from mfulab.flops.masks import lengths_of
from mfulab.flops.registry.step import NO_STEP, Requests, StepWork

MOST_LETTERS = 1000  # longest expression
DEEPEST = 50  # deepest nesting; Python itself allows a recursion of some hundreds
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class UnknownError(ValueError):
    """Raised for a value that a record does not hold; `name` is the argument's name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the record holds no value of {name}")
        self.name = name


@dataclass(frozen=True)
class Operand:
    """A tensor argument: its shape, bytes per element if known, and the tensor, if there is one."""

    shape: tuple[int, ...]
    element_bytes: float | None = None
    tensor: object = None


@dataclass(frozen=True)
class Scope:
    """Values that an expression can read."""

    arguments: Mapping[str, Any]  # operands, numbers, lists and texts by name
    step: StepWork = NO_STEP  # the engine's step that the call belongs to
    pairs: float | None = None  # query-key pairs, in a formula of attention


def parsed(text: str, names: Sequence[str]) -> ast.expr:
    """Parses an expression over these arguments to a syntax tree. Raises ValueError with the part
    that is not allowed."""
    if len(text) > MOST_LETTERS:
        raise ValueError(f"is longer than {MOST_LETTERS} letters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shortened(text)!r} is no expression") from error
    _check(tree, {*names, "pairs"}, shortened(text))
    return tree


def asks_step(tree: ast.expr) -> bool:
    """True if an expression reads the lengths of an engine's step."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(name, ast.Name) and name.id in _OF_STEP for name in called)


def _check(tree: ast.expr, names: set[str], text: str, depth: int = 0) -> None:
    """Raises ValueError at the first part that is not allowed or is nested too deeply."""
    if depth > DEEPEST:
        raise ValueError(f"{text!r} is nested deeper than {DEEPEST}")
    match tree:
        case ast.Constant(value=int() | float() | None):
            parts: list[ast.expr] = []
        case ast.Name(id=name):
            _require(name, names, f"{text!r} names {name!r}, which is no argument of")
            parts = []
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            _require(name, {*_FUNCTIONS, *_OF_STEP}, f"{text!r} calls {name!r}; functions are")
            parts = [*args, *(keyword.value for keyword in keywords)]
        case ast.Subscript(value=ast.Name() as value, slice=index):
            parts = [value, index]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            parts = [operand]
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in (*_BINARY, ast.BitOr):
            parts = [left, right]
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _COMPARISONS:
            parts = [left, right]
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            parts = [test, body, otherwise]
        case _:
            raise ValueError(f"{text!r} holds {type(tree).__name__}, which expressions lack")
    for part in parts:
        _check(part, names, text, depth + 1)


def _require(name: str, choices: Iterable[str], message: str) -> None:
    if name not in choices:
        raise ValueError(f"{message}: {', '.join(sorted(choices))}")


def evaluated(tree: ast.expr, scope: Scope) -> Any:
    """Value of a parsed expression. Raises UnknownError if the record lacks a value that it
    needs."""
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="pairs") if "pairs" not in scope.arguments:
            return scope.pairs
        case ast.Name(id=name):
            return scope.arguments.get(name)
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            return _side(scope.arguments.get(name), int(_number(index, scope)), name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            values = [evaluated(part, scope) for part in args]
            named = {str(part.arg): evaluated(part.value, scope) for part in keywords}
            return _function(name, scope.step)(*values, **named)
        case ast.UnaryOp(operand=operand):
            return -_number(operand, scope)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _first_known(left, right, scope)
        case ast.BinOp(left=left, op=kind, right=right):
            return _combined(_number(left, scope), kind, _number(right, scope))
        case ast.Compare(left=left, ops=[kind], comparators=[right]):
            compare = _COMPARISONS[type(kind)]
            return compare(_number(left, scope), _number(right, scope))
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            if evaluated(test, scope):
                return evaluated(body, scope)
            return evaluated(otherwise, scope)
    raise ValueError(f"{type(tree).__name__} is no part of expressions")


def _function(name: str, step: StepWork) -> Callable[..., Any]:
    """Function of expressions by name; those of an engine's step know the step."""
    if name in _OF_STEP:
        return partial(_OF_STEP[name], step)
    return _FUNCTIONS[name]


def _combined(left: Any, kind: ast.operator, right: Any) -> Any:
    if isinstance(left, Pairs) and isinstance(kind, ast.Mult):
        return left.times(right)
    if isinstance(right, Pairs) and isinstance(kind, ast.Mult):
        return right.times(left)
    return _BINARY[type(kind)](left, right)


def _first_known(left: ast.expr, right: ast.expr, scope: Scope) -> Any:
    """Value of `left`, or of `right` if `left` is None or its arguments are not recorded."""
    try:
        value = evaluated(left, scope)
    except UnknownError:
        return evaluated(right, scope)
    if value is None:
        return evaluated(right, scope)
    return value


def _number(tree: ast.expr, scope: Scope) -> Any:
    value = evaluated(tree, scope)
    if isinstance(value, int | float | Pairs):
        return value
    raise UnknownError(ast.unparse(tree))


def _side(value: object, index: int, name: str) -> Any:
    if isinstance(value, Operand):
        return value.shape[index]
    if isinstance(value, list | tuple):
        return value[index]
    raise UnknownError(name)


def _operand(value: object) -> Operand:
    if isinstance(value, Operand):
        return value
    raise UnknownError("a tensor")


def _numel(x: object) -> int:
    return prod(_operand(x).shape)


def _rows(x: object) -> int:
    return prod(_operand(x).shape[:-1])


def _width(x: object) -> float:
    size = _operand(x).element_bytes
    if size is None:
        raise UnknownError("an element's type")
    return size


def _bytes(x: object) -> float:
    return _numel(x) * _width(x)


def _document(
    queries: int, keys: int, causal: object = False, left: Any = None, right: Any = None
) -> Pairs:
    """Pairs of one sequence, whose last query is aligned with its last key."""
    return document_pairs(queries, keys, bool(causal), left, right)


def _packed(
    tokens: int,
    query_ends: object,
    key_ends: object = None,
    longest_query: Any = None,
    longest_key: Any = None,
    keys: Any = None,
    causal: object = False,
    left: Any = None,
    right: Any = None,
) -> Pairs:
    """Pairs of sequences packed one after another. Uses their lengths if those have values; else
    all must be as long as the longest. Raises UnknownError if neither determines the pairs."""
    ends = _operand(query_ends)
    lengths = lengths_of(ends.tensor)
    if lengths is not None:
        key_lengths: list[int] | None = lengths
        if key_ends is not None:
            key_lengths = lengths_of(_operand(key_ends).tensor)
        if key_lengths is None:
            raise UnknownError("the keys' lengths")
        return packed_pairs(lengths, key_lengths, bool(causal), left, right)
    sequences = ends.shape[0] - 1
    is_even = isinstance(longest_query, int) and sequences * longest_query == tokens
    # Earlier keys come from a cache, so with as many keys as queries there is none.
    is_fresh = longest_key == longest_query
    is_full = isinstance(longest_key, int) and keys == sequences * longest_key
    if not is_even or not (is_fresh or is_full):
        raise UnknownError("the sequences' lengths")
    pairs_of_one = document_pairs(longest_query, longest_key, bool(causal), left, right)
    return pairs_of_one.times(sequences)


def _required(requests: Requests, tokens: object = None) -> Requests:
    """Returns the requests. Raises UnknownError if there are none, or more queries than
    `tokens`."""
    if not requests.queries or (isinstance(tokens, int) and requests.queries > tokens):
        raise UnknownError("the step's lengths")
    return requests


def _pairs_of(part: str) -> Callable[..., Pairs]:
    """Returns a function for the pairs of one part's requests, with at most `tokens` queries."""
    return lambda step, tokens=None: _required(getattr(step, part), tokens).pairs


def _keys_of(part: str) -> Callable[..., int]:
    """Returns a function for the number of keys of one part's requests, from the cache or of the
    step."""
    return lambda step: _required(getattr(step, part)).keys


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numel": _numel,
    "rows": _rows,
    "bytes": _bytes,
    "width": _width,
    "given": lambda value: value is not None,
    "document": _document,
    "packed": _packed,
    "min": min,
    "max": max,
}
_OF_STEP: dict[str, Callable[..., Any]] = {
    "step": _pairs_of("all"),
    "context": _pairs_of("context"),
    "generation": _pairs_of("generation"),
    "step_keys": _keys_of("all"),
    "context_keys": _keys_of("context"),
    "generation_keys": _keys_of("generation"),
}
