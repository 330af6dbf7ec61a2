"""Runs that may be measured again. They are composed from this checkout's config, never from a
config among the results, which may come from a stranger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError
from mfulab.core.replicates import STANDS_IN
from mfulab.core.said import Said, of_source
from mfulab.lab.planning.keys import Experiment, find_field, group_model, groups
from mfulab.lab.planning.load import CONFIG, load, of_overrides
from mfulab.lab.planning.runs import Run
from mfulab.measurements import manifest

COLLECTED = "+collected"  # suffix of a plan's name that `mfulab collect` has copied
INTERPOLATED = "${"
WORDS = ("steps",)  # keys whose values planning checks against a list


@dataclass
class Again:
    """Planned runs by folder, and the reasons why plans among the results were rejected."""

    runs: dict[str, Run] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def add(self, planned: Sequence[Run], results: Path) -> None:
        """Adds planned runs, and the smaller batches that were measured in place of some of
        them."""
        for run in planned:
            self.runs[run.folder] = run
        for run in planned:
            half = run
            while "batch_size=" in half.name:
                half = half.halved()  # of a batch of 1 the same run, which is added already
                if half.folder in self.runs or not (results / half.folder / STANDS_IN).exists():
                    break
                self.runs[half.folder] = half


def planned(hardware: str, results: Path, config: Sequence[str]) -> Again:
    """Runs of the sweep that `config` describes, in the words of Snakemake's `--config`. If it is
    empty, the runs of all plans of sweeps for `hardware`. Raises ConfigurationError for an invalid
    `config`."""
    again = Again()
    if config:
        for plan in load(_mapping(config)).plans:
            again.add(plan.runs, results)
        return again
    for path in sorted((results / hardware / "plan").glob("*.json")):
        if not path.stem.endswith(COLLECTED):
            _add_plan(path, results, again)
    return again


def _mapping(words: Sequence[str]) -> Mapping[str, str]:
    for word in words:
        if "=" not in word:
            raise ConfigurationError(of_source(f"--sweep {word}", Said("give_as_config")))
    return dict(word.split("=", 1) for word in words)


def _add_plan(path: Path, results: Path, again: Again) -> None:
    """Adds the runs of one plan, from its experiment's name and its overrides; records why if it is
    rejected."""
    try:
        sweep = manifest.read(path)
        for word in sweep.overrides:
            if not is_choice(word):
                raise ConfigurationError(of_source(f"{path}: {word}", Said("not_from_results")))
        overrides = [f"experiment={sweep.experiment}", *sweep.overrides]
        for plan in of_overrides(overrides).plans:
            again.add(plan.runs, results)
    except (FileNotFoundError, UnreadableError, ConfigurationError) as error:
        again.refused.append(str(error))


def is_choice(word: str) -> bool:
    """True for an override that cannot name code or a file: a choice of a group, a number, a
    switch, or a word from a fixed set or pattern."""
    key, equals, value = word.partition("=")
    if not equals or INTERPOLATED in value:
        return False
    if key in WORDS or key in groups(CONFIG):
        return True
    _, found = find_field(Experiment, key.split("."))
    if found is None or group_model(found.annotation) is not None:
        return False
    return _is_closed(found.annotation, found.metadata)


def _is_closed(annotation: Any, metadata: Sequence[Any]) -> bool:
    """True for a type whose values are numbers, switches, or words from a list or pattern."""
    if annotation is str:
        return any(getattr(constraint, "pattern", None) for constraint in metadata)
    inner = getattr(annotation, "__metadata__", None)
    if inner is not None:
        constraints = list[object]()
        for item in inner:
            constraints.extend(getattr(item, "metadata", [item]))
        return _is_closed(get_args(annotation)[0], constraints)
    if annotation in (int, float, bool, type(None)):
        return True
    parts = get_args(annotation)
    if not parts or annotation is Any or getattr(annotation, "__origin__", None) is dict:
        return False
    if all(isinstance(part, str) for part in parts):  # a Literal
        return True
    return all(_is_closed(part, ()) for part in parts)
