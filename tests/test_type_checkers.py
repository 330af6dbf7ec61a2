"""Names that are imported for type checkers alone are not used when the code runs."""

import ast
from collections.abc import Iterator

import pytest
from support.workflow_copy import ROOT

FILES = sorted((ROOT / "src").rglob("*.py"))
ADVICE = "import where a name is used, or outside of TYPE_CHECKING"


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def assigned(function: ast.AST) -> set[str]:
    names = imported(ast.walk(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


class Uses(ast.NodeVisitor):
    """Lines that read one of `names` when the code runs. With `is_lazy`, as from __future__,
    annotations are not read."""

    def __init__(self, names: set[str], is_lazy: bool) -> None:
        self.names = names
        self.is_lazy = is_lazy
        self.lines: list[tuple[str, int]] = []

    def visit_If(self, node: ast.If) -> None:
        if not is_for_type_checkers(node):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self.names
        self.names = outer - assigned(node)
        read = [*node.decorator_list, *node.args.defaults, *node.body]
        if not self.is_lazy:
            read += [node.args, *([node.returns] if node.returns else [])]
        for part in read:
            self.visit(part)
        self.names = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id in self.names:
            self.lines.append((node.id, node.lineno))


def used_when_run(text: str) -> list[tuple[str, int]]:
    tree = ast.parse(text)
    names = set()
    for node in tree.body:
        if is_for_type_checkers(node):
            names |= imported(iter(node.body))
    uses = Uses(names, "from __future__ import annotations" in text)
    uses.visit(tree)
    return uses.lines


def test_no_file_uses_a_name_that_it_imports_for_type_checkers_alone():
    found = {}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        lines = used_when_run(text) if "TYPE_CHECKING" in text else []
        if lines:
            found[str(file.relative_to(ROOT))] = lines
    assert not found, ADVICE


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("def f() -> 'Said':\n    return said_by(1)", ["said_by"]),
        ("def f():\n    from m import said_by\n    return said_by(1)", []),
        ("def f():\n    x: Said = 1\n    return x", []),
        ("y = [Said for _ in ()]", ["Said"]),
    ],
)
def test_such_a_use_is_found(body, names):
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from m import Said, said_by\n"
        + body
    )
    assert [name for name, _ in used_when_run(text)] == names
