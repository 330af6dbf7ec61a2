"""Parts of mappings and of series, by name or by what is known."""

from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

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
