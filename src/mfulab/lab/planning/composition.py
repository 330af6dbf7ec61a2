"""Composes experiments with Hydra: the base config and the values of each axis. Each option is
composed only once."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from mfulab.core.errors import ConfigurationError, shortened
from mfulab.core.files import digests
from mfulab.core.parts import Content, Values
from mfulab.core.said import Said, of_source
from mfulab.lab.planning import checks
from mfulab.lab.planning.keys import OPEN, defaults, derived, groups
from mfulab.lab.planning.naming import NO_RUNS

DIGITS = re.compile(r"(?<![^,(\[\s])\d[\d_]*(?![^,)\]\s])")  # a word that consists of digits
# Occurs in files that only Hydra can compose.
BY_HYDRA = re.compile(r"@package|\$\{|^defaults:", re.MULTILINE)


@dataclass(frozen=True)
class Value:
    """One value of an axis: its label in names of runs and in exclusions, and its content in the
    config."""

    label: str
    content: Any


@dataclass(frozen=True)
class Composition:
    """A composed experiment: the base config, the chosen option of each group, and the values of
    each swept axis by its key."""

    experiment: str
    base: Values
    choices: Mapping[str, str]
    axes: Mapping[str, Sequence[Value]]
    fixed: Values  # dotted keys that the user set once for all runs
    overrides: Sequence[str] = ()  # the user's, as passed to Hydra, without those no run reads


def compose_experiments(
    overrides: Sequence[str], folder: Path, *, sweeps: bool = True, sweeps_default: bool = True
) -> list[Composition]:
    """Composes the experiments that `overrides` name (`experiment=a,b`), or the default one, whose
    axes are swept if `sweeps_default`. Raises ConfigurationError for any mistake, and for a sweep
    unless `sweeps`."""
    with _hydra(folder):
        names_of_groups = groups(folder)
        words = [_quote_digits(word, names_of_groups) for word in complete(overrides)]
        parsed = _parse(words)
        for override in parsed:
            if override.is_sweep_override() and not sweeps:
                several = Said("several_values")
                raise ConfigurationError(of_source(override.input_line or "", several))
        names: list[str] = []
        rest: list[Override] = []
        for override in parsed:
            if override.key_or_group == "experiment":
                names += checks.choices_of(override)
            else:
                rest.append(override)
        for name in names:
            checks.check_choice("experiment", name, folder)
            checks.experiment_file(folder / "experiment" / f"{name}.yaml")
        if not names:
            return [_compose_one([], rest, folder, sweeps and sweeps_default)]
        return [_compose_one([f"experiment={name}"], rest, folder, sweeps) for name in names]


def complete(overrides: Sequence[str]) -> list[str]:
    """Adds what users may omit: `model=own` for `model._target_=…`, `++` for a key of the user's
    own, and the brackets of `steps`."""
    keys = [override.split("=", 1)[0].lstrip("+~") for override in overrides]
    result = []
    if "model._target_" in keys and "model" not in keys:
        result = ["model=own"]
    for key, override in zip(keys, overrides, strict=True):
        is_open = key.startswith(tuple(f"{prefix}." for prefix in OPEN))
        value = override.partition("=")[2]
        if key == "steps" and not value.startswith("["):
            override = f"steps=[{value}]"  # one measurement, or several with commas, are a list
        if is_open and override[0] not in "+~":
            override = f"++{override}"
        result.append(override)
    return result


def _quote_digits(override: str, names: Collection[str]) -> str:
    """Quotes digits that name a choice of the groups `names`, which Hydra would read as a
    number."""
    key, equals, value = override.partition("=")
    if key not in names:
        return override
    return key + equals + DIGITS.sub(r"'\g<0>'", value)


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    """Sets up Hydra's global state for the block. Turns its errors into ConfigurationError, and
    checks files that Hydra would open without bounds."""
    digests(folder, ".yaml")  # raises if a file cannot be read
    checks.yaml_bounds(folder)
    try:
        store = ConfigStore.instance()
        store.store("keys", defaults())
        for group in groups(folder):
            store.repo.pop(group, None)
            for name, content in derived(folder, group).items():
                store.store(name, content, group=group)
        with initialize_config_dir(version_base="1.3", config_dir=str(folder.resolve())):
            yield
    except ConfigurationError:
        raise
    # Hydra, OmegaConf, ANTLR and YAML do not document which errors they raise.
    except Exception as error:
        for path in sorted(folder.rglob("*.yaml")):
            checks.readable_yaml(path)  # names the file if one is the cause
        message = re.split("See https|Config search path", str(error))[0]
        text = " ".join(message.split()) or type(error).__name__
        raise ConfigurationError(of_source(f"{folder}/", text)) from error


def _parse(overrides: Sequence[str]) -> list[Override]:
    loader = GlobalHydra.instance().config_loader()
    try:
        return OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    except OverrideParseException as error:
        torn = Said("override_not_read")
        raise ConfigurationError(of_source(shortened(error.override), torn)) from error


def _compose_one(
    chosen: Sequence[str], overrides: Sequence[Override], folder: Path, sweeps: bool
) -> Composition:
    shipped = compose("config", overrides=list(chosen), return_hydra_config=True)
    checks.overrides(overrides, _content(shipped), folder)
    sorted_words = _SortedOverrides.of(overrides)
    words = [*chosen, *sorted_words.single]
    composed = shipped
    if sorted_words.single:
        composed = compose("config", overrides=words, return_hydra_config=True)
    choices = {str(key): str(value) for key, value in composed.hydra.runtime.choices.items()}
    experiment = choices["experiment"]
    base = _content(composed)
    sweep: list[Override] = []
    if sweeps:
        params = composed.hydra.sweeper.params or {}
        sweep = _parse([f"{key}={value}" for key, value in params.items()])
        checks.overrides(sweep, base, folder, f"{folder}/experiment/{experiment}.yaml: ")
    axes: dict[str, list[Value]] = {}
    last_by_key = {word.key_or_group: word for word in [*sweep, *overrides]}
    for key, override in last_by_key.items():
        is_swept = override.is_sweep_override() or override in sweep
        if key in groups(folder):
            axes[key] = _options(key, checks.choices_of(override), words, experiment, folder)
        elif is_swept or "." not in key:  # a nested key with one value is in the base
            texts = checks.values_of(override)
            axes[key] = [Value(text, checks.parsed(text)) for text in texts]
    _check_axes(base, axes)
    fixed = sorted_words.fixed
    return Composition(experiment, base, choices, axes, fixed, sorted_words.for_runs)


@dataclass
class _SortedOverrides:
    """The user's overrides: words with one value, words that runs read, and dotted keys with one
    value for all runs."""

    single: list[str] = field(default_factory=list)
    for_runs: list[str] = field(default_factory=list)
    fixed: Content = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Iterable[Override]) -> Self:
        result = cls()
        for word in overrides:
            if not word.get_key_element().startswith(NO_RUNS):
                result.for_runs.append(str(word.input_line))
            if word.is_sweep_override():
                continue
            result.single.append(str(word.input_line))
            key = word.get_key_element().lstrip("+")
            if "." in key:
                result.fixed[key] = checks.parsed(word.get_value_element_as_str())
        return result


def _check_axes(base: Values, axes: Mapping[str, Sequence[Value]]) -> None:
    """Raises ConfigurationError for an invalid value of a key, for keys that conflict, and for too
    many runs."""
    nested = {}
    for key, values in axes.items():
        if "." in key:
            nested[key] = values[0].content
        # Swept keys of a group may be required to complete it.
        if not any(other.startswith(f"{key}.") for other in axes):
            checks.check_values(key, [value.content for value in values])
    checks.composed(base, nested)
    checks.run_counts(base["steps"], axes)


def _options(
    group: str, names: Sequence[str], overrides: Sequence[str], experiment: str, folder: Path
) -> list[Value]:
    """Contents of a group's choices. Composed by Hydra, except for choices that nothing else
    affects, whose line or file is merged directly, which is faster."""
    # Content that all choices share; None if only Hydra can compose this group.
    shared: Any = None
    lines = derived(folder, group)
    with suppress(Exception):  # Hydra reports a file that cannot be read
        keys = [word.partition("=")[0].lstrip("+~") for word in overrides]
        is_overridden = any(key.startswith(f"{group}.") for key in keys)
        if not is_overridden and group not in _loaded(folder / f"experiment/{experiment}.yaml"):
            config = _loaded(folder / "config.yaml").get(group) or {}
            shared = OmegaConf.merge(defaults().get(group, {}), config)
    options = []
    for name in names:
        checks.check_choice(group, name, folder)
        content: Any = None
        with suppress(Exception):  # as above
            if shared is not None:
                path = folder / group / f"{name}.yaml"
                is_plain = name in lines or not BY_HYDRA.search(path.read_text(encoding="utf-8"))
                if is_plain:
                    merged = OmegaConf.merge(shared, lines.get(name) or _loaded(path))
                    content = OmegaConf.to_container(merged)
        if content is None:
            config = compose("config", overrides=[*overrides, f"{group}='{name}'"])
            content = _content(config)[group]
        options.append(Value(name, content))
    return options


def _loaded(path: Path) -> Any:
    """The config in a file, cached until the file changes; callers must not change it."""
    return _read(path, path.stat().st_mtime_ns)


_read = cache(lambda path, changed_ns: OmegaConf.load(path))


def _content(config: DictConfig) -> Content:
    """A composed config as plain dicts and lists, without Hydra's own part."""
    keys = [key for key in config if key != "hydra"]  # includes invalid ones, such as 1.5
    content = OmegaConf.to_container(OmegaConf.masked_copy(config, keys), resolve=True)  # type: ignore[arg-type]
    return cast(Content, content)
