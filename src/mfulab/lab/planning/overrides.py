"""Converts Snakemake's config, from `--config`, a `--configfile` or a module, to overrides for
Hydra."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from mfulab.core.errors import ConfigurationError
from mfulab.core.parts import Content, Values
from mfulab.core.said import Said
from mfulab.lab.planning.keys import OPEN, Experiment, find_field

# Text that Hydra reads without quotes, also within a list.
_PLAIN = re.compile(r"[\w./:%+@-]+( [\w./:%+@-]+)*")
ROOT = "defaults"  # key of a list that only the root of a config tree has


def from_snakemake(
    config: Values,
    shipped: Values | None = None,
    typed: Values | None = None,
) -> list[str]:
    """Hydra overrides for Snakemake's config. A list is a sweep, unless the value of its key is a
    list.

    Args:
        config: keys as `--config` or a file gives them. A mapping holds nested keys, and the text
            `overrides="a.b=1 …"` dotted ones.
        shipped: content of the config tree's own `config.yaml`. If `config` is a changed copy of
            that file, as in a workflow that snakedeploy has deployed, only the changes count.
        typed: the part of `config` that was given on the command line, which counts even if it
            changes nothing.
    """
    keys = dict(config)
    if ROOT in keys:
        del keys[ROOT]
        still_typed = {}
        for key, value in (typed or {}).items():
            if keys.get(key) == value:
                still_typed[key] = value
        keys = {**_changed(keys, shipped or {}), **still_typed}
    result = list[str]()
    for key, value in keys.items():
        if key == "overrides":
            result += _words(value)
        else:
            result += _overrides(str(key), value)
    return result


def _changed(given: Values, shipped: Values) -> Content:
    """The keys of `given` whose values differ from those in `shipped`, with the same nesting."""
    result = Content()
    for key, value in given.items():
        if key not in shipped:
            result[key] = value
        elif isinstance(value, Mapping) and isinstance(shipped[key], Mapping):
            changed = _changed(value, shipped[key])
            if changed:
                result[key] = changed
        elif value != shipped[key]:
            result[key] = value
    return result


def _words(text: Any) -> list[str]:
    try:
        return shlex.split(str(text))
    except ValueError as error:
        raise ConfigurationError(
            Said("overrides_torn", text=str(text), error=str(error))
        ) from error


def _overrides(key: str, value: Any) -> Iterator[str]:
    """Yields the override of a key, or one for each key nested in it."""
    if isinstance(value, Mapping) and value and key not in OPEN:
        for name, content in value.items():
            yield from _overrides(f"{key}.{name}", content)
    elif isinstance(value, Mapping) and value:
        for name, content in value.items():
            yield f"{key}.{name}={_in_grammar(content)}"
    elif isinstance(value, list) and _is_sweep(key, value):
        yield f"{key}={','.join(map(_in_grammar, value))}"
    elif isinstance(value, str):  # unchanged, such as `1,2,4` and `glob(numba_*)`
        yield f"{key}={value}"
    else:
        yield f"{key}={_in_grammar(value)}"


def _is_sweep(key: str, value: Sequence[Any]) -> bool:
    """True for a list with one value per run; False for a list that is itself one value."""
    if not value:
        return False
    if not _holds_list(key):
        return True
    return all(isinstance(item, list) for item in value)


def _holds_list(key: str) -> bool:
    """True for a key whose value is a list, such as `steps` or `model.input_shape`."""
    if key.startswith(tuple(f"{prefix}." for prefix in OPEN)):
        return True
    _, field = find_field(Experiment, key.split("."))
    return field is not None and _is_list(field.annotation)


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) in (list, tuple):
        return True
    return any(map(_is_list, get_args(annotation)))


def _in_grammar(value: Any) -> str:
    """A value within a list or mapping, in Hydra's grammar."""
    if isinstance(value, Mapping):
        items = [f"{key}:{_in_grammar(content)}" for key, content in value.items()]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_in_grammar, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)
