"""A sweep as the rules see it: its plans, its start, its messages and its end. Imports neither
torch nor pandas."""

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
from mfulab.core.terminal_language import error_in_words, in_words, terminal_texts
from mfulab.device import identity, is_gpu, kind_of
from mfulab.lab.planning import estimate, queues, store
from mfulab.lab.planning.costs import Sweep
from mfulab.lab.planning.figure_rules import FigureRules
from mfulab.lab.planning.inputs import Inputs, exits_with_message, folder_of, row_of
from mfulab.lab.planning.load import RESULTS, of_overrides, overrides_of, script, words_of
from mfulab.lab.planning.naming import NO_RUNS
from mfulab.lab.planning.resources import imported
from mfulab.lab.planning.rules import own_name
from mfulab.lab.planning.runs import Plan
from mfulab.lab.runtime import budget, client, devices, lifetime

PAGE = Path("reports/report.html")


def _check_folder() -> None:
    """Raises ConfigurationError if Snakemake cannot work in the current folder."""
    here = Path.cwd()
    records = Path(".snakemake")
    if not os.access(records if records.exists() else here, os.W_OK | os.X_OK):
        raise ConfigurationError(of_source(str(here), Said("folder_not_written")))
    if {"{", "}"} & set(str(here)):
        raise ConfigurationError(of_source(str(here), Said("braces_in_path")))


class Workflow:
    """The plans for Snakemake's config; `typed` is the part given by `--config`. Nothing is written
    before `begin`; until then, and in a dry run, temporary files stand in."""

    @exits_with_message()
    def __init__(
        self,
        config: Values,
        is_main: bool = True,
        typed: Values | None = None,
    ) -> None:
        began = time.time() - time.process_time()  # includes the start of Snakemake
        _check_folder()
        overrides = overrides_of(config, typed=typed)
        self._planned = of_overrides(overrides)
        # Words of `--config` with which another command of the sweep plans the same runs.
        self.words = words_of(overrides)
        self._sweep = Sweep(self._planned.plans, began)
        # Overrides that no run reads, such as the page's language.
        self._page_overrides = [word for word in overrides if word.lstrip("+~").startswith(NO_RUNS)]
        self.plans: Sequence[Plan] = self._planned.plans
        # Before Snakemake looks for rows.
        self._must_wait = queues.left_by_an_earlier_sweep(RESULTS) if is_main else None
        # In a cluster's job, the main process has written the plan already.
        self.inputs = Inputs(self.plans, self._sweep, is_read_only=is_main)
        self.drawn = FigureRules(self.plans[0].language)
        self.language = self.plans[0].language  # of page and figures, from the first experiment
        text = self.plans[0].text
        recorded = self.plans[0].recorded
        self.slides = [f"reports/slides/{text}_{language}" for language in LANGUAGES if text]
        self.recorded = ["--recorded", recorded] if recorded else []
        # GPUs that a rule reserves so that nothing is measured meanwhile: 1 if the runs use GPUs.
        self.gpu = int(any(is_gpu(kind_of(plan.hardware)) for plan in self.plans))
        self.other_manifests = self._other_manifests()
        # Option that also shows folders without a plan, copied from other machines.
        self.unplanned = ["--results", str(RESULTS)] if self.inputs.runs else []

    def _other_manifests(self) -> list[str]:
        """Other plans whose finished rows are shown too: of the same experiments on other machines,
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
    def begin(self, targets: Collection[str] = (), executor: str = "") -> bool:
        """Takes the lock of the results and writes the plan for Snakemake's `targets`. Returns True
        if an earlier sweep was killed. Ends the process if the executor is SLURM and jobs of an
        earlier sweep are still queued."""
        self._sweep.targets = sorted(targets) or self._sweep.targets
        store.check_writable(RESULTS)
        store.check_free(RESULTS)
        queues.refuse(self._must_wait, executor)
        try:  # before the first run fails
            os.close(devices.open_lock(devices.lock_path("cpu", os.environ)))
        except RuntimeError as error:
            raise ConfigurationError(said_by(error)) from error
        is_left_over = store.take(RESULTS)
        if executor == queues.SLURM:
            queues.forget(RESULTS)  # none of those jobs is left
        finished = set[str]()
        for plan in self.plans:
            finished |= store.write(plan, RESULTS, self.inputs.newest, self._sweep.budget_min)
        self._planned.remember()
        self._sweep.write(due=len(self.inputs.runs) - len(finished))
        self.inputs.is_read_only = False
        return is_left_over

    row_of = staticmethod(row_of)

    def is_finished(self, row: Path) -> bool:
        """True for a row that the SLURM sweep which goes on has measured."""
        return queues.is_of_this_sweep(RESULTS, row)

    def say_estimate(self, jobs: Iterable[Any], gpus: int = 1) -> None:
        """Prints how long Snakemake's `jobs` will take, with `gpus` GPU jobs at a time; nothing if
        no job measures."""
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
                text = terminal_texts("sweep")
                say(text("not_the_gpu", why=in_words(why)), file=sys.stderr)
        budget.rest = self._sweep.rest(runs, has_page)
        seconds = budget.rest.estimate_s(max(1, gpus * self.gpu))
        say(estimate.in_words(seconds, self._sweep.budget_min), file=sys.stderr)

    def outlook(self, dag: Any) -> str:
        """Sentence about the time of a dry run's jobs and their request from a cluster; "" if no
        job measures."""
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

    def say_at_exit_how_to_go_on(self) -> None:
        """Prints at exit the rows that an interrupted or failed sweep keeps, and the command that
        continues it. A page that is written from now on is named too."""
        began = time.time()

        @atexit.register
        def say_how_to_go_on() -> None:
            kept, planned = len(self.inputs.complete_rows), len(self.inputs.runs)
            text = terminal_texts("sweep")
            sentences = [text("kept", kept=kept, planned=planned)]
            if PAGE.exists() and PAGE.stat().st_mtime >= began:
                sentences.append(text("page", page=PAGE.resolve()))
            command = self._sweep.command(*self._page_overrides)
            sentences.append(text("go_on", command=command))
            say("\n" + " · ".join(sentences), file=sys.stderr)

    def lacks_page(self, jobs: Iterable[Any]) -> bool:
        """True if an interrupted or failed sweep has rows for a page that is among the `jobs` that
        are left."""
        is_page_due = any(own_name(job.rule.name) == "page" for job in jobs)
        return bool(self.inputs.complete_rows) and is_page_due

    def can_write_or_say_why(self) -> bool:
        """True if the results can be written to; otherwise prints why not."""
        try:
            store.check_writable(RESULTS)
        except ConfigurationError as error:
            say(f"mfulab: {error_in_words(error)}", file=sys.stderr)
            return False
        return True

    def say_interrupted(self) -> None:
        """Prints that a page of the rows so far follows, if the sweep was interrupted."""
        if lifetime.interrupted:
            say(terminal_texts("sweep")("interrupted"), file=sys.stderr)

    @exits_with_message()
    def clear_lock(self) -> None:
        """Clears the lock of the results; ends the process with a message if its holder is
        alive."""
        store.clear(RESULTS)

    @property
    def shell_prefix(self) -> str:
        """Definitions of the shell functions `measure STEP …` and `mfulab COMMAND …`, which run in
        the warm worker, or directly if there is none."""
        command = shlex.join([sys.executable, "-S", "-E", client.__file__])
        limit = max((plan.time_limit_s for plan in self.plans), default=0)
        # 137: killed by SIGKILL. Braces are doubled, as Snakemake formats a shell prefix.
        report_killed = f'{{{{ [ $? = 137 ] && {command} {client.KILLED} "$@"; }}}}'
        functions = [f'warm() {{{{ {command} "$@" || {report_killed}; }}}}']
        for name, path in {"measure": script("run"), "mfulab": script("command")}.items():
            functions.append(f'{name}() {{{{ warm {shlex.quote(path)} "$@"; }}}}')
        variables = f"{client.TIME_LIMIT}={limit:g}"
        if math.isfinite(self._sweep.budget_min):
            variables += f" {budget.VARIABLE}={budget.PLAN}"
        return f"export {variables}; {'; '.join(functions)}; "

    def work(self, jobs: Iterable[Any]) -> str:
        """Names the work of Snakemake's `jobs`, and what runs import in addition to torch, as
        `server.modules_for` takes it."""
        if not self.inputs.runs:  # a report of recorded machines
            return "report"
        work = "both" if any(own_name(job.rule.name) == "tables" for job in jobs) else "rows"
        return " ".join([work, *imported([run.text for run in self.inputs.runs.values()])])
