"""Data files of this package."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

# a link to the checkout's, of which a wheel holds a copy
SHIPPED = Path(__file__).parents[1] / "config"
_LOADER: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # several times as fast, where PyYAML was built with it


def values(content: object, most: int) -> int:
    """Number of values in what YAML was read as, those that aliases share each time; a part that
    holds itself counts `most`."""
    counted = dict[int, int]()

    def of(part: object) -> int:
        if isinstance(part, list | dict) and id(part) not in counted:
            counted[id(part)] = most
            counted[id(part)] = 1 + sum(map(of, part.values() if isinstance(part, dict) else part))
        return counted.get(id(part), 1)

    return of(content)


@cache
def data(path: Path) -> Any:
    """The content of a YAML file of this package, read once; nobody changes it."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 (a safe one)
