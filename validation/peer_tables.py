"""Evaluates tables of peaks in the sources of training frameworks, without running them.

Such a table is a function with conditions on a device's name. Conditions on anything else, such as
a process group, are assumed to hold. A number that depends on more than constants is unknown.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Peer:
    """Location of a framework's table, and the names of its variables for the device's name and the
    peak."""

    repository: str
    path: str
    function: str
    peak: str = ""  # variable, attribute or argument with the peak; empty: the return value
    device: str = "device_name"
    listed: str = ""  # constant with pairs of a word of the name, and peaks by dtype


PEERS = {
    "torchtitan": Peer("pytorch/torchtitan", "torchtitan/tools/utils.py", "get_peak_flops"),
    "trl": Peer(
        "huggingface/trl",
        "trl/trainer/utils.py",
        "get_peak_flops",
        listed="_PEAK_FLOPS_BY_DEVICE",
    ),
    "olmo_core": Peer(
        "allenai/OLMo-core",
        "src/olmo_core/train/callbacks/speed_monitor.py",
        "get_device_peak_flops_per_second",
    ),
    "nanogpt": Peer("karpathy/nanoGPT", "model.py", "estimate_mfu", peak="flops_promised"),
}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CALLS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "round": round}
METHODS = ("lower", "upper", "strip", "startswith", "endswith")


class UnreadableError(Exception):
    """Raised for a value that depends on more than constants and the device's name."""


class Table:
    """Table of a framework, evaluated from its source."""

    def __init__(self, source: str, peer: Peer) -> None:
        self.peer = peer
        module = ast.parse(source)
        found = [
            node
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef) and node.name == peer.function
        ]
        if len(found) != 1:
            raise LookupError(f"{peer.path}: {len(found)} functions {peer.function}")
        self.function = found[0]
        if peer.peak and peer.peak not in ast.unparse(self.function):
            raise LookupError(f"{peer.path}: {peer.function} has no {peer.peak} any more")
        self._pairs = _pairs(module, peer) if peer.listed else None

    def peak(self, device: str) -> float | None:
        """Peak in bf16 in TFLOP/s that the table returns for a device; None if it has none."""
        if self._pairs is not None:
            return _by_word(self._pairs, device)
        default = self._default()
        if default is not None:
            return default / 1e12
        known: dict[str, Any] = {self.peer.device: device}
        try:
            value = self._run(self.function.body, known)
        except UnreadableError:  # in a condition on the name
            return None
        return None if value is None else value / 1e12

    def _default(self) -> float | None:
        """Default value of the argument that holds the peak; None if there is no such argument."""
        arguments = self.function.args
        named = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        for argument, default in zip(named, arguments.defaults, strict=True):
            if argument.arg == self.peer.peak:
                return float(_value(default, {}))
        return None

    def _run(self, statements: Sequence[ast.stmt], known: dict[str, Any]) -> float | None:
        for statement in statements:
            result = self._step(statement, known)
            if result is not None:
                return result
        return None

    def _step(self, statement: ast.stmt, known: dict[str, Any]) -> float | None:
        """Peak if this statement determines it; None otherwise."""
        if isinstance(statement, ast.If):
            holds = self._holds(statement.test, known)
            return self._run(statement.body if holds else statement.orelse, known)
        if isinstance(statement, ast.Try | ast.With):
            return self._run(statement.body, known)
        if isinstance(statement, ast.Return) and statement.value is not None and not self.peer.peak:
            return _number(statement.value, known)
        if isinstance(statement, ast.Assign):
            return self._assign(statement, known)
        return None

    def _holds(self, test: ast.expr, known: dict[str, Any]) -> bool:
        """True if a condition holds, or cannot be evaluated. Raises UnreadableError if it depends
        on the device's name but cannot be evaluated."""
        try:
            return bool(_value(test, known))
        except UnreadableError:
            names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
            if self.peer.device in names:
                raise
            return True

    def _assign(self, statement: ast.Assign, known: dict[str, Any]) -> float | None:
        (target,) = statement.targets[:1]
        name = getattr(target, "attr", None) or getattr(target, "id", "")
        if name == self.peer.peak:
            return _number(statement.value, known)
        if name and name != self.peer.device:  # the device's name is given, not computed
            try:
                known[name] = _value(statement.value, known)
            except UnreadableError:
                known.pop(name, None)
        return None


def _pairs(module: ast.Module, peer: Peer) -> list[tuple[str, float | None]]:
    """Words of a table that is a list of pairs, each with its bf16 peak, in order."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == peer.listed:
            listed = ast.literal_eval(statement.value)
            return [(word, peaks.get("bfloat16")) for word, peaks in listed]
    raise LookupError(f"{peer.path}: has no {peer.listed} any more")


def _by_word(pairs: Sequence[tuple[str, float | None]], device: str) -> float | None:
    """Peak in TFLOP/s of the first word that occurs in the name as a whole word; None if there is
    none."""
    for word, peak in pairs:
        if re.search(rf"\b{re.escape(word)}\b", device, re.IGNORECASE):
            return None if peak is None else peak / 1e12
    return None


def tables(folder: Path) -> dict[str, Table]:
    """Tables of the frameworks whose clones are in `folder`, by name. Raises LookupError if a clone
    has no table."""
    found = {}
    for name, peer in PEERS.items():
        path = folder / name / peer.path
        if path.is_file():
            found[name] = Table(path.read_text(encoding="utf-8"), peer)
        elif (folder / name).is_dir():
            raise LookupError(f"{name}: {peer.path} is not there any more")
    return found


def _number(node: ast.expr, known: dict[str, Any]) -> float | None:
    try:
        value = _value(node, known)
    except UnreadableError:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """Value of an expression of constants and known names. Raises UnreadableError for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known))
    if isinstance(node, ast.BoolOp):
        values = [_value(part, known) for part in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(node.operand, known)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node, known)
    if isinstance(node, ast.Call):
        return _called(node, known)
    raise UnreadableError(ast.dump(node))


def _compared(node: ast.Compare, known: dict[str, Any]) -> bool:
    compare = COMPARISONS.get(type(node.ops[0]))
    if compare is None:
        raise UnreadableError(ast.dump(node))
    return compare(_value(node.left, known), _value(node.comparators[0], known))


def _called(node: ast.Call, known: dict[str, Any]) -> Any:
    arguments = [_value(argument, known) for argument in node.args]
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return CALLS[node.func.id](*arguments)
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        owner = _value(node.func.value, known)
        if isinstance(owner, str):
            return getattr(owner, node.func.attr)(*arguments)
    raise UnreadableError(ast.dump(node))


def ask(table: Table) -> Callable[[str, Any, str], float | None]:
    """Wraps a table as a function for `peaks_audit`. It only knows bf16."""

    def answer(device: str, sheet: Any, precision: str) -> float | None:
        return table.peak(device) if precision == "bf16" else None

    return answer
