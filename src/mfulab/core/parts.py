"""Rows as mappings, and parts of mappings: by name, or by what is known."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeVar

Row = Mapping[str, Any]  # cells by column: each column says of which type its own are
Record = dict[str, Any]  # a row that is being filled
Values = Mapping[str, Any]  # of a config or of JSON, by key
Content = dict[str, Any]  # the same, while it is being put together
Key = TypeVar("Key")
Value = TypeVar("Value")


def pick_all(content: Mapping[Key, Value], names: Iterable[Key]) -> dict[Key, Value]:
    """Entries of these names, in the names' order. Raises KeyError if one is missing."""
    return {name: content[name] for name in names}


def pick_present(content: Mapping[Key, Value], names: Iterable[Key]) -> dict[Key, Value]:
    """Entries of those names that the content has, in the names' order."""
    return {name: content[name] for name in names if name in content}


def leave_out(content: Mapping[Key, Value], names: Container[Key]) -> dict[Key, Value]:
    """All entries but those of these names."""
    return {name: value for name, value in content.items() if name not in names}


def drop_none(values: Iterable[Value | None]) -> list[Value]:
    """Values that are not None."""
    return [value for value in values if value is not None]
