"""Formulas for operators of engines and libraries, read from files: a name, its arguments, and
expressions over their shapes. Nothing in such a file is ever run.

Files come from three places, and the first that names an operator wins. Folders in the environment
variable `MFULAB_OPERATORS` come first. Then come folders that installed packages name by an entry
point of the group `mfulab.operators`, as `mine = "package.folder"`; nothing of it is imported. This
package's own files come last."""

from __future__ import annotations

import fnmatch
import functools
import os
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError
from mfulab.core.yaml_text import load_yaml
from mfulab.flops.registry.entry import Registered, entry

GROUP = "mfulab.operators"
VARIABLE = "MFULAB_OPERATORS"
OWN = Path(__file__).parent


@functools.cache
def registered() -> dict[str, Registered]:
    """Formulas by the operator's name, which may hold `*` for any text. Raises ConfigurationError
    where a file of the environment's is wrong; a package's is left out, with a warning."""
    formulas = dict[str, Registered]()
    for folder in _folders():
        _add(formulas, _read(folder))
    for point in entry_points(group=GROUP):
        try:
            _add(formulas, [*_read(_folder_of(point))])
        except (ConfigurationError, OSError, ValueError) as error:
            warnings.warn(f"formulas of {point.value} are left out: {error}", stacklevel=2)
    _add(formulas, _read(OWN))
    return formulas


def _add(formulas: dict[str, Registered], entries: Iterable[tuple[list[str], Registered]]) -> None:
    """Adds operators that no earlier file names."""
    for names, formula in entries:
        for name in names:
            formulas.setdefault(name, formula)


@functools.cache
def patterns() -> tuple[str, ...]:
    """The names with a `*`, as FlashInfer's, which hold the types they were compiled for."""
    return tuple(name for name in registered() if "*" in name)


@functools.cache
def registered_formula(name: str) -> Registered | None:
    """The formula of an operator; None where no file names it."""
    if name in registered():
        return registered()[name]
    for pattern in patterns():
        if fnmatch.fnmatchcase(name, pattern):
            return registered()[pattern]
    return None


def _folders() -> list[Path]:
    told = os.environ.get(VARIABLE, "")
    folders = []
    for part in told.split(os.pathsep):
        if part:
            folders.append(Path(part).expanduser())
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(f"{VARIABLE}={told}: {folder} is no folder")
    return folders


def _folder_of(point: EntryPoint) -> Path:
    """The folder that an entry point names, found without importing anything of it."""
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place).joinpath(*inner)
        if folder.is_dir():
            return folder
    raise ValueError(f"{point.value} is no folder of an installed package")


def _read(folder: Path) -> Iterator[tuple[list[str], Registered]]:
    for path in sorted(folder.glob("*.yaml")):
        for raw in entries_of(path):
            try:
                yield entry(raw, str(path))
            except ValueError as error:
                raise ConfigurationError(str(error)) from error


def entries_of(path: Path) -> list[Any]:
    """The entries of a file as they stand in it. Raises ConfigurationError where it holds no list."""
    try:
        content = data(path) if path.parent == OWN else load_yaml(path, follow=True)
    except (OSError, UnreadableError) as error:
        raise ConfigurationError(f"{error}.") from error
    if not isinstance(content, list):
        raise ConfigurationError(f"{path}: holds no list of operators")
    return content
