"""The one reader of JSON that others wrote: bounded in size and depth, its numbers finite. Standard
library alone, as each run's client starts with it."""

import json
import math
import os
import stat
from typing import Any

OF_PROC = 1 << 16  # bytes of a file that says it holds none
LONGEST = 1 << 28  # characters: the tables of 20,000 runs take a tenth
DIGITS = 300  # of a whole number: a float holds 308
DEEPEST = 100  # lists and objects within one another; rows and traces hold fewer than ten


def parse_json(text: str | bytes, longest: int = LONGEST) -> Any:
    """Parses a JSON text. Raises ValueError for one that is longer, or nested deeper than DEEPEST.
    So it does for NaN and for a number that no float holds, which JSON lacks."""
    if len(text) > longest:
        raise ValueError(f"longer than {longest >> 20} MiB")
    try:
        value = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST}") from error
    brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    may_be_deep = sum(map(text.count, brackets)) > DEEPEST  # type: ignore[arg-type]
    if may_be_deep and _is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return value


def load_object(path: str, most: int = LONGEST) -> dict[str, Any]:
    """The object in a regular file of at most `most` bytes. Raises OSError and ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if status.st_size > most:
            raise ValueError(f"{path}: larger than {most >> 20} MiB")
        # Python sets aside all that it is to read; a file of /proc does not say its size
        content = file.read(status.st_size or OF_PROC)
        if content is None:  # of /proc, which may have nothing to tell yet
            raise ValueError(f"{path}: holds nothing that can be read now")
        value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds a {type(value).__name__} instead of an object")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    raise ValueError(f"{text[:24]} is no finite number")


def _whole(text: str) -> int:
    if len(text) <= DIGITS:
        return int(text)
    raise ValueError(f"{text[:24]}… has more than {DIGITS} digits")


def _is_deeper(value: Any, most: int) -> bool:
    """True if lists and objects lie within one another more than `most` times."""
    level = [value]
    for _ in range(most):
        inner = list[Any]()
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = []
        for each in inner:
            if isinstance(each, dict | list):
                level.append(each)
        if not level:
            return False
    return True
