"""Hydra overrides as users give them: through Snakemake's --config, or on the command line of `mfulab run`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mfulab.core.errors import ConfigurationError

# Keys of these mappings are the user's own, so Hydra is told to add what is not there.
OPEN = ("model.arguments", "device.peak_tflop_s")


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key on copies of the mappings it passes, which other combinations share."""
    *path, last = key.split(".")
    for part in path:
        content[part] = dict(content[part])
        content = content[part]
    content[last] = value


def from_snakemake(config: Mapping[str, Any]) -> list[str]:
    """`--config key=value …` as Hydra overrides; `overrides="a.b=1 …"` holds dotted keys, which Snakemake refuses."""
    result = []
    for key, value in config.items():
        if key == "overrides":
            try:
                result += shlex.split(str(value))
            except ValueError as error:
                raise ConfigurationError(f"overrides={value}: {error}. Quote a value that holds spaces.") from error
        elif isinstance(value, Mapping):
            raise ConfigurationError(f"{key}={value}: write --config overrides='{key}.KEY=VALUE …' for a nested key.")
        else:
            result.append(f"{key}={_hydra_value(value)}")
    return result


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_hydra_value(item) for item in value)}]"
    return str(value)


def complete(overrides: Sequence[str]) -> list[str]:
    """Adds what goes without saying: `model=own` for `model._target_=…`, and `++` for a key of the user's own."""
    keys = [override.split("=", 1)[0].lstrip("+~") for override in overrides]
    result = ["model=own"] if "model._target_" in keys and "model" not in keys else []
    for key, override in zip(keys, overrides, strict=True):
        is_open = any(key.startswith(f"{prefix}.") for prefix in OPEN)
        if key == "steps" and not override.partition("=")[2].startswith("["):
            override = f"steps=[{override.partition('=')[2]}]"  # one measurement, or several with commas, are a list
        result.append(f"++{override}" if is_open and override[0] not in "+~" else override)
    return result
