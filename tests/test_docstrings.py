"""Docstrings stand alone and are true of what they describe, as far as a test can see."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.words import faults
from support.workflow_copy import ROOT

FOLDERS = ("src", "scripts", "benchmarks", "validation")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


def documented(path: Path) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node, text


def spoken(text: str) -> list[str]:
    """Faults of the first paragraph, and long sentences of those below that are no list and no
    example."""
    first, *others = text.split("\n\n")
    prose = [
        each for each in others if not any(line.startswith("    ") for line in each.splitlines())
    ]
    long = [
        fault for each in prose for fault in faults(" ".join(each.split())) if " words: " in fault
    ]
    return faults(" ".join(first.split())) + long


def untrue(node: ast.AST, text: str) -> list[str]:
    """Why a docstring cannot be true of its function: a value said of one that gives none."""
    if not isinstance(node, FUNCTIONS) or node.returns is None:
        return []
    gives, opening = ast.unparse(node.returns), text.split()[0].strip("`,:")
    says_a_value = opening in ("True", "False") or (opening == "Returns" and gives != "NoReturn")
    if gives in ("None", "NoReturn", "Iterator[None]") and says_a_value:
        return [f"says {opening!r}, but gives {gives}"]
    return (
        [f"says {opening!r}, but gives {gives}"]
        if opening in ("True", "False") and gives in ("int", "str")
        else []
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_stand_alone_and_fit_what_their_function_gives(folder):
    faulty = {
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}": said
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node, text in documented(path)
        if (said := [*spoken(text), *untrue(node, text)])
    }
    assert faulty == {}
    assert any((ROOT / folder).rglob("*.py"))


def run_together(node: ast.AST, text: str) -> list[str]:
    """Arguments of a section `Args` that are described in the middle of a line."""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    if not isinstance(node, FUNCTIONS) or not section:
        return []
    names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if re.search(rf"\S {name}: ", section)]


def test_each_argument_begins_a_line():
    faulty = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node, text in documented(path):
            if names := run_together(node, text):
                faulty[f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"] = names
    assert faulty == {}


@pytest.mark.parametrize(
    ("text", "is_faulty"),
    [
        ("The same.", True),
        ("Of each.", True),
        ("What is counted.", True),
        ("None of any other.", True),
        ("Its mode.", True),
        ("Offers a choice of asking: thatched, itself, asleep.", False),
        ("None below the threshold.", False),
        ("MFU against the datasheet's peak.", False),
        ("Widens the interval to what n processes would give.", False),
        (" ".join(["word"] * 26) + ".", True),
        (" ".join(["word"] * 25) + "; " + " ".join(["word"] * 25) + ".", False),
    ],
)
def test_a_text_that_points_at_a_neighbour_or_goes_on_is_found(text, is_faulty):
    assert bool(faults(text)) is is_faulty


def test_a_value_is_said_of_no_function_that_gives_none():
    (switch,) = ast.parse("def switch(on: bool) -> None: ...").body
    (test,) = ast.parse("def test(x: int) -> bool: ...").body
    assert untrue(switch, "True if x may be rounded.")
    assert not untrue(test, "True if x is odd.")
    assert not untrue(switch, "Lets x be rounded.")
