"""The library can be used without the pipeline: what each part of the package may import."""

import ast
import re
import sys
from pathlib import Path

import pytest

import mfulab

PACKAGE = Path(mfulab.__file__).parent
LIBRARY = ("core", "device", "flops", "timing", "tracing", "mfu")
MEASURED = ("models", "kernels", "measurements")
# A package of its own too: it imports nothing of the others, and its parts by their place.
STANDALONE = "peaks"
FORBIDDEN = {part: {*MEASURED, "lab", "loop", "cli"} for part in LIBRARY}
FORBIDDEN |= {part: {"lab", "loop", "cli"} for part in MEASURED}
FORBIDDEN |= {"loop": {"lab", "cli"}, "lab": {"loop", "cli"}}


def imported(path):
    """Names of this package's modules that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or STANDALONE in path.parts, f"{path}: a relative import"
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def parts(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("mfulab.")}


@pytest.mark.parametrize("part", [*LIBRARY, *MEASURED, "loop"])
def test_what_measures_imports_nothing_of_the_pipeline(part):
    libraries = {
        path: {name.split(".")[0] for name in imported(path)}
        for path in (PACKAGE / part).rglob("*.py")
    }
    assert {
        path: names for path, names in libraries.items() if names & {"snakemake", "hydra", "pandas"}
    } == {}


def test_the_picture_of_the_architecture_names_every_part():
    page = (PACKAGE.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    picture = page[page.index("src/mfulab/") : page.index("Snakefile")]
    assert [part for part in (*FORBIDDEN, "cli") if not re.search(rf"\b{part}\b", picture)] == []


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_imports_none_above_it(part):
    found = {
        path.relative_to(PACKAGE): parts(path) & FORBIDDEN[part]
        for path in (PACKAGE / part).rglob("*.py")
    }
    assert len(found) > 5
    assert {path: names for path, names in found.items() if names} == {}


def test_an_import_inside_a_function_is_seen(tmp_path):
    file = tmp_path / "late.py"
    file.write_text(
        "def late():\n    def inner():\n        from mfulab.models import counted\n    import mfulab.lab.tables\n"
    )
    assert parts(file) == {"models", "lab"}


def test_every_part_is_placed():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == {*FORBIDDEN, "cli", STANDALONE}


def test_the_package_of_peaks_needs_nothing_but_python():
    for path in (PACKAGE / STANDALONE).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.split(".")[0] in sys.stdlib_module_names
            elif isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
                assert names <= sys.stdlib_module_names | {"torch", "pynvml"}
