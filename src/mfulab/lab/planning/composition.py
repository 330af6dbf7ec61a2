"""Hydra's part of planning: an experiment's base config and the values of each axis, each option
composed once."""

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

DIGITS = re.compile(r"(?<![^,(\[\s])\d[\d_]*(?![^,)\]\s])")  # a word of them
BY_HYDRA = re.compile(
    r"@package|\$\{|^defaults:", re.MULTILINE
)  # in a file that only Hydra can compose


@dataclass(frozen=True)
class Value:
    """One value of an axis: how it reads in a run's name and in an exclusion, and what it puts into
    the config."""

    label: str
    content: Any


@dataclass(frozen=True)
class Composition:
    """A composed experiment: the base config, the option chosen in each group, and every swept axis
    by its key."""

    experiment: str
    base: Values
    choices: Mapping[str, str]
    axes: Mapping[str, Sequence[Value]]
    fixed: Values  # dotted keys that the user set once for all runs
    overrides: Sequence[str] = ()  # what the user gave for its runs, as Hydra is told it


def compose_experiments(
    overrides: Sequence[str], folder: Path, *, sweeps: bool = True
) -> list[Composition]:
    """Compositions of the experiments that `overrides` name (`experiment=a,b`). Raises
    ConfigurationError."""
    with _hydra(folder):
        parsed = _parse([_named(override, groups(folder)) for override in complete(overrides)])
        for word in parsed:
            if word.is_sweep_override() and not sweeps:
                several = Said("several_values")
                raise ConfigurationError(of_source(word.input_line or "", several))
        names: list[str] = []
        rest: list[Override] = []
        for word in parsed:
            if word.key_or_group == "experiment":
                names += checks.choices_of(word)
            else:
                rest.append(word)
        for name in names:
            checks.check_choice("experiment", name, folder)
            checks.experiment_file(folder / "experiment" / f"{name}.yaml")
        if not names:
            return [_compose_one([], rest, folder, sweeps)]
        return [_compose_one([f"experiment={name}"], rest, folder, sweeps) for name in names]


def complete(overrides: Sequence[str]) -> list[str]:
    """Adds what goes without saying: `model=own` for `model._target_=…`, and `++` for a key of the
    user's own."""
    keys = [override.split("=", 1)[0].lstrip("+~") for override in overrides]
    result = []
    if "model._target_" in keys and "model" not in keys:
        result = ["model=own"]
    for key, override in zip(keys, overrides, strict=True):
        is_open = key.startswith(tuple(f"{prefix}." for prefix in OPEN))
        if key == "steps" and not override.partition("=")[2].startswith("["):
            # one measurement, or several with commas, are a list
            override = f"steps=[{override.partition('=')[2]}]"
        result.append(f"++{override}" if is_open and override[0] not in "+~" else override)
    return result


def _named(override: str, names: Collection[str]) -> str:
    """Quotes digits that name a choice of the groups `names`, which Hydra would read as a
    number."""
    key, equals, value = override.partition("=")
    return key + equals + (DIGITS.sub(r"'\g<0>'", value) if key in names else value)


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    """Hydra's global state, and its errors in this project's words; it opens what this project
    would not."""
    digests(folder, ".yaml")
    checks.anchors(folder)
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
    except (
        Exception
    ) as error:  # of Hydra, OmegaConf, ANTLR or YAML, which give no promise of theirs
        for path in sorted(folder.rglob("*.yaml")):
            checks.whole_file(path)  # names a file that is the cause
        text = (
            " ".join(re.split("See https|Config search path", str(error))[0].split())
            or type(error).__name__
        )
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
    checks.overrides(overrides, _plain(shipped), folder)
    given = _Given.of(overrides)
    words = [*chosen, *given.once]
    composed = shipped
    if given.once:
        composed = compose("config", overrides=words, return_hydra_config=True)
    choices = {str(key): str(value) for key, value in composed.hydra.runtime.choices.items()}
    experiment = choices["experiment"]
    base = _plain(composed)
    sweep: list[Override] = []
    if sweeps:
        params = composed.hydra.sweeper.params or {}
        sweep = _parse([f"{key}={value}" for key, value in params.items()])
        checks.overrides(sweep, base, folder, f"{folder}/experiment/{experiment}.yaml: ")
    axes: dict[str, list[Value]] = {}
    for key, override in {word.key_or_group: word for word in [*sweep, *overrides]}.items():
        is_swept = override.is_sweep_override() or override in sweep
        if key in groups(folder):
            axes[key] = _options(key, checks.choices_of(override), words, experiment, folder)
        elif is_swept or "." not in key:  # a nested key with one value is in the base
            texts = checks.values_of(override)
            axes[key] = [Value(text, checks.plain(text)) for text in texts]
    _check_axes(base, axes)
    return Composition(experiment, base, choices, axes, given.fixed, given.for_runs)


@dataclass
class _Given:
    """Overrides of the user: words with one value, those that runs read, and dotted keys that are set
    for all runs."""

    once: list[str] = field(default_factory=list)
    for_runs: list[str] = field(default_factory=list)
    fixed: Content = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Iterable[Override]) -> Self:
        """Sorts overrides."""
        given = cls()
        for word in overrides:
            if not word.get_key_element().startswith(NO_RUNS):
                given.for_runs.append(str(word.input_line))
            if word.is_sweep_override():
                continue
            given.once.append(str(word.input_line))
            key = word.get_key_element().lstrip("+")
            if "." in key:
                given.fixed[key] = checks.plain(word.get_value_element_as_str())
        return given


def _check_axes(base: Values, axes: Mapping[str, Sequence[Value]]) -> None:
    """Raises ConfigurationError for a bad value of a key, for keys that do not go together, and for
    too many runs."""
    nested = {}
    for key, values in axes.items():
        if "." in key:
            nested[key] = values[0].content
        # A group's swept keys may be what completes it.
        if not any(other.startswith(f"{key}.") for other in axes):
            checks.check_values(key, [value.content for value in values])
    checks.whole(base, nested)
    checks.runs(base["steps"], axes)


def _options(
    group: str, names: Sequence[str], overrides: Sequence[str], experiment: str, folder: Path
) -> list[Value]:
    """Contents of a group's choices: by Hydra, but of a group that nothing else touches by lines
    and files alone."""
    # by the group's choices, where a choice is nothing but that and its own line or file
    shared: Any = None
    lines = derived(folder, group)
    with suppress(Exception):  # of a file that cannot be read: Hydra says why
        is_touched = any(
            word.partition("=")[0].lstrip("+~").startswith(f"{group}.") for word in overrides
        )
        if not is_touched and group not in _loaded(folder / f"experiment/{experiment}.yaml"):
            shared = OmegaConf.merge(
                defaults().get(group, {}), _loaded(folder / "config.yaml").get(group) or {}
            )
    compositions = []
    for name in names:
        checks.check_choice(group, name, folder)
        content: Any = None
        with suppress(Exception):  # the same
            path = folder / group / f"{name}.yaml"
            if shared is not None and (
                name in lines or not BY_HYDRA.search(path.read_text(encoding="utf-8"))
            ):
                content = OmegaConf.to_container(
                    OmegaConf.merge(shared, lines.get(name) or _loaded(path))
                )
        if content is None:
            content = _plain(compose("config", overrides=[*overrides, f"{group}='{name}'"]))[group]
        compositions.append(Value(name, content))
    return compositions


def _loaded(path: Path) -> Any:
    """The config in a file, read again only if that changed; the caller must not change it."""
    return _read(path, path.stat().st_mtime_ns)


_read = cache(lambda path, changed_ns: OmegaConf.load(path))


def _plain(config: DictConfig) -> Content:
    keys = [key for key in config if key != "hydra"]  # also such as 1.5, which is none
    content = OmegaConf.to_container(OmegaConf.masked_copy(config, keys), resolve=True)  # type: ignore[arg-type]
    return cast(Content, content)
