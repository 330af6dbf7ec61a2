"""A command's sweep as the rules see it: its plans, its begin, what it says and how it ends; imports
neither torch nor pandas."""

import atexit
import math
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.language import LANGUAGES
from mfulab.core.parts import Values
from mfulab.core.printing import say
from mfulab.core.said import Said, of_source, said_by
from mfulab.device import identity, is_gpu, kind_of
from mfulab.lab.planning import estimate, store
from mfulab.lab.planning.costs import Sweep
from mfulab.lab.planning.figure_rules import FigureRules
from mfulab.lab.planning.inputs import Inputs, exits_with_message, folder_of
from mfulab.lab.planning.load import RESULTS, asked_of, of_overrides, script, words_of
from mfulab.lab.planning.naming import NO_RUNS
from mfulab.lab.planning.resources import imported
from mfulab.lab.planning.rules import own_name
from mfulab.lab.planning.runs import Plan
from mfulab.lab.runtime import budget, client, devices, lifetime

PAGE = Path("reports/report.html")


def _check_folder() -> None:
    """Raises ConfigurationError where Snakemake cannot work in the current folder."""
    here = Path.cwd()
    records = Path(".snakemake")
    if not os.access(records if records.exists() else here, os.W_OK | os.X_OK):
        raise ConfigurationError(of_source(str(here), Said("folder_not_written")))
    if {"{", "}"} & set(str(here)):
        raise ConfigurationError(of_source(str(here), Said("braces_in_path")))


class Workflow:
    """Plans of Snakemake's config, of which `typed` is `--config` alone. Nothing is written before
    `begin`: scratch files stand in, also in a dry run."""

    @exits_with_message()
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
        # A cluster's job finds all that the main process wrote.
        self.inputs = Inputs(self.plans, self._sweep, is_read_only=is_main)
        self.drawn = FigureRules(self.plans[0].language)
        self.language = self.plans[0].language  # of page and figures: the first experiment's
        text = self.plans[0].text
        recorded = self.plans[0].recorded
        self.slides = [f"reports/slides/{text}_{language}" for language in LANGUAGES if text]
        self.recorded = ["--recorded", recorded] if recorded else []
        # Held by what nothing runs beside.
        self.gpu = int(any(is_gpu(kind_of(plan.hardware)) for plan in self.plans))
        self.other_manifests = self._other_manifests()
        # The option that also shows folders copied from machines without a plan.
        self.unplanned = ["--results", str(RESULTS)] if self.inputs.runs else []

    def _other_manifests(self) -> list[str]:
        """Plans whose finished rows are shown beside ours: other machines' of the same experiments,
        or all."""
        first = self.plans[0]
        is_all = first.shown == "all" and not first.recorded
        same = set()
        for plan in self.plans:
            if self.inputs.runs:
                same.add(plan.experiment)
        others = set[str]()
        for path in RESULTS.glob("*/plan/*.json"):
            if is_all or path.stem in same:
                others.add(str(path))
        return sorted(others.difference(self.inputs.planned_manifests))

    @exits_with_message()
    def begin(self, targets: Collection[str] = ()) -> bool:
        """Takes the results' lock and writes the plan for Snakemake's `targets`; true where one
        before was killed."""
        self._sweep.targets = sorted(targets) or self._sweep.targets
        store.check_writable(RESULTS)
        try:  # before the first run fails
            os.close(devices.open_lock(devices.lock_path("cpu", os.environ)))
        except RuntimeError as error:
            raise ConfigurationError(said_by(error)) from error
        is_left_over = store.take(RESULTS)
        finished = set[str]()
        for plan in self.plans:
            finished |= store.write(plan, RESULTS, self.inputs.newest, self._sweep.budget_min)
        self._planned.remember()
        self._sweep.write(due=len(self.inputs.runs) - len(finished))
        self.inputs.is_read_only = False
        return is_left_over

    def say_estimate(self, jobs: Iterable[Any], gpus: int = 1) -> None:
        """Says how long Snakemake's `jobs` will take, those of GPUs on `gpus` at once; nothing
        where none measures."""
        due = set[str]()
        has_page = False
        for job in jobs:
            due.add(folder_of(job.rule.name, job.wildcards_dict))
            has_page |= own_name(job.rule.name) == "page"
        runs = due & self.inputs.runs.keys()
        if not runs:
            return
        if not all(is_gpu(kind_of(plan.hardware)) for plan in self.plans):
            why = identity.unused()
            if why:
                say(f"mfulab: the CPU is measured, not the GPU. {why}", file=sys.stderr)
        budget.rest = self._sweep.rest(runs, has_page)
        seconds = budget.rest.estimate_s(max(1, gpus * self.gpu))
        say(estimate.in_words(seconds, self._sweep.budget_min), file=sys.stderr)

    def outlook(self, dag: Any) -> str:
        """Says how long a dry run's jobs would take, and what they would ask a cluster for; empty
        without any."""
        batches = defaultdict[Any, list[Any]](list)
        devices = dict[str, int]()
        has_page = False
        for job in dag.needrun_jobs(exclude_finished=False):
            has_page |= own_name(job.rule.name) == "page"
            folder = folder_of(job.rule.name, job.wildcards_dict)
            if folder in self.inputs.runs:
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
            sentences = [
                f"{len(self.inputs.complete_rows)} of {len(self.inputs.runs)} rows are kept"
            ]
            if PAGE.exists() and PAGE.stat().st_mtime >= began:
                sentences.append(f"page: {PAGE.resolve()}")
            sentences.append(f"to go on: {self._sweep.command(*self._beside_runs)}")
            say("\n" + " · ".join(sentences), file=sys.stderr)

        has_page = bool(self.inputs.complete_rows) and any(
            own_name(job.rule.name) == "page" for job in jobs
        )
        if has_page and lifetime.interrupted:
            say("Interrupted: writing the page of what there is", file=sys.stderr)
        return has_page

    @exits_with_message()
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

    def work(self, jobs: Iterable[Any]) -> str:
        """Names what Snakemake's `jobs` do, and what runs import beside torch, as
        `server.modules_for`."""
        if not self.inputs.runs:  # recorded machines alone
            return "report"
        work = "both" if any(own_name(job.rule.name) == "tables" for job in jobs) else "rows"
        return " ".join([work, *imported([run.text for run in self.inputs.runs.values()])])
