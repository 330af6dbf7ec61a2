"""Runs of an experiment. A run is a measurement with the part of the config that it reads, and the
rows that it is joined with."""

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

if TYPE_CHECKING:  # at run time it would import Hydra, which a cached plan does not need
    from mfulab.lab.planning.composition import Composition

MEMORY = "memory"
REPLICATES = ByKind(cpu=3, gpu=2)
SMALL_BYTES = 24e9  # GPU memory below which a batch that fills a large device does not fit
# Every MFU is divided by a ceiling; a CPU's ceiling is the best of its processes.
CEILING_REPLICATES = ByKind(cpu=4, gpu=2)
EXAMPLE = "examples/small_cnn.pt.trace.json.gz"  # read if no trace is given
# As in mfulab.measurements.read_trace.reader, which imports numpy.
ENDINGS = (".json", ".json.gz", ".sqlite", ".xplane.pb")


@dataclass(frozen=True)
class Run:
    """A planned run: its measurement (`step`), name, folder relative to the results, config as JSON
    text, and the runs that it is joined with."""

    step: str
    name: str
    folder: str
    text: str
    # Folder of each run to join with: keys are flops, compute and memory.
    needs: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None  # dotted path of the model or kernel that the run measures

    @property
    def config(self) -> Content:
        """Keys and values of the run, as its process reads them."""
        return parse_json(self.text)

    def replicate(self, number: int) -> Run:
        """Replicate `number` of this run, as a plan with that many replicates holds it."""
        text = config_text({**self.config, "replicate": number})
        name = numbered(base_name(self.name), number)
        folder = numbered(base_name(self.folder), number)
        return replace(self, name=name, folder=folder, text=text)

    def halved(self) -> Run:
        """The run with half its batch size, which is tried if the full batch does not fit."""
        text = config_text({**self.config, "batch_size": max(1, self.config["batch_size"] // 2)})
        return replace(self, name=halved(self.name), folder=halved(self.folder), text=text)

    @property
    def manifest(self) -> Content:
        """Entry in the manifest: folder, digest of the config, and folders of the rows to join with
        this one."""
        ceilings = {key: f"results/{folder}" for key, folder in self.needs.items()}
        flops_folder = ceilings.pop("flops", None)
        entry: Content = {"step": self.step, "run": self.name, "folder": f"results/{self.folder}"}
        entry["config_digest"] = identity(self.step, self.text)
        if flops_folder:
            entry["flops_folder"] = flops_folder
        if ceilings:
            entry["ceilings"] = ceilings
        return entry


@dataclass(frozen=True)
class Plan:
    """Runs of one experiment on one device, and the excluded ones with the reasons."""

    experiment: str
    hardware: str
    runs: Sequence[Run]
    excluded: Sequence[Mapping[str, str]]
    language: str = "en"  # of the report; no run reads it
    overrides: Sequence[str] = ()  # by the user, without the experiment
    seed: int = 0  # for the order in which replicates are measured
    time_limit_s: float = 0  # for runs whose config has none; 0: the default
    shown: str = "planned"  # rows in the report: `planned`, or `all` that were ever measured
    text: str | None = None  # of the seminar, whose slides are drawn
    recorded: str | None = None  # the only machine in the report, without any run
    budget_min: float | None = None  # of wall time; no run reads it
    # Folders of the runs that match each rule of the key `first`.
    first: Sequence[Sequence[str]] = ()

    @property
    def manifest_path(self) -> str:
        """Path of the manifest, relative to the results."""
        return f"{self.hardware}/plan/{self.experiment}.json"

    @property
    def manifest(self) -> str:
        """JSON for the tables: each run's row, config and joins. Recordings keep the
        `overrides`."""
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
    """Expands a composed experiment into validated runs on a device of kind `device` (cpu, gpu).
    `emulated` are formats that the device only emulates. Raises ConfigurationError for an invalid
    run."""
    planner = _Planner(composed, hardware, device, emulated, memory_bytes)
    base = composed.base
    report = base["report"]
    steps = [] if report.get("recorded") else base["steps"]
    for step in steps:
        for combination in planner.combinations(step):
            planner.add(step, combination)
    if planner.runs:
        environment = _validated("environment", {"device": planner.base["device"]})
        planner.append("environment", environment, {})
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
        # Rounded as rows state it.
        budget_min=base.get("budget_min") and float(f"{base['budget_min']:g}"),
        first=[folders for _, folders in planner.folders_by_first_rule],
    )


@dataclass(frozen=True)
class Combination:
    """One value of each axis of a measurement."""

    labels: dict[str, str]  # that the rules of the keys `exclude` and `first` match
    dotted: Content  # nested keys, for the run's name
    content: Content  # the config

    def for_each_trace(self) -> Iterator[Combination]:
        """Yields a copy of the combination for each trace that it reads."""
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
        # Facts of the device that rules may match.
        is_small = self.memory_bytes is not None and self.memory_bytes < SMALL_BYTES
        self.device_labels = {
            "device": self.device,
            "hardware": self.hardware,
            "best_16_bit": "fp16" if "bf16" in self.emulated else "bf16",
            "is_small": str(is_small),
        }
        # Rules do not exclude an emulated format that the user named.
        is_named = any(word.startswith("precision") for word in self.composition.overrides)
        self.sweeps_precision = "precision" in self.composition.axes and not is_named
        base = self.composition.base
        # Each rule of the key `first`, with the folders of the runs that match it.
        self.folders_by_first_rule: list[tuple[Values, list[str]]] = [
            (rule, []) for rule in base.get("first", ())
        ]
        # Only ceilings keep a given peak: it is a denominator, so that a change of it must not
        # measure the numerators again.
        self.device_with_peaks = {**base["device"], "name": self.device, "type": self.device}
        device = {**self.device_with_peaks, "peak_tflop_s": {}}
        given_peaks = self.device_with_peaks["peak_tflop_s"]
        self.base: Content = {**base, "device": device, "trace_peaks": given_peaks}
        self.short_timing = SHORT[self.device] if base.get("short_processes") else {}

    def combinations(self, step: str) -> Iterator[Combination]:
        """Yields all combinations of a measurement's axes."""
        fields = MEASUREMENTS[step].config.model_fields
        axes = {}
        for key, values in self.composition.axes.items():
            if key.split(".")[0] in fields:
                axes[key] = values
        base = self._base_of(step)
        common = pick_present(self.composition.choices, fields)
        for key, value in base.items():
            if not isinstance(value, dict):
                common[key] = str(value)
        common |= self.device_labels
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
                yield from combination.for_each_trace()
            else:
                yield combination

    def _base_of(self, step: str) -> Content:
        """The part of the base config that a measurement reads, with the times of short processes
        filled in."""
        fields = MEASUREMENTS[step].config.model_fields
        base = pick_present(self.base, fields)
        if "timing" in base:
            timing = base["timing"]
            given = {key: value for key, value in timing.items() if value is not None}
            base["timing"] = {**timing, **self.short_timing.get(step, {}), **given}
        return base

    def add(self, step: str, combination: Combination) -> None:
        """Adds the runs of a combination and those to join with, or records why it is excluded."""
        content = combination.content
        dotted = combination.dotted
        because = self._why_excluded(combination.labels)
        try:
            config = _validated(step, content)
        except ConfigurationError:
            if because:  # an invalid combination that is excluded anyway is not reported
                return
            raise
        if because:
            name = run_name(config, dotted)
            self.excluded[f"{step}/{name}"] = {"step": step, "run": name, "because": because}
            return
        processes = 1
        if "replicate" in type(config).model_fields:  # other results do not depend on the machine
            processes = self.base["replicates"] or REPLICATES[self.device]
        needs = self._add_needs(config, content, dotted)
        folder = self.append(step, config, dotted, needs, processes)
        for rule, folders in self.folders_by_first_rule:
            if holds(rule, combination.labels):
                folders.append(folder)
                break

    def _why_excluded(self, labels: Mapping[str, str]) -> str:
        for rule in self.base["exclude"]:
            if holds(rule, labels):
                return str(rule["because"])
        return ""

    def _add_needs(self, config: StepConfig, content: Values, dotted: Values) -> dict[str, str]:
        """Adds the runs that a run is joined with; returns their folders."""
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
            "device": self.device_with_peaks,
        }
        if self.short_timing and is_gpu(self.device):
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
        """Adds a run per replicate unless it exists; returns the folder of the first."""
        name = run_name(config, dotted)
        parent = f"{self.hardware}/{step}" if config.on_device else step
        for replicate in range(1, processes + 1):
            run = numbered(name, replicate)
            folder = f"{parent}/{run}"
            if folder in self.runs:
                continue
            content = config.model_dump(mode="json", by_alias=True)
            if replicate > 1:
                content |= {"replicate": replicate}
            measured = content.get("model") or content.get("kernel") or {}
            target = measured.get("_target_")
            self.runs[folder] = Run(step, run, folder, config_text(content), needs or {}, target)
        return f"{parent}/{name}"


def config_text(content: Values) -> str:
    """A run's config as JSON text, as in its file."""
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _format(precision: Mapping[str, Any]) -> str | None:
    return format_name(precision["dtype"], precision.get("tf32", False))


def holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """True if every condition of a rule, a pattern or a list of patterns, matches the label of its
    axis. False if the measurement does not read an axis of the rule."""

    def is_met(key: str, wanted: Any) -> bool:
        patterns = wanted if isinstance(wanted, list) else [wanted]
        return key in labels and any(fnmatchcase(labels[key], str(pattern)) for pattern in patterns)

    return all(is_met(key, rule[key]) for key in rule if key != "because")


def traces(given: str | None) -> Iterator[dict[str, str]]:
    """Name, path and digest of each file that `trace` means; the shipped example if it is empty.
    Raises ConfigurationError if no file matches."""
    if not given:
        if not Path(EXAMPLE).exists():
            raise ConfigurationError(of_source(f"trace={given}", Said("give_traces")))
        say(in_words(Said("example_trace_read", file=EXAMPLE)), file=sys.stderr)
        given = EXAMPLE
    paths = found_files(str(given), ENDINGS)
    if not paths:
        no_file = Said("no_file_there", endings=", ".join(ENDINGS))
        raise ConfigurationError(of_source(f"trace={given}", no_file))
    stems = list(map(_trace_stem, paths))
    counts = Counter(stems)
    for path, stem in zip(paths, stems, strict=True):
        unique = stem if counts[stem] == 1 else f"{path.parent.name}-{stem}"
        safe = re.sub(r"[^A-Za-z0-9_.\-]", "-", unique)
        try:
            content = digest(path)
        except (FileNotFoundError, UnreadableError) as error:
            raise ConfigurationError(of_source(f"trace={given}", whole_sentence(error))) from error
        yield {
            "name": re.sub(r"^[^A-Za-z0-9]+", "", safe) or "trace",
            "path": str(path),
            "digest": content[:16],
        }


def _trace_stem(path: Path) -> str:
    ending = next(filter(path.name.endswith, ENDINGS), path.suffix)
    return path.name.removesuffix(ending).removesuffix(".pt.trace")


def _validated(step: str, content: Values) -> StepConfig:
    config = MEASUREMENTS[step].config
    try:
        validated = config.model_validate(content)
    except ValidationError as error:
        # Imports Hydra, which a cached plan does not need.
        from mfulab.lab.planning.checks import validation_error

        raise validation_error(error, config) from error
    for reason in validated.missing():
        raise ConfigurationError(reason)
    return validated
