"""No class of measured loops holds more than a reader keeps in mind."""

import ast
from collections.abc import Iterable, Mapping

from support.workflow_copy import ROOT

MOST = 12
FOLDER = ROOT / "src/mfulab/loop/interactive"


def classes(texts: Iterable[str]) -> dict[str, ast.ClassDef]:
    found = {}
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                assert node.name not in found, f"two classes are named {node.name}"
                found[node.name] = node
    return found


def names_in(expressions: Iterable[ast.expr]) -> set[str]:
    """Plain names, as of bases and decorators. A dotted one belongs to another package."""
    found = set()
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Name):
                found.add(node.id)
    return found


def fields(node: ast.ClassDef) -> set[str]:
    """Attributes that the body declares. One with a value is the class's own, unless the class is a
    dataclass or a tuple."""
    holds_defaults = names_in([*node.bases, *node.decorator_list]) & {"dataclass", "NamedTuple"}
    found = set()
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        is_own = item.value is None or holds_defaults
        if is_own and "ClassVar" not in names_in([item.annotation]):
            found.add(item.target.id)
    return found


def attributes(node: ast.ClassDef, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """Attributes of a class's instances, with those of its bases that are known."""
    found = fields(node)
    for part in ast.walk(node):
        is_set = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if is_set and isinstance(part.value, ast.Name) and part.value.id == "self":
            found.add(part.attr)
    for base in names_in(node.bases) & known.keys():
        found |= attributes(known[base], known)
    return found


def test_no_class_of_measured_loops_has_more_than_twelve_attributes():
    texts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.py"))]
    known = classes(texts)
    assert {"Loop", "KnownCosts", "UnwatchedSteps", "Measurement", "Phases"} <= known.keys()
    counts = {name: len(attributes(node, known)) for name, node in known.items()}
    assert {name: count for name, count in counts.items() if count > MOST} == {}


def test_attributes_are_those_of_instances_and_of_bases():
    known = classes(
        [
            """
class Base:
    shared: int = 0
    declared: int

    def __init__(self):
        self.x, self.y = 1, 2

    def later(self, other):
        self.x += 1
        self.z: int = 3
        other.w = self.read
        with other as self.v:
            pass
""",
            """
@dataclass(frozen=True)
class Fields(Base, package.Fields):
    a: int
    b: int = 0
    c: ClassVar[int] = 0
""",
        ]
    )
    of_base = {"declared", "x", "y", "z", "v"}
    assert attributes(known["Base"], known) == of_base
    assert attributes(known["Fields"], known) == of_base | {"a", "b"}
