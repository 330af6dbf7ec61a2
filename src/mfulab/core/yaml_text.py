"""Reads YAML from untrusted sources, bounded in size, depth and the number of values that aliases
expand to."""

import re
from pathlib import Path
from typing import Any

import yaml

from mfulab.core.errors import shortened
from mfulab.core.files import UnreadableError, read_text
from mfulab.core.said import Said

LONGEST = 1 << 22  # characters; parsed at about 4 MB/s
DEEPEST = 100  # lists and mappings within one another; configs hold fewer than ten
MOST_VALUES = 200_000  # values, counted again at each alias; more is a mistake
# Several times faster; PyYAML may be built without it.
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Errors of PyYAML for a value that does not fit its tag, such as `!!bool x` or `!!int ''`.
_OF_TAGS = (ArithmeticError, AttributeError, LookupError, TypeError)


def parse_yaml(text: str, loader: Any = SafeLoader) -> Any:
    """Parses a YAML text by a safe loader. Raises ValueError, with a one-line message, if it is not
    YAML or exceeds a bound."""
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST >> 20} MiB")
    try:
        if len(text) > DEEPEST:
            _check_depth(text)
        content = yaml.load(text, loader)  # noqa: S506, TID251 (a safe one)
    except yaml.YAMLError as error:
        raise ValueError(_reason(error)) from error
    except ValueError as error:
        raise ValueError(_one_line(str(error))) from error
    except _OF_TAGS as error:
        raise ValueError("a tag does not fit its value") from error
    _Size().check(content)
    return content


def load_yaml(path: Path, *, follow: bool = False) -> Any:
    """Content of a YAML file; `follow` also reads through a symbolic link. Raises FileNotFoundError
    if it is absent, else UnreadableError."""
    text = read_text(path, LONGEST, follow=follow)
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise UnreadableError(path, Said("file_not_yaml", error=str(error))) from error


def _check_depth(text: str) -> None:
    """Raises ValueError if a text is nested too deeply or has too many parts. Checked first, as the
    loader in C crashes the process on deep nesting."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST}")
        if count > 2 * MOST_VALUES:
            raise ValueError(f"holds more than {MOST_VALUES:,} values")


class _Size:
    """Counts values and levels of parsed content. Visits each part once, however many aliases refer
    to it."""

    def __init__(self) -> None:
        self._known = dict[int, tuple[int, int]]()  # values and levels by a part's id
        self._open = set[int]()

    def check(self, content: object) -> None:
        """Raises ValueError if the content has too many values or levels, or contains itself."""
        values, levels = self._of(content)
        if values > MOST_VALUES:
            raise ValueError(f"its aliases make more than {MOST_VALUES:,} values")
        if levels > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST}")

    def _of(self, part: object) -> tuple[int, int]:
        if not isinstance(part, dict | list | set | tuple):
            return 1, 0
        if id(part) in self._open:
            raise ValueError("an alias lies within what it names")
        if id(part) not in self._known:
            self._open.add(id(part))
            values, levels = 1, 0
            for child in part.values() if isinstance(part, dict) else part:
                inner_values, inner_levels = self._of(child)
                values += inner_values
                levels = max(levels, inner_levels)
            self._open.remove(id(part))
            self._known[id(part)] = values, levels + 1
        return self._known[id(part)]


def _reason(error: yaml.YAMLError) -> str:
    """PyYAML's description of a problem, with its line if known."""
    problem = _one_line(str(getattr(error, "problem", None) or error))
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _one_line(text: str) -> str:
    return shortened(re.sub(r"\s+", " ", text).strip())
