"""Runs that may be measured again: composed anew from this checkout's config, never from a config
that lies among results, which may be a stranger's."""

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

COLLECTED = "+collected"  # ends the name of a plan that `mfulab collect` brought
INTERPOLATED = "${"
WORDS = ("steps",)  # keys of words that planning compares with a list


@dataclass
class Again:
    """Planned runs by folder, and why plans that lie among the results give none."""

    runs: dict[str, Run] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def add(self, planned: Sequence[Run], results: Path) -> None:
        """Adds planned runs, and the smaller batches that were measured in place of some."""
        for run in planned:
            self.runs[run.folder] = run
        for run in planned:
            half = run
            while "batch_size=" in half.name and (smaller := half.halved()).folder != half.folder:
                half = smaller
                if half.folder in self.runs or not (results / half.folder / STANDS_IN).exists():
                    break
                self.runs[half.folder] = half


def planned(hardware: str, results: Path, config: Sequence[str]) -> Again:
    """Runs of the sweep that `config` asks for, as Snakemake's `--config`; without it, those of
    each plan that a sweep left for `hardware`. Raises ConfigurationError for a bad `config`."""
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
    """Adds the runs of one plan by its experiment's name and the choices that it gave beside."""
    try:
        asked = manifest.read(path)
        unfit = []
        for word in asked.overrides:
            if not is_choice(word):
                unfit.append(word)
        if unfit:
            word = f"{path}: {unfit[0]}"
            raise ConfigurationError(of_source(word, Said("not_from_results")))
        overrides = [f"experiment={asked.experiment}", *asked.overrides]
        for plan in of_overrides(overrides).plans:
            again.add(plan.runs, results)
    except (FileNotFoundError, UnreadableError, ConfigurationError) as error:
        again.refused.append(str(error))


def is_choice(word: str) -> bool:
    """True for an override that can name neither code nor a file: a group's choice, a number, a
    switch, or a word of a fixed form."""
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
    """True for a type whose values are numbers, switches, or words of a pattern or list."""
    if annotation is str:
        return any(getattr(each, "pattern", None) for each in metadata)
    inner = getattr(annotation, "__metadata__", None)
    if inner is not None:
        constraints = list[object]()
        for given in inner:
            constraints.extend(getattr(given, "metadata", [given]))
        return _is_closed(get_args(annotation)[0], constraints)
    if annotation in (int, float, bool, type(None)):
        return True
    parts = get_args(annotation)
    if not parts or annotation is Any or getattr(annotation, "__origin__", None) is dict:
        return False
    if all(isinstance(part, str) for part in parts):  # of a Literal
        return True
    return all(_is_closed(part, ()) for part in parts)
