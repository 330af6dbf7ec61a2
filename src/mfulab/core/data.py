"""Data files of this package."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

# a link to the checkout's, of which a wheel holds a copy
SHIPPED = Path(__file__).parents[1] / "config"
# several times as fast, where PyYAML was built with it
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def data(path: Path) -> Any:
    """The content of a YAML file of this package, read once; nobody changes it."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506, TID251 (safe, and ours)
