"""Files that a measurement depends on, found by reading imports and names of data files, never by importing.

Snakemake tracks a script's own text but not the modules behind it, nor what these read: tables of facts, CUDA C,
catalogues, templates. All are declared as inputs, so that an edited kernel re-runs its runs and nothing else.
"""

import ast
import hashlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.planning.store import write_if_changed

PACKAGE = Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


@cache
def step_sources(step: str) -> tuple[Path, ...]:
    """The step's module, every module of this package that it imports, at any depth, and the data that these read."""
    return closure(f"mfulab.measurements.{step}.measure")


@cache
def target_sources(target: str) -> tuple[Path, ...]:
    """The file that defines a `_target_` and what it imports of the same project; nothing for a library's."""
    module = locate(target)
    return closure(module) if module and _is_local(module) else ()


@cache
def closure(module: str) -> tuple[Path, ...]:
    """Files of `module` and of all local modules that it imports, directly or through others, and data they name."""
    modules: dict[str, Path] = {}
    data: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in modules or path is None or not _is_local(name):
            continue
        modules[name] = path
        imports, strings = _read(path, name)
        waiting += imports
        data |= _data(path.parent, strings)
    unread = list(data)
    while unread:
        file = unread.pop()
        included = _data(file.parent, INCLUDE.findall(file.read_text(encoding="utf-8"))) - data
        data |= included
        unread += included
    return tuple(sorted({*modules.values(), *data}))


def run_sources(step: str, target: str | None) -> tuple[Path, ...]:
    """Every file that a run of `step` with a model or kernel `target` depends on."""
    return tuple(dict.fromkeys([*step_sources(step), *(target_sources(target) if target else ())]))


def digests(files: Sequence[Path]) -> str:
    """A line for each file with the digest of its content."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}  {_name(file)}\n" for file in files)


def write_digests(path: Path, files: Sequence[Path]) -> None:
    """Writes the digest of each file to `path` where one changed; `path` is as old as the newest of them.

    Its age matters for results that were copied from elsewhere: those that are newer than the code stay.
    """
    if write_if_changed(path, digests(files)):
        newest = max(file.stat().st_mtime_ns for file in files)
        os.utime(path, ns=(newest, newest))


def _name(file: Path) -> str:
    for root in (PACKAGE.parent, Path.cwd()):
        if file.is_relative_to(root):
            return str(file.relative_to(root))
    return str(file)


@cache
def _read(path: Path, module: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """The modules that a file imports (of `from package import module` the latter alone), and the strings in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imports: list[str] = []
    strings: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            imports += (name if _file(name) else base for name in names)
    return tuple(imports), frozenset(strings)


def _data(folder: Path, names: Iterable[str]) -> set[Path]:
    """The package's data files below `folder` that one of `names` means: `x.csv`, or `y/*.yaml`, at any depth."""
    alike = ((name, file) for name in names for file in _data_files().get(name.rpartition(".")[2], ()))
    return {file for name, file in alike if file.is_relative_to(folder) and file.match(name)}


@cache
def _data_files() -> dict[str, list[Path]]:
    """Files of this package other than Python's, by the names' endings."""
    found: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.*"):
        if path.suffix not in (".py", ".pyc", ".typed") and path.is_file():
            found.setdefault(path.suffix[1:], []).append(path)
    return found


@cache
def _is_local(module: str) -> bool:
    """True if a module belongs to this project or to the user's own files, not to an installed library."""
    path = _file(module.split(".")[0])
    if path is None:
        return False
    return path.is_relative_to(PACKAGE) or not (
        {"site-packages", "dist-packages"} & set(path.parts) or _standard(module)
    )


def _standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


@cache
def _file(module: str) -> Path | None:
    """The Python file of a module, found without importing it or its parents; None for anything else."""
    search: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    path = None
    for part in module.split("."):
        spec = None if search is None else importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
        path = spec.origin
    return Path(path).resolve() if path and path.endswith(".py") else None


@cache
def locate(target: str) -> str:
    """The module of a `_target_`. Raises ConfigurationError if no module, or no such name in it, is found.

    A name is looked for in the module's text; a module that makes its names at run time is believed.
    """
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        path = _file(module)
        if path is None:
            continue
        names, is_dynamic = _names(path)
        if parts[length] not in names and not is_dynamic:
            raise unknown(f"_target_={target}: name in {module}", parts[length], names)
        return module
    raise ConfigurationError(f"_target_={target}: no module {'.'.join(parts[:-1]) or target} can be found.")


def _names(path: Path) -> tuple[set[str], bool]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigurationError(f"{path}:{error.lineno}: {error.msg}.") from error
    names: set[str] = set()
    is_dynamic = path.name == "__init__.py" and not path.is_relative_to(PACKAGE)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            is_dynamic |= node.name == "__getattr__"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            is_dynamic |= any(alias.name == "*" for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names, is_dynamic
