"""Formula of one operator from a file: the cost of a call, from its shapes and arguments alone."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mfulab.core.parts import drop_none
from mfulab.flops.cost import Cost, Matmul, Pairs
from mfulab.flops.registry.expression import (
    Operand,
    Scope,
    UnknownError,
    asks_step,
    evaluated,
    parsed,
)
from mfulab.flops.registry.step import NO_STEP, StepWork

MATMUL = ("m", "n", "k")  # sides of a matmul; `batch` may stand before them
MOST_FLOPS = 10**30  # largest accepted number, more than any device computes
FAULTS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
EXPRESSIONS = ("flops", "executed_flops", "pairs", "bytes")
FIELDS = {"operators", "arguments", "matmul", "format", "uncounted", "source", "example"}
FIELDS |= set(EXPRESSIONS)


@dataclass(frozen=True)
class Work:
    """Work of one call."""

    cost: Cost
    matmul: Matmul | None = None  # batch, m, n, k
    bytes_moved: float | None = None  # each operand and result once; None if unknown


@dataclass(frozen=True)
class Registered:
    """Formula for calls of one operator. Calling it with the operator's arguments returns a Cost,
    or None if they do not determine it."""

    arguments: tuple[str, ...]
    source: str  # where the operator's arguments and work are documented
    matmul: tuple[ast.expr, ...] = ()
    flops: ast.expr | None = None
    executed_flops: ast.expr | None = None
    pairs: ast.expr | None = None
    bytes: ast.expr | None = None
    format: str = ""  # a number format, or the argument whose type is multiplied
    uncounted: bool = False  # its work cannot be known from shapes or anything else

    @property
    def of_step(self) -> bool:
        """True if its work depends on the lengths of an engine's step."""
        trees = drop_none((self.flops, self.pairs, self.bytes))
        return any(map(asks_step, trees))

    def __call__(self, *args: object, out: object = None, **kwargs: object) -> Cost | None:
        """Cost of a call on real arguments. None if they do not determine it."""
        arguments = dict(zip(self.arguments, args, strict=False)) | kwargs
        operands = {name: live_operand(value) for name, value in arguments.items()}
        try:
            return self.work(operands).cost
        except FAULTS:
            return None

    def work(self, arguments: Mapping[str, object], step: StepWork = NO_STEP) -> Work:
        """Work of a call. Raises UnknownError if the record lacks an argument that it needs."""
        scope = Scope(arguments, step)
        sides = self._sides(scope)
        if sides:
            cost = Cost.of(_bounded(2 * prod(sides)))
        elif self.flops is None:
            raise UnknownError("its work")
        elif self.pairs is not None:
            cost = self._attention(scope, self.pairs, self.flops)
        else:
            cost = Cost.of(_bounded(evaluated(self.flops, scope)))
        return Work(cost, sides, self._bytes(scope))

    def _sides(self, scope: Scope) -> Matmul | None:
        if not self.matmul:
            return None
        sides = [int(evaluated(side, scope)) for side in self.matmul]
        batch = 1
        if len(sides) > len(MATMUL):
            batch = sides[0]
        m, n, k = sides[-3:]
        return batch, m, n, k

    def _attention(self, scope: Scope, pairs_of: ast.expr, flops: ast.expr) -> Cost:
        """Cost of attention, whose FLOPs grow with query-key pairs."""
        pairs = evaluated(pairs_of, scope)
        if not isinstance(pairs, Pairs):
            raise UnknownError("pairs of query and key")

        def flops_of(tree: ast.expr, count: float) -> int:
            return _bounded(evaluated(tree, Scope(scope.arguments, scope.step, count)))

        full = flops_of(flops, pairs.full)
        executed = flops_of(self.executed_flops or flops, pairs.executed)
        attended = flops_of(flops, pairs.attended)
        return Cost(full, attended, executed, full, full, bound=bool(pairs.bound))

    def _bytes(self, scope: Scope) -> float | None:
        if self.bytes is None:
            return None
        try:
            return float(evaluated(self.bytes, scope))
        except UnknownError:
            return None


def _bounded(flops: Any) -> int:
    """Converts FLOPs to an integer. Raises OverflowError if they are negative or more than
    MOST_FLOPS."""
    if not 0 <= flops <= MOST_FLOPS:
        raise OverflowError("no call has as many FLOPs")
    return int(flops)


def live_operand(value: object) -> Any:
    """Converts a tensor to an operand; returns any other argument as it is."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return value
    element_size = getattr(value, "element_size", None)
    element_bytes = float(element_size()) if element_size else None
    return Operand(tuple(shape), element_bytes, value)


def entry(raw: object, where: str) -> tuple[list[str], Registered]:
    """Parses an entry of a file into the operators that it is for and their formula. Raises
    ValueError with what is wrong."""
    if not isinstance(raw, dict) or not str(raw.get("operators") or "").strip():
        raise ValueError(f"{where}: an entry needs `operators`, names separated by spaces")
    names = str(raw["operators"]).split()
    where = f"{where}: {names[0]}"
    unknown = sorted(set(map(str, raw)) - FIELDS)
    if unknown:
        raise ValueError(
            f"{where}: unknown field {unknown[0]}; fields are {', '.join(sorted(FIELDS))}"
        )
    if not raw.get("source"):
        raise ValueError(f"{where}: `source` is missing: where its arguments can be read")
    uncounted = bool(raw.get("uncounted"))
    if ("matmul" in raw) + ("flops" in raw) + uncounted != 1:
        raise ValueError(f"{where}: needs one of `matmul`, `flops` and `uncounted: true`")
    arguments = tuple(str(raw.get("arguments") or "").split())
    trees = _trees(raw, arguments, where)
    sides = _matmul(raw, arguments, where)
    number_format = str(raw.get("format") or "")
    source = str(raw["source"])
    return names, Registered(
        arguments, source, sides, **trees, format=number_format, uncounted=uncounted
    )


def _trees(raw: Mapping[str, object], arguments: Sequence[str], where: str) -> dict[str, ast.expr]:
    trees = {}
    for name in EXPRESSIONS:
        if name in raw:
            trees[name] = _tree(str(raw[name]), arguments, f"{where}: {name}")
    return trees


def _matmul(
    raw: Mapping[str, object], arguments: Sequence[str], where: str
) -> tuple[ast.expr, ...]:
    if "matmul" not in raw:
        return ()
    sides = raw["matmul"]
    if not isinstance(sides, list) or len(sides) not in (3, 4):
        raise ValueError(f"{where}: matmul: is a list of m, n and k, or of batch, m, n and k")
    return tuple(_tree(str(side), arguments, f"{where}: matmul") for side in sides)


def _tree(text: str, arguments: Sequence[str], where: str) -> ast.expr:
    try:
        return parsed(text, arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
