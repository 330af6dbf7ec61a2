"""Reads models by name, file or mapping, without Hydra."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.core.data import SHIPPED
from mfulab.core.errors import ConfigurationError, shortened, unknown
from mfulab.core.files import read_given
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, of_source
from mfulab.core.yaml_text import SafeLoader, parse_yaml

# Folders of the named models: of the project in the current folder, and those in this package.
FOLDERS = (Path("config/model"), SHIPPED / "model")
# Modules with the code of synthetic loads: each shows one effect, and nobody trains or serves it.
LOADS = tuple(
    f"mfulab.models.{name}"
    for name in ("busy.", "control_flow.", "convolutional.One", "disputed.", "fusion.", "streamed.")
)
LOADS += ("mfulab.models.subnormal.", "torch.nn.")


class _Loader(SafeLoader):  # type: ignore[misc]  # in C where PyYAML was built with it
    """Reads 1e5 as a number, as Hydra does; plain YAML 1.1 asks for a point and a sign."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """Parses a value in YAML. Raises ConfigurationError if the text is invalid."""
    try:
        return parse_yaml(text, _Loader)
    except ValueError as error:
        not_yaml = Said("not_yaml", file=shortened(text), error=str(error))
        raise ConfigurationError(not_yaml) from error


def names() -> list[str]:
    """Names of the models that have a file, sorted."""
    files = chain.from_iterable(folder.glob("*.yaml") for folder in FOLDERS)
    return sorted({file.stem for file in files})


@cache
def is_load(name: str) -> bool:
    """True for a model of `config/model/` that is a synthetic load, such as `spinning`."""
    if name not in names():
        return False
    with suppress(ConfigurationError):
        return str(_read(name).get("_target_", "")).startswith(LOADS)
    return False


def model_config(
    model: str | Path | Mapping[str, object] | ModelConfig,
    changes: Mapping[str, object] = {},
    sequence_length: int | None = None,
) -> ModelConfig:
    """Config of a model, given as its name in `config/model/`, a YAML file or content, with
    `changes` by dotted keys. `sequence_length` applies if the model has none. Raises
    ConfigurationError if the model or a change is invalid."""
    if isinstance(model, ModelConfig):
        content: dict[str, Any] = model.model_dump(by_alias=True)
    elif isinstance(model, Mapping):
        content = dict(model)
    else:
        content = _read(model) if str(model) else {"name": "own"}
    for key, value in changes.items():
        node = content
        *parents, last = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                keyless = Said("holds_no_keys", name=f"model.{parent}", value=repr(node))
                raise ConfigurationError(of_source(f"model.{key}", keyless))
        node[last] = value
    if content.get("vocabulary_size") and not content.get("sequence_length"):
        content["sequence_length"] = sequence_length
    try:
        return ModelConfig.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "model"
        named = f"model={content.get('name', model)}"
        if first["type"] == "extra_forbidden":
            keys = [field.alias or name for name, field in ModelConfig.model_fields.items()]
            raise unknown(f"{named}: key", where, keys) from error
        raise ConfigurationError(of_source(f"{named}: {where}", first["msg"])) from error


def _read(model: str | Path) -> dict[str, object]:
    """Content of a model's YAML file. Raises ConfigurationError if there is none, or if it is no
    mapping."""
    path = Path(model)
    if path.suffix not in (".yaml", ".yml"):
        files = [folder / f"{model}.yaml" for folder in FOLDERS]
        found = [file for file in files if file.exists()]
        if not found:
            raise unknown("model", model, names(), "mfulab flops --list")
        path = found[0]
    try:
        content = parse_yaml(read_given(path), _Loader)
    except ValueError as error:
        not_yaml = Said("not_yaml", file=str(path), error=str(error))
        raise ConfigurationError(not_yaml) from error
    if not isinstance(content, dict):
        raise ConfigurationError(of_source(f"model={model}", Said("holds_no_model")))
    return content
