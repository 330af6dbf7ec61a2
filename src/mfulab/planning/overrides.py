"""Hydra overrides as users give them: through Snakemake's --config, or on the command line of a step's script."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfulab.schema.errors import ConfigurationError, unknown

# Keys of these mappings are the user's own, so Hydra is told to add what is not there.
OPEN = ("model.arguments", "device.peak_tflop_s")


def from_snakemake(config: Mapping[str, Any]) -> list[str]:
    """`--config key=value …` as Hydra overrides; `overrides="a.b=1 c.d=2"` holds those whose key has a dot.

    Snakemake refuses a dot in a key of --config, hence the one key that holds them all.
    """
    result = []
    for key, value in config.items():
        if key == "overrides":
            result += shlex.split(str(value))
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
        result.append(f"++{override}" if is_open and override[0] not in "+~" else override)
    return result


def check_keys(overrides: Sequence[str], config: Mapping[str, Any], config_folder: Path) -> None:
    """Raises ConfigurationError for the first override that names no key of `config` or no option of a group."""
    groups = {path.name for path in config_folder.iterdir() if path.is_dir()}
    for override in overrides:
        key, separator, value = override.partition("=")
        top = key.lstrip("+~").split(".")[0]
        if top.startswith("hydra") or (override[0] in "+~" and top in config):
            continue
        if not separator:
            raise ConfigurationError(f"{override}: give key=value.")
        if key in groups:
            if not value or value.replace(",", "").replace("_", "").isalnum():
                for choice in value.split(","):
                    check_choice(key, choice, config_folder)
            continue
        node: Any = config
        path: list[str] = []
        for part in key.lstrip("+~").split("."):
            if not isinstance(node, Mapping) or part not in node:
                choices = {*node, *(groups if not path else ())} if isinstance(node, Mapping) else ()
                raise unknown("key", key, [".".join([*path, str(choice)]) for choice in choices])
            node = node[part]
            path.append(part)


def check_choice(group: str, choice: str, config_folder: Path) -> None:
    """Raises ConfigurationError if `choice` is no option of `group`."""
    options = [path.stem for path in (config_folder / group).glob("*.yaml")]
    if choice not in options:
        raise unknown(group, choice, options)
