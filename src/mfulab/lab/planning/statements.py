"""One form for statements that mean the same, so that a rewritten line changes no digest: parallel
assignments are taken apart, conditional expressions become `if` statements, and what follows an
`if` that leaves is its `else`."""

import ast
from collections.abc import Sequence
from typing import Any

LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)
BODIES = ("body", "orelse", "finalbody")


def plain(statement: ast.stmt) -> None:
    """Puts all that a statement holds into this form, in place."""
    for node in ast.walk(statement):
        for field in BODIES:
            held = getattr(node, field, None)
            if isinstance(held, list):
                setattr(node, field, _sequence(held))


def parted(statement: ast.stmt) -> list[Any]:
    """The assignments that a parallel one stands for; any other statement alone."""
    pairs = None
    if isinstance(statement, ast.Assign):
        pairs = _pairs(statement)
    if pairs is None:
        return [statement]
    found = []
    for target, part in pairs:
        found.extend(parted(ast.Assign([target], part)))
    return found


def _sequence(body: Sequence[Any]) -> list[Any]:
    made: list[Any] = []
    for index, statement in enumerate(body):
        rest = body[index + 1 :]
        if isinstance(statement, ast.If) and _leaves(statement) and rest and not statement.orelse:
            statement.orelse = list(rest)
            return [*made, statement]
        made += _apart(statement)
    return made


def _leaves(statement: ast.If) -> bool:
    return isinstance(statement.body[-1], LEAVE)


def _apart(statement: Any) -> list[Any]:
    """The statements that one stands for: several of a parallel assignment, an `if` of a choice."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Return) and isinstance(value, ast.IfExp):
        return [
            ast.If(value.test, _apart(ast.Return(value.body)), _apart(ast.Return(value.orelse)))
        ]
    if not isinstance(statement, ast.Assign):
        return [statement]
    targets = statement.targets
    if isinstance(value, ast.IfExp):
        ways = (_apart(ast.Assign(targets, way)) for way in (value.body, value.orelse))
        return [ast.If(value.test, *ways)]
    parts = parted(statement)
    if len(parts) == 1:
        return parts
    found = []
    for part in parts:
        found.extend(_apart(part))
    return found


def _pairs(statement: ast.Assign) -> list[tuple[ast.expr, ast.expr]] | None:
    """Targets of a parallel assignment with their values; None where one value reads an earlier
    target."""
    targets = statement.targets
    value = statement.value
    if (
        len(targets) > 1
        or not isinstance(targets[0], ast.Tuple)
        or not isinstance(value, ast.Tuple)
    ):
        return None
    names = list(map(ast.unparse, targets[0].elts))
    texts = list(map(ast.unparse, value.elts))
    if len(names) != len(texts) or any(text.startswith("*") for text in (*names, *texts)):
        return None
    for index, part in enumerate(value.elts):
        read = set()
        for node in ast.walk(part):
            if isinstance(node, ast.expr):
                read.add(ast.unparse(node))
        if read & set(names[:index]):
            return None
    return list(zip(targets[0].elts, value.elts, strict=True))
