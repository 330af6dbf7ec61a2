"""YAML files that ship with this package."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

# in a checkout a symbolic link to config/, in a wheel a copy
SHIPPED = Path(__file__).parents[1] / "config"
# Several times faster; PyYAML may be built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def data(path: Path) -> Any:
    """Content of a YAML file of this package, cached; callers must not change it."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506, TID251 (safe, and ours)
