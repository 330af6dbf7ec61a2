"""Which function a mutant belongs to, and which changes are of types alone."""

import runpy

import pytest
from support.workflow_copy import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts/mutants.py"))
SOURCE = '''
LEAST: float | None = 1.0
Known = float | None


class Box:
    def size(self, side: int | str = 2) -> float | None:
        """Has a line that is no code."""
        def doubled():
            return 2 * side

        return doubled() | 1
'''


@pytest.mark.parametrize(
    ("line", "scope"), [(2, "module"), (7, "module"), (10, "Box.size.doubled"), (12, "Box.size")]
)
def test_a_line_belongs_to_the_innermost_function_whose_body_it_is_of(line, scope):
    assert SCRIPT["Scopes"](SOURCE).at(line) == scope


@pytest.mark.parametrize(
    ("line", "text", "is_typed"),
    [
        (2, "float | None", True),
        (2, "1.0", False),
        (3, "float | None", True),
        (7, "int | str", True),
        (7, "float | None", True),
        (7, "2", False),
        (12, "doubled() | 1", False),
    ],
)
def test_no_mutant_changes_a_type_alone(line, text, is_typed):
    column = SOURCE.splitlines()[line - 1].index(text)
    span = (line, column), (line, column + len(text))
    assert SCRIPT["Scopes"](SOURCE).is_typed(span) is is_typed
