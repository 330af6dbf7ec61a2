"""The planned sweep as the rules see it: paths, and functions of wildcards; imports neither torch
nor pandas."""

import atexit
import math
import os
import re
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch, write_text
from mfulab.core.language import LANGUAGES, Texts
from mfulab.core.measurement import Measurement
from mfulab.core.parts import Content, Values
from mfulab.core.printing import say
from mfulab.core.replicates import previous, replicate_of, turn
from mfulab.device import identity, is_gpu, kind_of
from mfulab.lab.planning import estimate, store
from mfulab.lab.planning.costs import Sweep
from mfulab.lab.planning.load import RESULTS, asked_of, of_overrides, script, words_of
from mfulab.lab.planning.naming import NO_RUNS
from mfulab.lab.planning.resources import OF_DEVICE, device_resources, imported
from mfulab.lab.planning.runs import Plan, Run, all_runs
from mfulab.lab.planning.sources import (
    PACKAGE,
    Sources,
    changed_at,
    closure,
    digests,
    run_sources,
    write_digests,
)
from mfulab.lab.runtime import budget, client, devices, lifetime

PAGE = Path("reports/report.html")
FIRST = 100  # added to the priority of what the page's first sentence needs


def _check_folder() -> None:
    """Raises ConfigurationError where Snakemake cannot work in the current folder."""
    here = Path.cwd()
    records = Path(".snakemake")
    if not os.access(records if records.exists() else here, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{here}: cannot be written, not even for a dry run. Work in one that can be."
        )
    if {"{", "}"} & set(str(here)):
        raise ConfigurationError(
            f"{here}: Snakemake allows no braces in a path. Move or rename this folder."
        )


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        sys.exit(f"mfulab: {error}")
    except MemoryError:
        sys.exit(
            "mfulab: too little memory to plan the sweep: raise ulimit -v, or end other programs."
        )


class Workflow:
    """Plans of Snakemake's config, of which `typed` is `--config` alone. Nothing is written before
    `begin`: scratch files stand in, also in a dry run."""

    @_told_in_one_line()
    def __init__(
        self,
        config: Values,
        is_main: bool = True,
        typed: Values | None = None,
    ) -> None:
        began = time.time() - time.process_time()  # Snakemake's start is part of the command
        _check_folder()
        overrides = asked_of(config, typed=typed)
        self._planned = of_overrides(overrides)
        # The command's own words, by which a later command of the sweep plans the same runs.
        self.words = words_of(overrides)
        self._sweep = Sweep(self._planned.plans, began)
        self._beside_runs = [word for word in overrides if word.lstrip("+~").startswith(NO_RUNS)]
        self.plans: Sequence[Plan] = self._planned.plans
        self._is_read_only = is_main  # a cluster's job finds all that the main process wrote
        self._runs: dict[str, Run] = {run.folder: run for run in all_runs(self.plans)}
        self._states: dict[str, store.State] = {}
        self._changed_at = cache(_changed_at)  # once for the many runs that share their sources
        self.language = self.plans[0].language  # of page and figures: the first experiment's
        text = self.plans[0].text
        recorded = self.plans[0].recorded
        self.slides = [f"reports/slides/{text}_{language}" for language in LANGUAGES if text]
        self.recorded = ["--recorded", recorded] if recorded else []
        # Held by what nothing runs beside.
        self.gpu = int(any(is_gpu(kind_of(plan.hardware)) for plan in self.plans))
        self.planned_manifests = [f"{RESULTS}/{plan.manifest_path}" for plan in self.plans]
        self.other_manifests = self._other_manifests()
        # The option that also shows folders copied from machines without a plan.
        self.unplanned = ["--results", str(RESULTS)] if self._runs else []
        # What the page's first sentence needs, and files that say that a page of it was written,
        # and the budget spent.
        self.headline_rows = [f"{RESULTS}/{folder}/row.csv" for folder in self._sweep.headline]
        digest = f"{RESULTS}/plan/{self._sweep.digest}"
        self.first_page = f"{digest}.page"
        self._refined = f"{digest}.refined"

    def _other_manifests(self) -> list[str]:
        """Plans whose finished rows are shown beside ours: other machines' of the same experiments,
        or all."""
        first = self.plans[0]
        is_all = first.shown == "all" and not first.recorded
        same = set()
        for plan in self.plans:
            if self._runs:
                same.add(plan.experiment)
        others = set[str]()
        for path in RESULTS.glob("*/plan/*.json"):
            if is_all or path.stem in same:
                others.add(str(path))
        return sorted(others.difference(self.planned_manifests))

    @_told_in_one_line()
    def begin(self, targets: Collection[str] = ()) -> bool:
        """Takes the results' lock and writes the plan for Snakemake's `targets`; true where one
        before was killed."""
        self._sweep.targets = sorted(targets) or self._sweep.targets
        store.check_writable(RESULTS)
        try:  # before the first run fails
            os.close(devices.open_lock(devices.lock_path("cpu", os.environ)))
        except RuntimeError as error:
            raise ConfigurationError(str(error)) from error
        is_left_over = store.take(RESULTS)
        finished = set[str]()
        for plan in self.plans:
            finished |= store.write(plan, RESULTS, self._newest, self._sweep.budget_min)
        self._planned.remember()
        self._sweep.write(due=len(self._runs) - len(finished))
        self._is_read_only = False
        return is_left_over

    def say_estimate(self, jobs: Iterable[Any], gpus: int = 1) -> None:
        """Says how long Snakemake's `jobs` will take, those of GPUs on `gpus` at once; nothing
        where none measures."""
        due = {_folder(job.rule.name, job.wildcards_dict) for job in jobs}
        runs = due & self._runs.keys()
        if not runs:
            return
        if not all(is_gpu(kind_of(plan.hardware)) for plan in self.plans):
            why = identity.unused()
            if why:
                say(f"mfulab: the CPU is measured, not the GPU. {why}", file=sys.stderr)
        budget.rest = self._sweep.rest(runs, "page" in due)
        seconds = budget.rest.estimate_s(max(1, gpus * self.gpu))
        say(estimate.in_words(seconds, self._sweep.budget_min), file=sys.stderr)

    def outlook(self, dag: Any) -> str:
        """Says how long a dry run's jobs would take, and what they would ask a cluster for; empty
        without any."""
        batches = defaultdict[Any, list[Any]](list)
        devices = dict[str, int]()
        has_page = False
        for job in dag.needrun_jobs(exclude_finished=False):
            has_page |= job.rule.name == "page"
            folder = _folder(job.rule.name, job.wildcards_dict)
            if folder in self._runs:
                batches[dag.get_job_group(job) or job].append(job.resources)
                devices[folder] = job.resources.get("gpu", 0) if self.gpu else 1
        if not batches:
            return ""
        rest = self._sweep.rest(devices, has_page)
        return estimate.outlook(list(batches.values()), devices, rest, bool(self.gpu))

    def shows_what_there_is(self, jobs: Iterable[Any]) -> bool:
        """True where a sweep that was interrupted or failed can still write a page; says how to go
        on at the end."""
        try:
            store.check_writable(RESULTS)
        except ConfigurationError as error:
            say(f"mfulab: {error}", file=sys.stderr)
            return False
        began = time.time()

        @atexit.register
        def say_how_to_go_on() -> None:
            sentences = [f"{len(self.complete_rows)} of {len(self._runs)} rows are kept"]
            if PAGE.exists() and PAGE.stat().st_mtime >= began:
                sentences.append(f"page: {PAGE.resolve()}")
            sentences.append(f"to go on: {self._sweep.command(*self._beside_runs)}")
            say("\n" + " · ".join(sentences), file=sys.stderr)

        has_page = bool(self.complete_rows) and any(job.rule.name == "page" for job in jobs)
        if has_page and lifetime.interrupted:
            say("Interrupted: writing the page of what there is", file=sys.stderr)
        return has_page

    @_told_in_one_line()
    def clear_lock(self) -> None:
        """Forgets the holder of the results' lock; ends the process with one message where it
        lives."""
        store.clear(RESULTS)

    @property
    def warm(self) -> str:
        """Shell functions that work in the warm worker, or without one directly: `measure STEP …` and
        `mfulab COMMAND …`."""
        command = shlex.join([sys.executable, "-S", "-E", client.__file__])
        limit = max((plan.time_limit_s for plan in self.plans), default=0)
        # 137: killed by SIGKILL. Snakemake formats a prefix: braces are doubled.
        again = f'{{{{ [ $? = 137 ] && {command} {client.KILLED} "$@"; }}}}'
        functions = [f'warm() {{{{ {command} "$@" || {again}; }}}}']
        for name, path in {"measure": script("run"), "mfulab": script("command")}.items():
            functions.append(f'{name}() {{{{ warm {shlex.quote(path)} "$@"; }}}}')
        variables = f"{client.TIME_LIMIT}={limit:g}"
        if math.isfinite(self._sweep.budget_min):  # which is this sweep's own
            variables += f" {budget.VARIABLE}={budget.PLAN}"
        return f"export {variables}; {'; '.join(functions)}; "

    @property
    def complete_rows(self) -> list[str]:
        """The rows of planned runs that are there, whole."""
        found = []
        for path in self.rows():
            if store.is_complete(Path(path), self._sweep.budget_min):
                found.append(path)
        return found

    def rows(self, wildcards: Any = None) -> list[str]:
        """An input function: the row of every planned run; in a dry run not of those whose old
        results come back."""
        found = []
        for folder in self._runs:
            if self._state(folder) is not store.State.RESTED:
                found.append(f"{RESULTS}/{folder}/row.csv")
        return found

    def planned(self, pattern: str) -> Callable[[Any], str]:
        """An input function: the config of a run, as `pattern` says; in a dry run a stand-in of now
        for a new one."""

        def file(wildcards: Any) -> str:
            path = Path(pattern.format(**dict(wildcards.items())))
            is_there = self._state(str(path.parent.relative_to(RESULTS))) is store.State.KEPT
            if is_there:
                return str(path)
            return self._scratch("config.json", "")

        return file

    def previous(self, pattern: str) -> Callable[[Any], list[str]]:
        """An input function: of a replicate, the row of the one before, so that a run that failed
        is not repeated."""

        def files(wildcards: Any) -> list[str]:  # not `ancient`: see docs/upstream.md
            run = previous(wildcards.run)
            if run:
                return [pattern.format(**{**dict(wildcards.items()), "run": run})]
            return []

        return files

    def priority(self, measurement: Measurement) -> Callable[[Any], float]:
        """Priority of a run: what others are joined with first, then round by round in an order of
        the plan's seed."""

        def number(wildcards: Any) -> float:
            run = str(wildcards.run)
            folder = _folder(measurement.step, wildcards)
            first = 0.0
            if replicate_of(run) == 1:
                first += measurement.priority
            if folder in self._sweep.headline:
                first += FIRST
            return first + self._sweep.turns.get(folder, turn(run, self.plans[0].seed))

        return number

    def early(self, wildcards: Any) -> list[str]:
        """An input function: the first page, where a sweep with a budget is to measure what it
        needs."""
        is_complete = all(
            store.is_complete(Path(row), self._sweep.budget_min) for row in self.headline_rows
        )
        if is_complete:
            return []
        return [self.first_page]

    def refined(self, wildcards: Any) -> list[str]:
        """An input function: a file that says that what a budget left was spent; none where all
        rows are complete."""
        is_wanted = Path(self._refined).exists() or len(self.complete_rows) < len(self._runs)
        if self._sweep.headline and is_wanted:
            return [self._refined]
        return []

    def manifests(self, wildcards: Any) -> list[str]:
        """An input function: manifests of the planned experiments."""
        if not self._is_read_only:
            return self.planned_manifests
        return [
            self._written(f"{RESULTS}/{plan.manifest_path}", plan.manifest) for plan in self.plans
        ]

    def work(self, jobs: Iterable[Any]) -> str:
        """Names what Snakemake's `jobs` do, and what runs import beside torch, as
        `server.modules_for`."""
        if not self._runs:  # recorded machines alone
            return "report"
        work = "both" if any(job.rule.name == "tables" for job in jobs) else "rows"
        return " ".join([work, *imported([run.text for run in self._runs.values()])])

    def sources(self, step: str) -> Callable[[Any], list[str]]:
        """An input function: a file of digests of a run's sources; many files a run take Snakemake
        thrice as long."""

        @cache
        def file(target: str | None, hardware: str) -> list[str]:
            path, reached = _sources(step, target, hardware)
            if self._is_read_only:
                return [self._written(str(path), digests(reached))]
            write_digests(path, reached)
            return [str(path)]

        @_told_in_one_line()
        def files(wildcards: Any) -> list[str]:
            run = self._runs.get(_folder(step, wildcards))
            return file(run.target if run else None, wildcards.get("hardware") or "")

        return files

    def _state(self, folder: str) -> store.State:
        """State of a run's folder for this plan; `as planned` once that is written."""
        if not self._is_read_only or folder not in self._runs:
            return store.State.KEPT
        if folder not in self._states:
            self._states[folder] = store.state(
                self._runs[folder], RESULTS, self._newest, self._sweep.budget_min
            )
        return self._states[folder]

    def _newest(self, run: Run) -> float:
        """Time of the last change of a run's sources that counts."""
        hardware = run.folder.partition(run.step)[0].rstrip("/")
        return self._changed_at(run.step, run.target, hardware)

    def _written(self, path: str, text: str) -> str:
        if store.holds(Path(path), text):
            return path
        return self._scratch(path.replace("/", ","), text)

    @cached_property
    def _scratch_folder(self) -> Path:  # outside the project, as long as this process lives
        stack = ExitStack()
        atexit.register(stack.close)
        return stack.enter_context(scratch())

    def _scratch(self, name: str, text: str) -> str:
        path = self._scratch_folder / name
        if not path.exists():
            write_text(path, text)
        return str(path)

    def module_sources(self, *modules: str) -> Callable[[Any], list[str]]:
        """An input function: files of modules and of all that they import; `*` is the wildcards'
        figure, or each."""

        def files(wildcards: Any) -> list[str]:
            figures = [wildcards.get("figure")]
            if not figures[0]:
                scripts = (PACKAGE / "lab/report/figures").glob("[!_]*.py")
                figures = [path.stem for path in scripts]
            named: dict[str, None] = {}
            for module in modules:
                named |= dict.fromkeys(module.replace("*", name) for name in figures)
            here = Path.cwd()
            reached = []
            for file in closure(*named):
                is_here = file.is_relative_to(here)
                reached.append(str(file.relative_to(here) if is_here else file))
            return reached

        return files

    def category(self, wildcards: Any) -> str:
        """The figure's section in Snakemake's report: the page's. Its topic is read, as importing
        it imports pandas."""
        code = (PACKAGE / f"lab/report/figures/{wildcards.figure}.py").read_text(encoding="utf-8")
        match = re.search(r'^TOPIC\b.* = "(\w+)"', code, flags=re.MULTILINE)
        if match:
            return Texts(self.language, "page")(f"topic_{match[1]}")
        return wildcards.figure

    def labels(self, wildcards: Any) -> dict[str, str]:
        """Labels of the figure in Snakemake's report: its title and its name."""
        return {"figure": Texts(self.language, wildcards.figure)("title"), "name": wildcards.figure}

    def reading(self, wildcards: Any) -> str:
        """Caption of the figure in Snakemake's report: how to read it."""
        return Texts(self.language, wildcards.figure)("reading")

    def resources(self, measurement: Measurement) -> Content:
        """Resources of a run: a GPU, or the CPU for itself, if it measures one; time for a cluster
        to reserve."""

        def of(name: str, wildcards: Any) -> Any:
            run = self._runs.get(_folder(measurement.step, wildcards))
            return device_resources(run, str(wildcards.hardware)).get(name)

        asked: Content = {"runtime": f"{measurement.runtime_min}m"}
        if measurement.on_device:
            asked |= {name: partial(of, name) for name in OF_DEVICE}
        return asked


def _folder(step: str, wildcards: Any) -> str:
    return "/".join(filter(None, (wildcards.get("hardware"), step, wildcards.get("run"))))


def _changed_at(step: str, target: str | None, hardware: str) -> float:
    return changed_at(*_sources(step, target, hardware))


def _sources(step: str, target: str | None, hardware: str) -> tuple[Path, Sources]:
    name = f"{','.join(filter(None, (step, target or 'itself', hardware)))}.txt"
    return RESULTS / "plan/sources" / name, run_sources(step, target, hardware)
