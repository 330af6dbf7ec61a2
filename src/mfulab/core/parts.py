"""Types for rows and configs as mappings, and helpers that select some of their entries."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

Row = Mapping[str, Any]  # cell by column; its type depends on the column
Record = dict[str, Any]  # a row that is being filled
Values = Mapping[str, Any]  # of a config or of JSON, by key
Content = dict[str, Any]  # the same, while it is being filled
Key = TypeVar("Key")
Value = TypeVar("Value")


def pick_all(content: Mapping[Key, Value], names: Iterable[Key]) -> dict[Key, Value]:
    """The entries with these names, in the order of `names`. Raises KeyError if one is missing."""
    return {name: content[name] for name in names}


def pick_present(content: Mapping[Key, Value], names: Iterable[Key]) -> dict[Key, Value]:
    """The entries with these names, in the order of `names`; missing ones are skipped."""
    return {name: content[name] for name in names if name in content}


def leave_out(content: Mapping[Key, Value], names: Container[Key]) -> dict[Key, Value]:
    """All entries except those with these names."""
    return {name: value for name, value in content.items() if name not in names}


def is_number(value: object) -> TypeGuard[int | float]:
    """True for an integer or a float, False for True and False."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def drop_none(values: Iterable[Value | None]) -> list[Value]:
    """The values that are not None."""
    return [value for value in values if value is not None]
