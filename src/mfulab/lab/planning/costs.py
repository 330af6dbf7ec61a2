"""Predicts what runs cost in seconds, by constants of two cores of an AMD EPYC, an H100 and an
H200, before a sweep."""

import hashlib
import math
import os
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import remove, write_json
from mfulab.core.groups import TimingConfig
from mfulab.core.parts import Content
from mfulab.core.replicates import replicate_of
from mfulab.core.said import Numbers, Said
from mfulab.device import ByKind, is_gpu, kind_of, system
from mfulab.lab.planning.runs import Plan, Run, all_runs
from mfulab.lab.runtime import budget
from mfulab.lab.runtime.forked import drawing_cores
from mfulab.timing.pace import is_short, pace_for

# The warm worker's imports, for which the first run waits. A disk that has read nothing yet doubles
# it.
WORKER_S = ByKind(cpu=6.0, gpu=12.0)
# A run that is forked from it, and Snakemake's part of it, without warm-up and windows: one rough
# number a measurement, as the ledger of what runs took corrects it: the mean of what recorded
# processes took, where there are some. A GPU's context is made first.
START_S = ByKind(
    cpu={
        "environment": 0.6,
        "ceilings": 2.0,
        "profile_step": 0.4,
        "bench_matmul": 1.5,
        "compare_counters": 2.6,
        "number_formats": 1.9,
        "probe_memory": 0.9,
        "quality": 8.0,
        "read_utilization": 9.2,
        "split_model": 23.5,
        "serve_requests": 2.0,
    },
    gpu={
        "environment": 0.6,
        "ceilings": 20.0,
        "profile_step": 1.2,
        "bench_matmul": 1.5,
        "read_utilization": 7.5,
        "split_model": 23.5,
        "serve_requests": 2.0,
    },
)
OTHER_S = 1.0  # of other measurements
QUICK_CEILING_S = 2.5
LONG_MATMUL_S = 3.5  # of a GPU: sustained work before each group of calls, and what goes around
WARM_UP = 0.5  # of the longest warm-up: most steps are steady before
STEPS_S = 1.0  # of a model whose FLOPs or ceiling are not known yet
# Of a model, in the process that measures it, where they are too long for the windows to hold
# several. The FLOPs of decoding are those of its prefill, which is done once, and reaches more of
# the ceiling than most steps.
STEPS = {"training": 17, "decoding": 0.7}
OTHER_STEPS = 7
COMPILE_S = 18.0  # of a model
COMPILED_S = 1.0  # of a kernel
COMPILED = ("numba", "triton", "cuda_")  # how names of compiled kernels begin
FIGURES = {"profile_step": 16, "bench_matmul": 5}
# PAGE_S: with Snakemake's starts and its end. A figure that a process drew ahead is put into place
# by its job.
OTHER_FIGURES = 2
FIGURE_S = 0.5
PLACED_S = 0.3
FIRST_PAGE_S = 6.0
PAGE_S = ByKind(cpu=9.0, gpu=13.0)  # a GPU's host has many cores, each of them slower


class Sweep:
    """Time of one command: budget, what comes first, estimate. Raises ConfigurationError if the
    ceilings need more."""

    def __init__(self, plans: Sequence[Plan], began: float) -> None:
        self._plans = plans
        self._began = began
        self.targets = ["report"]
        budgets = []
        for plan in plans:
            if plan.runs:
                budgets.append(plan.budget_min or math.inf)
        self.budget_min = max(budgets, default=math.inf)
        self.headline: dict[str, None] = {}  # folders, in order; none without a budget
        self.turns: dict[str, float] = {}
        if self.budget_min < math.inf:
            for plan in plans:
                self.headline |= dict.fromkeys(headline(plan))
            self.turns = _turns(plans)
            least = least_s(plans)
            if 60 * self.budget_min < least:
                enough = math.ceil(least / 6) / 10
                needs: Numbers = {"given": self.budget_min, "seconds": least, "enough": enough}
                raise ConfigurationError(Said("budget_too_short", needs))
        # Of what the headline needs.
        self.digest = hashlib.sha256(" ".join(self.headline).encode()).hexdigest()[:16]

    def command(self, *more: str) -> str:
        """The command that goes on to what was asked for, with `more` overrides."""
        experiments = ",".join(dict.fromkeys(plan.experiment for plan in self._plans))
        overrides = [*self._plans[0].overrides, *more]
        given = []
        for word in overrides:
            if "." not in word.partition("=")[0]:
                given.append(word)
        dotted = " ".join(word for word in overrides if word not in given)
        arguments = [
            f"experiment={experiments}",
            *given,
            *([f"overrides={dotted}"] if dotted else []),
        ]
        return shlex.join(["snakemake", "--cores", "1", *self.targets, "--config", *arguments])

    def write(self, due: int) -> None:
        """Leaves the budget for `due` runs where clients find it, with an empty ledger; without a
        budget, nothing."""
        for path in (budget.PLAN, budget.LEDGER):
            remove(Path(path))
        os.environ.pop(budget.VARIABLE, None)
        if self.budget_min < math.inf:
            write_json(Path(budget.PLAN), self._plan(due))
            os.environ[budget.VARIABLE] = budget.PLAN

    def _plan(self, due: int) -> Content:
        runs = {
            budget.PAGE: {"group": budget.PAGE, "s": FIRST_PAGE_S, "flops": None, "always": True}
        }
        for run in all_runs(self._plans):
            runs[run.folder] = cost(run, run.folder in self.headline and run.step in ALWAYS)
        since_s = time.time() - self._began
        times = {
            "begun": self._began,
            "begun_monotonic": time.monotonic() - since_s,
            "boot": system.boot(),
            "budget_min": self.budget_min,
            "finish_s": finish_s(self._plans),
        }
        return {**times, "command": self.command("budget_min=null"), "due": due, "runs": runs}

    def rest(self, folders: Iterable[str], has_page: bool = True) -> budget.Rest:
        """Gives what is to do: the runs in these folders and, where it is asked for, the page."""
        sweep = budget.Budget(self._plan(0), {})
        runs_s = {folder: sweep.predicted_s(folder) for folder in folders}
        groups = {folder: sweep.plan["runs"][folder]["group"] for folder in runs_s}
        finish_s = sweep.plan["finish_s"] * has_page
        return budget.Rest(runs_s, groups, worker_s(self._plans), finish_s)


def _turns(plans: Sequence[Plan]) -> dict[str, float]:
    """Priority of each first process, by folder: between 0.5 and 1, of the least work first; above
    that, by rule, of what the key `first` names."""
    by_step = defaultdict[str, list[Run]](list)
    for run in all_runs(plans):
        if replicate_of(run.name) == 1:
            by_step[run.step].append(run)
    turns = {}
    for runs in by_step.values():
        for index, run in enumerate(sorted(runs, key=_work)):
            turns[run.folder] = 1 - index / len(runs) / 2
    for plan in plans:  # a rule before the next, and before what none names
        for after, folders in enumerate(reversed(plan.first), start=1):
            for folder in folders:
                turns[folder] += after
    return turns


def cost(run: Run, always: bool) -> Content:
    """Gives what predicts a run (`runtime.budget`): seconds known now, its group, and the rows that
    tell the rest."""
    config = run.config
    kind = (config.get("kernel") or config.get("precision") or {}).get("name", "")
    device = (config.get("device") or {}).get("type", "cpu")
    timing = TimingConfig.model_validate(config.get("timing") or {})
    seconds = START_S[device].get(run.step, OTHER_S)
    if config.get("search") == "quick":
        seconds = QUICK_CEILING_S
    if kind.startswith(COMPILED):
        seconds += COMPILED_S
    if run.step == "bench_matmul" and is_gpu(device) and not is_short(device, timing):
        seconds += LONG_MATMUL_S
    item: Content = {"group": f"{run.step} {kind}", "always": always, "flops": None}
    if run.step == "profile_step":
        pace = pace_for(device, timing)
        seconds += WARM_UP * pace.warm_up_s + pace.windows * pace.window_s
        if config["execution"]["mode"] == "compile":
            seconds += COMPILE_S
        item |= _steps(run, config["workload"]["mode"])
    return item | {"s": seconds}


def _steps(run: Run, mode: str) -> Content:
    """Gives what predicts the steps of a model: rows of its FLOPs and of its ceiling."""
    passes = ["forward_flops"]
    if mode == "training":
        passes.append("backward_flops")
    return {
        "flops": f"results/{run.needs['flops']}/row.csv",
        "columns": passes,
        "default_s": STEPS_S,
        "steps": STEPS.get(mode, OTHER_STEPS),
        "ceiling": f"results/{run.needs.get('compute', '')}/row.csv",
    }


def worker_s(plans: Iterable[Plan]) -> float:
    """Seconds until the warm worker has imported what the runs of these plans need."""
    return max((WORKER_S[kind_of(plan.hardware)] for plan in plans if plan.runs), default=0.0)


def finish_s(plans: Sequence[Plan]) -> float:
    """Seconds that tables, figures and page of these plans will take, with as many processes as
    draw figures."""
    steps = set()
    for run in all_runs(plans):
        if run.needs:
            steps.add(run.step)
    figure_s = FIGURE_S if (cores := drawing_cores()) == 1 else FIGURE_S / cores + PLACED_S
    page_s = max(
        (PAGE_S[kind_of(plan.hardware)] for plan in plans if plan.runs), default=PAGE_S["cpu"]
    )
    return page_s + figure_s * sum(FIGURES.get(step, OTHER_FIGURES) for step in steps)


def headline(plan: Plan) -> list[str]:
    """Folders for the page's first sentence: environment, what the sweep names first, and what that
    is joined with."""
    joined = []
    for run in plan.runs:
        if "compute" in run.needs and replicate_of(run.name) == 1:
            joined.append(run)
    named = next(iter(plan.first), ())
    first = [run for run in joined if run.folder in named] or [
        run
        for run in joined
        if (run.step, run.needs["compute"]) == (joined[0].step, joined[0].needs["compute"])
    ]
    needed = []
    for run in plan.runs:
        if run.step == "environment":
            needed.append(run.folder)
    for run in first:
        needed += [*run.needs.values(), run.folder]
    return list(dict.fromkeys(needed))


def least_s(plans: Sequence[Plan]) -> float:
    """Seconds without which there is no page with an MFU: environment, ceilings, and the page."""
    first = set[str]()
    for plan in plans:
        first.update(headline(plan))
    runs = {}
    for run in all_runs(plans):
        if run.folder in first:
            runs[run.folder] = run
    return (
        worker_s(plans)
        + finish_s(plans)
        + sum(cost(run, True)["s"] for run in runs.values() if run.step in ALWAYS)
    )


ALWAYS = ("environment", "ceilings")  # measured whatever the budget, where the headline needs them


def _work(run: Run) -> float:
    """Work of a run among those of its measurement, by its config alone: samples and passes, or a
    matmul's size."""
    config = run.config
    sizes = list(map(int, str(config.get("size", 1)).split("x")))
    passes = 3 if (config.get("workload") or {}).get("mode") == "training" else 1
    return passes * config.get("batch_size", 1) * math.prod(sizes if len(sizes) > 1 else sizes * 3)
