"""Each promise of SECURITY.md and docs/reliability.md, and each way to add a thing in
CONTRIBUTING.md, names a test that is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DOCUMENTS = ("SECURITY.md", "docs/reliability.md")
HEADER = "| promise | test |"
ADDED = (
    *("model", "kernel", "measurement", "column", "figure", "cause of lost time"),
    *("vendor of GPUs", "language", "operator of an engine"),
)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def promises(document):
    """Cells of each line of a document's table of promises."""
    _, found, rest = (
        (ROOT / document).read_text(encoding="utf-8").partition(f"{HEADER}\n|---|---|\n")
    )
    assert found, f"{document}: holds no table of promises"
    table = rest.partition("\n\n")[0]
    return [line.strip("|").rsplit("|", 1) for line in table.splitlines()]


@cache
def names_in(file):
    """Names of the test functions in a file below tests/."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_promise_names_a_test_that_is_there(document):
    lines = promises(document)
    assert len(lines) > 10
    for promise, cell in lines:
        named = NAMED.findall(cell)
        assert named, f"{document}: no test holds: {promise.strip()}"
        for file, name in named:
            assert name.startswith("test_")
            assert name in names_in(file), f"{document}: {file} holds no {name}"


def test_each_thing_that_can_be_added_names_the_test_that_adds_one():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if "::test_" in line]
    assert {thing for thing, _, _ in lines} >= set(ADDED)
    for thing, _, cell in lines:
        for file, name in NAMED.findall(cell):
            assert name in names_in(file), f"CONTRIBUTING.md: {thing}: {file} holds no {name}"
        assert NAMED.search(cell), f"CONTRIBUTING.md: {thing}"


def test_a_promise_without_a_test_is_found():
    assert not NAMED.findall(" `core/test_files.py` ")
    assert "test_no_such" not in names_in("test_promises.py")
