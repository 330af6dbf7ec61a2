"""Inputs, resources and priority of the rules that measure, as functions of Snakemake's wildcards.
Imports neither torch nor pandas."""

import atexit
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch, write_text
from mfulab.core.measurement import Measurement
from mfulab.core.parts import Content
from mfulab.core.replicates import previous, replicate_of, turn
from mfulab.core.said import Said
from mfulab.core.terminal_language import error_in_words, in_words
from mfulab.lab.planning import store
from mfulab.lab.planning.costs import Sweep
from mfulab.lab.planning.load import RESULTS
from mfulab.lab.planning.resources import OF_DEVICE, device_resources
from mfulab.lab.planning.rules import own_name
from mfulab.lab.planning.runs import Plan, Run, all_runs
from mfulab.lab.planning.sources import Sources, changed_at, digests, run_sources, write_digests

FIRST = 100  # added to the priority of runs for the page's first sentence


@contextmanager
def exits_with_message() -> Iterator[None]:
    """Ends the process with one sentence for a ConfigurationError or MemoryError in the block."""
    try:
        yield
    except ConfigurationError as error:
        sys.exit(f"mfulab: {error_in_words(error)}")
    except MemoryError:
        sys.exit(f"mfulab: {in_words(Said('no_memory_to_plan'))}")


class Inputs:
    """Files and resources of a sweep's planned runs. While `is_read_only`, as in a dry run,
    temporary files stand in for those that are still to be written."""

    def __init__(self, plans: Sequence[Plan], sweep: Sweep, is_read_only: bool) -> None:
        self.is_read_only = is_read_only
        self.plans = plans
        self.runs: dict[str, Run] = {run.folder: run for run in all_runs(plans)}
        self.planned_manifests = [f"{RESULTS}/{plan.manifest_path}" for plan in plans]
        self._sweep = sweep
        self._states: dict[str, store.State] = {}
        self._changed_at = cache(_changed_at)  # many runs share their sources
        # Rows for the page's first sentence, and files that mark that its page was written and
        # that the budget was spent.
        self.headline_rows = [f"{RESULTS}/{folder}/row.csv" for folder in sweep.headline]
        digest = f"{RESULTS}/plan/{sweep.digest}"
        self.first_page = f"{digest}.page"
        self._refined = f"{digest}.refined"

    @property
    def complete_rows(self) -> list[str]:
        """Paths of the planned runs' rows that exist and are complete."""
        budget_min = self._sweep.budget_min
        return [path for path in self.rows() if store.is_complete(Path(path), budget_min)]

    def rows(self, wildcards: Any = None) -> list[str]:
        """Input function: the row of every planned run; in a dry run, without those whose archived
        results come back."""
        found = []
        for folder in self.runs:
            if self._state(folder) is not store.State.ARCHIVED:
                found.append(f"{RESULTS}/{folder}/row.csv")
        return found

    def of_run(self, measurement: Measurement) -> Callable[[Any], dict[str, str | list[str]]]:
        """Input function for `unpack`: all input files of a run. One function, as Snakemake spends
        longer on calling three than on their files."""
        config = self.planned(f"{RESULTS}/{measurement.folder}/config.json")
        sources = self.sources(measurement.step)
        previous = self.previous(f"{RESULTS}/{measurement.folder}/row.csv")

        def files(wildcards: Any) -> dict[str, str | list[str]]:
            return {
                "config": config(wildcards),
                "sources": sources(wildcards),
                "previous": previous(wildcards),
            }

        return files

    def planned(self, pattern: str) -> Callable[[Any], str]:
        """Input function: the config of a run, at the path that `pattern` gives. In a dry run, a
        temporary file stands in for a new config."""

        def file(wildcards: Any) -> str:
            path = pattern.format(**dict(wildcards.items()))
            if not self.is_read_only:
                return path
            folder = str(Path(path).parent.relative_to(RESULTS))
            if self._state(folder) is store.State.KEPT:
                return path
            return self._scratch("config.json", "")

        return file

    def previous(self, pattern: str) -> Callable[[Any], list[str]]:
        """Input function: for a replicate, the row of the one before it, so that a failed run is
        not repeated."""

        def files(wildcards: Any) -> list[str]:  # not `ancient`: see docs/upstream.md
            run = previous(wildcards.run)
            if run:
                return [pattern.format(**{**dict(wildcards.items()), "run": run})]
            return []

        return files

    def priority(self, measurement: Measurement) -> Callable[[Any], float]:
        """Function for the priority of a run: measurements that others are joined with first, then
        rounds of replicates, each shuffled by the plan's seed."""

        def number(wildcards: Any) -> float:
            run = str(wildcards.run)
            folder = folder_of(measurement.step, wildcards)
            first = 0.0
            if replicate_of(run) == 1:
                first += measurement.priority
            if folder in self._sweep.headline:
                first += FIRST
            return first + self._sweep.turns.get(folder, turn(run, self.plans[0].seed))

        return number

    def early(self, wildcards: Any) -> list[str]:
        """Input function: the first page, if the sweep has a budget and rows for it are still to be
        measured."""
        is_complete = all(
            store.is_complete(Path(row), self._sweep.budget_min) for row in self.headline_rows
        )
        if is_complete:
            return []
        return [self.first_page]

    def refined(self, wildcards: Any) -> list[str]:
        """Input function: a file that marks that the rest of the budget was spent; empty if all
        rows are complete, or without a budget."""
        is_wanted = Path(self._refined).exists() or len(self.complete_rows) < len(self.runs)
        if self._sweep.headline and is_wanted:
            return [self._refined]
        return []

    def manifests(self, wildcards: Any) -> list[str]:
        """Input function: manifests of the planned experiments."""
        if not self.is_read_only:
            return self.planned_manifests
        files = []
        for plan in self.plans:
            files.append(self._written(f"{RESULTS}/{plan.manifest_path}", plan.manifest))
        return files

    def sources(self, step: str) -> Callable[[Any], list[str]]:
        """Input function: one file with the digests of a run's sources, as many input files per run
        slow Snakemake down threefold."""

        @cache
        def file(target: str | None, hardware: str) -> list[str]:
            path, reached = _sources(step, target, hardware)
            if self.is_read_only:
                return [self._written(str(path), digests(reached))]
            write_digests(path, reached)
            return [str(path)]

        @exits_with_message()
        def files(wildcards: Any) -> list[str]:
            run = self.runs.get(folder_of(step, wildcards))
            return file(run.target if run else None, wildcards.get("hardware") or "")

        return files

    def resources(self, measurement: Measurement) -> Content:
        """Snakemake resources of a run: a GPU, or the whole CPU, if it measures a device; minutes
        to reserve on a cluster."""

        def resource(name: str, wildcards: Any) -> Any:
            run = self.runs.get(folder_of(measurement.step, wildcards))
            return device_resources(run, str(wildcards.hardware)).get(name)

        resources: Content = {"runtime": f"{measurement.runtime_min}m"}
        if measurement.on_device:
            resources |= {name: partial(resource, name) for name in OF_DEVICE}
        return resources

    def _state(self, folder: str) -> store.State:
        """State of a run's folder for this plan; KEPT once the plan is written, and for a folder
        that is not planned."""
        if not self.is_read_only or folder not in self.runs:
            return store.State.KEPT
        if folder not in self._states:
            self._states[folder] = store.state(
                self.runs[folder], RESULTS, self.newest, self._sweep.budget_min
            )
        return self._states[folder]

    def newest(self, run: Run) -> float:
        """Time of the last relevant change of a run's sources."""
        hardware = run.folder.partition(run.step)[0].rstrip("/")
        return self._changed_at(run.step, run.target, hardware)

    def _written(self, path: str, text: str) -> str:
        if store.holds(Path(path), text):
            return path
        return self._scratch(path.replace("/", ","), text)

    @cached_property
    def _scratch_folder(self) -> Path:  # outside the project, removed when this process ends
        stack = ExitStack()
        atexit.register(stack.close)
        return stack.enter_context(scratch())

    def _scratch(self, name: str, text: str) -> str:
        path = self._scratch_folder / name
        if not path.exists():
            write_text(path, text)
        return str(path)


def folder_of(name: str, wildcards: Any) -> str:
    """Folder of a run, relative to the results, for a rule's `name`."""
    parts = (wildcards.get("hardware"), own_name(name), wildcards.get("run"))
    return "/".join(filter(None, parts))


def row_of(name: str, wildcards: Any) -> Path:
    """The row that a rule's job writes if the rule measures."""
    return RESULTS / folder_of(name, wildcards) / "row.csv"


def _changed_at(step: str, target: str | None, hardware: str) -> float:
    return changed_at(*_sources(step, target, hardware))


def _sources(step: str, target: str | None, hardware: str) -> tuple[Path, Sources]:
    name = f"{','.join(filter(None, (step, target or 'itself', hardware)))}.txt"
    return RESULTS / "plan/sources" / name, run_sources(step, target, hardware)
