"""Reads JSON from untrusted sources, bounded in size and depth, with finite numbers only. Uses the
standard library alone, as the client that starts each run imports it."""

import json
import math
import os
import stat
from typing import Any

OF_PROC = 1 << 16  # bytes to read of a file whose size is given as 0, as in /proc
LONGEST = 1 << 28  # characters: the tables of 20,000 runs take a tenth
DIGITS = 300  # of an integer: a float holds 308
DEEPEST = 100  # lists and objects within one another; rows and traces hold fewer than ten


def parse_json(text: str | bytes, longest: int = LONGEST) -> Any:
    """Parses a JSON text. Raises ValueError if it is longer than `longest` or nested deeper than
    DEEPEST. Also raises it for NaN and for numbers beyond a float's range, which JSON lacks."""
    if len(text) > longest:
        raise ValueError(f"longer than {longest >> 20} MiB")
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = FINITE.decode(text)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST}") from error
    brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    may_be_deep = sum(map(text.count, brackets)) > DEEPEST  # type: ignore[arg-type]
    if may_be_deep and _is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return value


def load_object(path: str, most: int = LONGEST) -> dict[str, Any]:
    """Reads the JSON object in a regular file of at most `most` bytes. Raises OSError, or
    ValueError if the file does not hold one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if status.st_size > most:
            raise ValueError(f"{path}: larger than {most >> 20} MiB")
        # Python allocates as much as it is asked to read; files in /proc give their size as 0.
        content = file.read(status.st_size or OF_PROC)
        if content is None:  # a file in /proc that has nothing to read yet
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
    """True if lists and objects are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        inner = list[Any]()
        for container in level:
            if isinstance(container, dict):
                inner += container.values()
            elif isinstance(container, list):
                inner += container
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


# made once, as `json.loads` with functions of its own makes one for each text
FINITE = json.JSONDecoder(parse_float=_finite, parse_int=_whole, parse_constant=_finite)
