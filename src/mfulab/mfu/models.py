"""Models by name, file or mapping, without Hydra: what `mfulab explain` is asked about."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.core.data import SHIPPED
from mfulab.core.errors import ConfigurationError, shortened, unknown
from mfulab.core.files import read_given
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, of_source
from mfulab.core.yaml_text import SafeLoader, parse_yaml

# Folder of the named models: in this folder's project, else those that this package was built with.
FOLDERS = (Path("config/model"), SHIPPED / "model")


# Where the code of synthetic loads lies: they show one effect, and nobody trains or serves them.
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
    """The value of a word in YAML. Raises ConfigurationError where it is none."""
    try:
        return parse_yaml(text, _Loader)
    except ValueError as error:
        not_yaml = Said("not_yaml", {"file": shortened(text), "error": str(error)})
        raise ConfigurationError(not_yaml) from error


def names() -> list[str]:
    """Names of the models that have a file, sorted."""
    return sorted({path.stem for folder in FOLDERS for path in folder.glob("*.yaml")})


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
    """A model's config by its name in `config/model/`, a YAML file or content, with `changes` by
    dotted keys. A model without `sequence_length` takes the one given. Raises ConfigurationError
    for what is no model's."""
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
                keyless = Said("holds_no_keys", {"name": f"model.{parent}", "value": repr(node)})
                raise ConfigurationError(of_source(f"model.{key}", keyless))
        node[last] = value
    if content.get("vocabulary_size") and not content.get("sequence_length"):
        content["sequence_length"] = sequence_length
    try:
        return ModelConfig.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "model"
        if first["type"] == "extra_forbidden":
            names_of_keys = [
                field.alias or name for name, field in ModelConfig.model_fields.items()
            ]
            raise unknown(
                f"model={content.get('name', model)}: key", where, names_of_keys
            ) from error
        named = f"model={content.get('name', model)}: {where}"
        raise ConfigurationError(of_source(named, first["msg"])) from error


def _read(model: str | Path) -> dict[str, object]:
    path = Path(model)
    if path.suffix not in (".yaml", ".yml"):
        files = []
        for folder in FOLDERS:
            if (folder / f"{model}.yaml").exists():
                files.append(folder / f"{model}.yaml")
        if not files:
            raise unknown("model", model, names(), "mfulab flops --list")
        path = files[0]
    try:
        content = parse_yaml(read_given(path), _Loader)
    except ValueError as error:
        not_yaml = Said("not_yaml", {"file": str(path), "error": str(error)})
        raise ConfigurationError(not_yaml) from error
    if not isinstance(content, dict):
        raise ConfigurationError(of_source(f"model={model}", Said("holds_no_model")))
    return content
