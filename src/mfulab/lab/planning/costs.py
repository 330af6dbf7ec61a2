"""Predicts the seconds that runs take, before a sweep. The constants are from two cores of an AMD
EPYC, an H100 and an H200."""

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
from mfulab.core.said import Said
from mfulab.device import ByKind, is_gpu, kind_of, system
from mfulab.lab.planning.runs import Plan, Run, all_runs
from mfulab.lab.runtime import budget
from mfulab.lab.runtime.forked import drawing_cores
from mfulab.timing.pace import is_short, pace_for

# Imports of the warm worker, for which the first run waits. A cold disk cache doubles it.
WORKER_S = ByKind(cpu=6.0, gpu=12.0)
# A forked run with Snakemake's overhead, without warm-up and windows: the mean of recorded
# processes if there are some. A rough number is enough, as the ledger of finished runs corrects
# it. On a GPU it includes the creation of the context.
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
OTHER_S = 1.0  # the same for other measurements
QUICK_CEILING_S = 2.5
LONG_MATMUL_S = 3.5  # on a GPU: sustained load before each group of calls, with its overhead
WARM_UP = 0.5  # share of the longest warm-up; most steps are steady earlier
STEPS_S = 1.0  # for a model whose FLOPs or ceiling are not known yet
# Number of steps that a process runs if a step is longer than a window. Decoding counts the FLOPs
# of its prefill, which runs once, and at a higher share of the ceiling than most steps.
STEPS = {"training": 17, "decoding": 0.7}
OTHER_STEPS = 7
COMPILE_S = 18.0  # for a model
COMPILED_S = 1.0  # for a kernel
COMPILED = ("numba", "triton", "cuda_")  # prefixes of compiled kernels' names
FIGURES = {"profile_step": 16, "bench_matmul": 5}  # figures that a measurement fills
# PAGE_S includes the start and end of Snakemake. PLACED_S is for a figure that another process has
# drawn ahead and that its job only puts into place.
OTHER_FIGURES = 2
FIGURE_S = 0.5
PLACED_S = 0.3
FIRST_PAGE_S = 6.0
PAGE_S = ByKind(cpu=9.0, gpu=13.0)  # hosts of GPUs have more but slower cores


class Sweep:
    """Time of one command: its budget, the order of its runs, and an estimate. Raises
    ConfigurationError if the budget is too short for the ceilings."""

    def __init__(self, plans: Sequence[Plan], began: float) -> None:
        self._plans = plans
        self._began = began
        self.targets = ["report"]
        budgets = []
        for plan in plans:
            if plan.runs:
                budgets.append(plan.budget_min or math.inf)
        self.budget_min = max(budgets, default=math.inf)
        self.headline: dict[str, None] = {}  # folders, in order; empty without a budget
        self.turns: dict[str, float] = {}  # priority of a run's first process, by folder
        if self.budget_min < math.inf:
            for plan in plans:
                self.headline |= dict.fromkeys(headline(plan))
            self.turns = _turns(plans)
            least = least_s(plans)
            if 60 * self.budget_min < least:
                enough = math.ceil(least / 6) / 10
                raise ConfigurationError(
                    Said("budget_too_short", given=self.budget_min, seconds=least, enough=enough)
                )
        # Names files that belong to this set of headline runs.
        self.digest = hashlib.sha256(" ".join(self.headline).encode()).hexdigest()[:16]

    def command(self, *more: str) -> str:
        """The command that continues this sweep, with `more` overrides."""
        experiments = ",".join(dict.fromkeys(plan.experiment for plan in self._plans))
        overrides = [*self._plans[0].overrides, *more]
        simple = [word for word in overrides if "." not in word.partition("=")[0]]
        dotted = " ".join(word for word in overrides if word not in simple)
        arguments = [f"experiment={experiments}", *simple]
        if dotted:
            arguments.append(f"overrides={dotted}")
        return shlex.join(["snakemake", "--cores", "1", *self.targets, "--config", *arguments])

    def write(self, due: int) -> None:
        """Writes the budget for `due` runs where clients find it, with an empty ledger. Without a
        budget, only removes older files."""
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
        """The work that is left: the runs in these folders, and the page if `has_page`."""
        sweep = budget.Budget(self._plan(0), {})
        runs_s = {folder: sweep.predicted_s(folder) for folder in folders}
        groups = {folder: sweep.plan["runs"][folder]["group"] for folder in runs_s}
        finish_s = sweep.plan["finish_s"] * has_page
        return budget.Rest(runs_s, groups, worker_s(self._plans), finish_s)


def _turns(plans: Sequence[Plan]) -> dict[str, float]:
    """Priority of each first process, by folder: from 0.5 to 1, the least work highest. Runs that a
    rule of the key `first` names get 1 more for each rule from the last up to theirs."""
    by_step = defaultdict[str, list[Run]](list)
    for run in all_runs(plans):
        if replicate_of(run.name) == 1:
            by_step[run.step].append(run)
    turns = {}
    for runs in by_step.values():
        for index, run in enumerate(sorted(runs, key=_work)):
            turns[run.folder] = 1 - index / len(runs) / 2
    for plan in plans:
        for level, folders in enumerate(reversed(plan.first), start=1):
            for folder in folders:
                turns[folder] += level
    return turns


def cost(run: Run, always: bool) -> Content:
    """Data from which `runtime.budget` predicts a run: the seconds known now, its group, and the
    rows that hold the rest."""
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
    """Data that predict the time of a model's steps: the rows of its FLOPs and of its ceiling."""
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
    """Seconds for tables, figures and page of these plans, with as many processes as draw
    figures."""
    steps = set()
    for run in all_runs(plans):
        if run.needs:
            steps.add(run.step)
    cores = drawing_cores()
    figure_s = FIGURE_S if cores == 1 else FIGURE_S / cores + PLACED_S
    figures = sum(FIGURES.get(step, OTHER_FIGURES) for step in steps)
    pages_s = [PAGE_S[kind_of(plan.hardware)] for plan in plans if plan.runs]
    return max(pages_s, default=PAGE_S["cpu"]) + figure_s * figures


def headline(plan: Plan) -> list[str]:
    """Folders of the runs for the page's first sentence: the environment, the first runs of the
    sweep, and the runs that they are joined with."""
    joined = []
    for run in plan.runs:
        if "compute" in run.needs and replicate_of(run.name) == 1:
            joined.append(run)
    named = next(iter(plan.first), ())
    first = [run for run in joined if run.folder in named]
    if not first:
        for run in joined:
            is_same_ceiling = run.needs["compute"] == joined[0].needs["compute"]
            if run.step == joined[0].step and is_same_ceiling:
                first.append(run)
    needed = [run.folder for run in plan.runs if run.step == "environment"]
    for run in first:
        needed += [*run.needs.values(), run.folder]
    return list(dict.fromkeys(needed))


def least_s(plans: Sequence[Plan]) -> float:
    """Seconds that a page with any MFU needs at least: for environment, ceilings, and the page."""
    first = set[str]()
    for plan in plans:
        first.update(headline(plan))
    runs = {}
    for run in all_runs(plans):
        if run.folder in first and run.step in ALWAYS:
            runs[run.folder] = run
    always_s = sum(cost(run, True)["s"] for run in runs.values())
    return worker_s(plans) + finish_s(plans) + always_s


ALWAYS = ("environment", "ceilings")  # measured whatever the budget, if the headline needs them


def _work(run: Run) -> float:
    """Relative work of a run within its measurement, from its config alone: samples × passes, or
    the size of a matmul."""
    config = run.config
    sides = list(map(int, str(config.get("size", 1)).split("x")))
    if len(sides) == 1:  # N stands for N×N×N
        sides *= 3
    passes = 3 if (config.get("workload") or {}).get("mode") == "training" else 1
    return passes * config.get("batch_size", 1) * math.prod(sides)
