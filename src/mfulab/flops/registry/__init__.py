"""Formulas for operators of engines and libraries, read from files: a name, its arguments, and
expressions over their shapes. Nothing in such a file is ever run.

Files come from three places, and the first that names an operator wins: folders in the environment
variable `MFULAB_OPERATORS`; folders of installed packages; this package's own files. An installed
package names its folder by an entry point of the group `mfulab.operators`, such as `mine =
"package.folder"`; nothing of it is imported.
"""

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
THIS_FOLDER = Path(__file__).parent


@functools.cache
def registered() -> dict[str, Registered]:
    """Formulas by operator name, which may contain `*` for any text. Raises ConfigurationError if a
    file in the user's folders is wrong; wrong files of packages are left out with a warning."""
    formulas = dict[str, Registered]()
    for folder in _folders():
        _add(formulas, _read(folder))
    for point in entry_points(group=GROUP):
        try:
            _add(formulas, [*_read(_folder_of(point))])
        except (ConfigurationError, OSError, ValueError) as error:
            warnings.warn(f"formulas of {point.value} are left out: {error}", stacklevel=2)
    _add(formulas, _read(THIS_FOLDER))
    return formulas


def _add(formulas: dict[str, Registered], entries: Iterable[tuple[list[str], Registered]]) -> None:
    """Adds formulas of operators that no earlier file names."""
    for names, formula in entries:
        for name in names:
            formulas.setdefault(name, formula)


@functools.cache
def patterns() -> tuple[str, ...]:
    """Names that contain `*`, such as FlashInfer's, whose names contain the types that they were
    compiled for."""
    return tuple(name for name in registered() if "*" in name)


@functools.cache
def registered_formula(name: str) -> Registered | None:
    """Formula of an operator, or None if no file names it."""
    if name in registered():
        return registered()[name]
    for pattern in patterns():
        if fnmatch.fnmatchcase(name, pattern):
            return registered()[pattern]
    return None


def _folders() -> list[Path]:
    """Folders that the environment variable names. Raises ConfigurationError if one does not exist."""
    paths = os.environ.get(VARIABLE, "")
    folders = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(f"{VARIABLE}={paths}: {folder} is no folder")
    return folders


def _folder_of(point: EntryPoint) -> Path:
    """Folder that an entry point names, found without importing anything from it. Raises ValueError
    if there is none."""
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    for location in locations or ():
        folder = Path(location).joinpath(*inner)
        if folder.is_dir():
            return folder
    raise ValueError(f"{point.value} is no folder of an installed package")


def _read(folder: Path) -> Iterator[tuple[list[str], Registered]]:
    """Yields operator names and formula of each entry in a folder's files. Raises
    ConfigurationError for a wrong entry."""
    for path in sorted(folder.glob("*.yaml")):
        for raw in entries_of(path):
            try:
                yield entry(raw, str(path))
            except ValueError as error:
                raise ConfigurationError(str(error)) from error


def entries_of(path: Path) -> list[Any]:
    """Reads the entries of a file without checking them. Raises ConfigurationError if the file
    cannot be read or is not a list."""
    try:
        content = data(path) if path.parent == THIS_FOLDER else load_yaml(path, follow=True)
    except (OSError, UnreadableError) as error:
        raise ConfigurationError(f"{error}.") from error
    if not isinstance(content, list):
        raise ConfigurationError(f"{path}: holds no list of operators")
    return content
