"""Runs of an experiment: a run is a measurement with the part of the config that it reads, and the
rows it joins."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mfulab.core.configs import StepConfig, put
from mfulab.core.errors import ConfigurationError, whole_sentence
from mfulab.core.files import UnreadableError, digest, found_files
from mfulab.core.formats import format_name
from mfulab.core.json_text import parse_json
from mfulab.core.parts import Content, Values, pick_all, pick_present
from mfulab.core.printing import say
from mfulab.core.replicates import base_name, halved, numbered
from mfulab.core.said import Said, of_source
from mfulab.core.terminal_language import in_words
from mfulab.device import ByKind, is_gpu
from mfulab.lab.planning.identity import identity
from mfulab.lab.planning.naming import run_name
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.timing.pace import SHORT

if TYPE_CHECKING:  # composing imports Hydra, which a remembered plan does without
    from mfulab.lab.planning.composition import Composition

MEMORY = "memory"
REPLICATES = ByKind(cpu=3, gpu=2)
SMALL_BYTES = 24e9  # of a GPU's memory: below it a batch that fills a large device does not fit
CEILING_REPLICATES = ByKind(
    cpu=4, gpu=2
)  # every MFU divides by a ceiling, and a CPU's is the best of its processes
EXAMPLE = "examples/small_cnn.pt.trace.json.gz"  # shipped, and read where no trace is given
ENDINGS = (
    ".json",
    ".json.gz",
    ".sqlite",
    ".xplane.pb",
)  # as mfulab.measurements.read_trace.reader, without numpy


@dataclass(frozen=True)
class Run:
    """One planned run: its measurement (`step`), name, folder, config as `text`, and what its row
    is joined with."""

    step: str
    name: str
    folder: str
    text: str
    needs: Mapping[str, str] = field(
        default_factory=dict
    )  # flops, compute, memory: the folder of each run to join
    target: str | None = None  # dotted path of the model or kernel that the run measures

    @property
    def config(self) -> Content:
        """Keys and values of the run, as its process reads them."""
        return parse_json(self.text)

    def replicate(self, number: int) -> Run:
        """The process of this run with that number, as a plan of as many would hold it."""
        text = config_text({**self.config, "replicate": number})
        name = numbered(base_name(self.name), number)
        folder = numbered(base_name(self.folder), number)
        return replace(self, name=name, folder=folder, text=text)

    def halved(self) -> Run:
        """Run with half its batch, as it is tried where the whole one does not fit."""
        text = config_text({**self.config, "batch_size": max(1, self.config["batch_size"] // 2)})
        return replace(self, name=halved(self.name), folder=halved(self.folder), text=text)

    @property
    def manifest(self) -> Content:
        """Entry in the manifest: folder, digest of the config, and folders of the rows to join with
        this one."""
        ceilings = {key: f"results/{folder}" for key, folder in self.needs.items()}
        entry = {"step": self.step, "run": self.name, "folder": f"results/{self.folder}"}
        entry["config_digest"] = identity(self.step, self.text)
        joined = {"flops_folder": ceilings.pop("flops", None), "ceilings": ceilings}
        return entry | {key: folders for key, folders in joined.items() if folders}


@dataclass(frozen=True)
class Plan:
    """Runs of one experiment on one device, and what was left out for what reason."""

    experiment: str
    hardware: str
    runs: Sequence[Run]
    excluded: Sequence[Mapping[str, str]]
    language: str = "en"  # of the report; no run reads it
    overrides: Sequence[str] = ()  # what the user gave for these runs, beside the experiment
    seed: int = 0  # of the order in which replicates are measured
    time_limit_s: float = 0  # of runs of whose config it is no part; 0: the default
    shown: str = "planned"  # by the report: these runs, or all that were ever measured
    text: str | None = None  # of the seminar, whose slides are drawn
    recorded: str | None = None  # machine that the report shows alone, without a run
    budget_min: float | None = None  # of wall time; no run reads it
    first: Sequence[
        Sequence[str]
    ] = ()  # folders of the runs that each rule of the key `first` holds for

    @property
    def manifest_path(self) -> str:
        """Path of the manifest, below the results."""
        return f"{self.hardware}/plan/{self.experiment}.json"

    @property
    def manifest(self) -> str:
        """JSON for the tables: each run's row, config and joins; `overrides` are for recordings."""
        values = {
            "experiment": self.experiment,
            "hardware": self.hardware,
            "overrides": list(self.overrides),
        }
        runs = [run.manifest for run in self.runs]
        return json.dumps({**values, "runs": runs, "excluded": list(self.excluded)}) + "\n"


def all_runs(plans: Iterable[Plan]) -> Iterator[Run]:
    """Yields the runs of several plans."""
    for plan in plans:
        yield from plan.runs


def plan(
    composed: Composition,
    hardware: str,
    device: str,
    emulated: Container[str] = (),
    memory_bytes: float | None = None,
) -> Plan:
    """Expands a composed experiment into validated runs on a device of kind `device`. Raises
    ConfigurationError."""
    planner = _Planner(composed, hardware, device, emulated, memory_bytes)
    base = composed.base
    report = base["report"]
    for step in () if report.get("recorded") else base["steps"]:
        for combination in planner.combinations(step):
            planner.add(step, combination)
    if planner.runs:
        planner.append(
            "environment", _validated("environment", {"device": planner.base["device"]}), {}
        )
    limits = [value.content for value in composed.axes.get("timing.time_limit_s", ())]
    return Plan(
        composed.experiment,
        hardware,
        list(planner.runs.values()),
        list(planner.excluded.values()),
        language=report["language"],
        overrides=composed.overrides,
        seed=0 if "seed" in composed.axes else base.get("seed", 0),
        time_limit_s=max(limits or [base.get("timing", {}).get("time_limit_s", 0)]),
        shown=report["rows"],
        text=report.get("text"),
        recorded=report.get("recorded"),
        budget_min=base.get("budget_min") and float(f"{base['budget_min']:g}"),  # as rows quote it
        first=[folders for _, folders in planner.first],
    )


@dataclass(frozen=True)
class Combination:
    """One value of each axis of a measurement."""

    labels: dict[str, str]  # what exclusions and the key `first` ask
    dotted: Content  # nested keys, for the run's name
    content: Content  # the config

    def of_traces(self) -> Iterator[Combination]:
        """Copies of the combination, one for each trace that it reads."""
        for trace in traces(self.content["trace"]):
            labels = {**self.labels, "trace": trace["name"]}
            yield Combination(labels, self.dotted, {**self.content, "trace": trace})


@dataclass
class _Planner:
    composition: Composition
    hardware: str
    device: str
    emulated: Container[str]
    memory_bytes: float | None
    runs: dict[str, Run] = field(default_factory=dict)
    excluded: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What conditions may ask of the device.
        self.of_device = {"device": self.device, "hardware": self.hardware}
        self.of_device["best_16_bit"] = "fp16" if "bf16" in self.emulated else "bf16"
        self.of_device["is_small"] = str(
            self.memory_bytes is not None and self.memory_bytes < SMALL_BYTES
        )
        # A format that the user named is measured in full.
        named = any(override.startswith("precision") for override in self.composition.overrides)
        self.sweeps_precision = "precision" in self.composition.axes and not named
        base = self.composition.base
        # Each rule of the key `first`, with the folders of the runs for which it holds.
        self.first: list[tuple[Values, list[str]]] = [(rule, []) for rule in base.get("first", ())]
        # A given peak belongs to the ceilings alone: it is a denominator and must not re-measure
        # what it divides.
        self.peaks = {**base["device"], "name": self.device, "type": self.device}
        device = {**self.peaks, "peak_tflop_s": {}}
        given_peaks = self.peaks["peak_tflop_s"]
        self.base: Content = {**base, "device": device, "trace_peaks": given_peaks}
        self.short = SHORT[self.device] if base.get("short_processes") else {}

    def combinations(self, step: str) -> Iterator[Combination]:
        """Combinations of a measurement's axes."""
        fields = MEASUREMENTS[step].config.model_fields
        every = self.composition.axes.items()
        axes = {}
        for key, values in every:
            if key.split(".")[0] in fields:
                axes[key] = values
        base = self._base_of(step)
        common = {}
        for key, choice in self.composition.choices.items():
            if key in fields:
                common[key] = choice
        for key, value in base.items():
            if not isinstance(value, dict):
                common[key] = str(value)
        common |= self.of_device
        for values in itertools.product(*axes.values()):
            labels = dict(common)
            dotted = dict(self.composition.fixed)
            content = dict(base)
            for key, value in zip(axes, values, strict=True):
                labels[key] = value.label
                put(content, key, value.content)
                if "." in key:
                    dotted[key] = value.content
            if "precision" in axes and self.sweeps_precision:
                labels["emulated"] = str(_format(content["precision"]) in self.emulated)
            combination = Combination(labels, dotted, content)
            if step == "read_trace":
                yield from combination.of_traces()
            else:
                yield combination

    def _base_of(self, step: str) -> Content:
        """The part of the base config that a measurement reads, with the times of its pace."""
        fields = MEASUREMENTS[step].config.model_fields
        base = pick_present(self.base, fields)
        if "timing" in base:
            given = {}
            for key, value in base["timing"].items():
                if value is not None:
                    given[key] = value
            base["timing"] = {**base["timing"], **self.short.get(step, {}), **given}
        return base

    def add(self, step: str, combination: Combination) -> None:
        """Adds the runs of a combination and what they are joined with, or notes why not."""
        content = combination.content
        dotted = combination.dotted
        because = self._why_excluded(combination.labels)
        try:
            config = _validated(step, content)
        except ConfigurationError:
            if because:  # what cannot be a run at all is left out without a word
                return
            raise
        if because:
            name = run_name(config, dotted)
            self.excluded[f"{step}/{name}"] = {"step": step, "run": name, "because": because}
            return
        processes = 1
        if "replicate" in type(config).model_fields:  # of others, no machine disturbs the result
            processes = self.base["replicates"] or REPLICATES[self.device]
        needs = self._add_needs(config, content, dotted)
        folder = self.append(step, config, dotted, needs, processes)
        for rule, folders in self.first:
            if holds(rule, combination.labels):
                folders.append(folder)
                break

    def _why_excluded(self, labels: Mapping[str, str]) -> str:
        for rule in self.base["exclude"]:
            if holds(rule, labels):
                return str(rule["because"])
        return ""

    def _add_needs(self, config: StepConfig, content: Values, dotted: Values) -> dict[str, str]:
        """Adds the runs that a run is joined with; gives the folder of each."""
        needs = {}
        if isinstance(config, ProfileStepConfig):
            counted = pick_all(content, MEASUREMENTS["count_flops"].config.model_fields)
            needs["flops"] = self.append("count_flops", _validated("count_flops", counted), dotted)
        if config.on_device and "precision" in content:
            needs["compute"] = self._add_ceiling(content["precision"])
            if isinstance(config, ProfileStepConfig) and config.execution.multiplies_integers:
                self._add_ceiling({"name": "int8", "dtype": "int8"})
            if _format(content["precision"]) in self.emulated:
                # Nothing is divided by an emulated format's own ceiling.
                self._add_ceiling({"name": "fp32", "dtype": "float32"})
            needs["memory"] = self._add_ceiling(None)
        return needs

    def _add_ceiling(self, precision: Mapping[str, Any] | None) -> str:
        content = {
            "ceiling": precision["name"] if precision else MEMORY,
            "precision": precision,
            "device": self.peaks,
        }
        if self.short and is_gpu(self.device):
            content |= {"search": "quick"}
        is_swept = precision is None or _format(precision) not in self.emulated
        processes = 1
        if is_swept:
            processes = self.base["ceiling_replicates"] or CEILING_REPLICATES[self.device]
        return self.append("ceilings", _validated("ceilings", content), {}, processes=processes)

    def append(
        self,
        step: str,
        config: StepConfig,
        dotted: Values,
        needs: Values | None = None,
        processes: int = 1,
    ) -> str:
        """Adds a run per replicate, skipping existing ones; gives the folder of the first."""
        name = run_name(config, dotted)
        place = f"{self.hardware}/{step}" if config.on_device else step
        for replicate in range(1, processes + 1):
            run = numbered(name, replicate)
            if (folder := f"{place}/{run}") not in self.runs:
                content = config.model_dump(mode="json", by_alias=True)
                if replicate > 1:
                    content |= {"replicate": replicate}
                measured = content.get("model") or content.get("kernel") or {}
                self.runs[folder] = Run(
                    step, run, folder, config_text(content), needs or {}, measured.get("_target_")
                )
        return f"{place}/{name}"


def config_text(content: Values) -> str:
    """A run's config as its file holds it."""
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _format(precision: Mapping[str, Any]) -> str | None:
    return format_name(precision["dtype"], precision.get("tf32", False))


def holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """True if each condition of a rule, patterns or lists of them, holds; never for an axis that is
    not read."""

    def is_met(key: str, wanted: Any) -> bool:
        patterns = wanted if isinstance(wanted, list) else [wanted]
        return key in labels and any(fnmatchcase(labels[key], str(pattern)) for pattern in patterns)

    return all(is_met(key, rule[key]) for key in rule if key != "because")


def traces(given: str | None) -> Iterator[dict[str, str]]:
    """Name, path and digest of each file that `trace` means. Raises ConfigurationError if no file
    matches."""
    if not given:
        if not Path(EXAMPLE).exists():
            raise ConfigurationError(of_source(f"trace={given}", Said("give_traces")))
        say(in_words(Said("example_trace_read", {"file": EXAMPLE})), file=sys.stderr)
        given = EXAMPLE
    if not (paths := found_files(str(given), ENDINGS)):
        none = Said("no_file_there", {"endings": ", ".join(ENDINGS)})
        raise ConfigurationError(of_source(f"trace={given}", none))
    endings = [next(filter(path.name.endswith, ENDINGS), path.suffix) for path in paths]
    stems = [
        path.name.removesuffix(end).removesuffix(".pt.trace")
        for path, end in zip(paths, endings, strict=True)
    ]
    counts = Counter(stems)
    for path, stem in zip(paths, stems, strict=True):
        name = re.sub(
            r"[^A-Za-z0-9_.\-]", "-", stem if counts[stem] == 1 else f"{path.parent.name}-{stem}"
        )
        try:
            content = digest(path)
        except (FileNotFoundError, UnreadableError) as error:
            raise ConfigurationError(of_source(f"trace={given}", whole_sentence(error))) from error
        yield {
            "name": re.sub(r"^[^A-Za-z0-9]+", "", name) or "trace",
            "path": str(path),
            "digest": content[:16],
        }


def _validated(step: str, content: Values) -> StepConfig:
    config = MEASUREMENTS[step].config
    try:
        validated = config.model_validate(content)
    except ValidationError as error:
        # With Hydra, which a remembered plan does without.
        from mfulab.lab.planning.checks import told

        raise told(error, config) from error
    for reason in validated.missing():
        raise ConfigurationError(reason)
    return validated
