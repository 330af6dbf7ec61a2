"""Docstrings begin with a verb or a noun, so that each says at once what it describes."""

import ast
from pathlib import Path

import pytest
from support.workflow_copy import ROOT

QUESTIONS = {"What", "Whether", "Why", "Where", "How", "Which", "Who", "When"}
FOLDERS = ("src", "scripts", "benchmarks", "validation")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def questions(path: Path) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, DOCUMENTED)]
    first = [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]
    return [line for line in first if line.split(" ")[0] in QUESTIONS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question(folder):
    found = {path: questions(path) for path in sorted((ROOT / folder).rglob("*.py"))}
    assert found, folder
    assert {path: lines for path, lines in found.items() if lines} == {}
