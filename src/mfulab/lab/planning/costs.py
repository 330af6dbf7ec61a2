"""Predicts what runs cost in seconds, by constants of two cores of an AMD EPYC, an H100 and an H200, before a sweep."""

import hashlib
import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import remove, write_json
from mfulab.core.groups import TimingConfig
from mfulab.core.replicates import replicate_of
from mfulab.device import ByKind, kind_of
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import budget
from mfulab.lab.runtime.forked import drawing_cores
from mfulab.timing.pace import is_short, pace_for

# The warm worker's imports, for which the first run waits. A disk that has read nothing yet doubles it.
WORKER_S = ByKind(cpu=6.0, gpu=12.0)
# A run that is forked from it, and Snakemake's part of it, without warm-up and windows. A GPU's context is made first.
START_S = ByKind(
    cpu={"environment": 0.6, "ceilings": 2.0, "count_flops": 1.0, "profile_step": 0.4, "bench_matmul": 1.0},
    gpu={"environment": 0.6, "ceilings": 20.0, "count_flops": 1.0, "profile_step": 1.2, "bench_matmul": 1.5},
)
QUICK_CEILING_S = 2.5
LONG_TRACE_S = ByKind(cpu=0.0, gpu=4.0)  # of a pace that traces ten steps, and modules in a pass of their own
LONG_MATMUL_S = ByKind(cpu=0.0, gpu=3.5)  # sustained work before each group of calls, and what goes around them
WARM_UP = 0.5  # of the longest warm-up: most steps are steady before
OTHER_S = 3.0  # of other measurements
STEPS_S = 1.0  # of a model whose FLOPs or ceiling are not known yet
# Of a model, in the process that measures it, where they are too long for the windows to hold several. The FLOPs of
# decoding are those of its prefill, which is done once, and reaches more of the ceiling than most steps.
STEPS = {"training": 17, "decoding": 0.7}
OTHER_STEPS = 7
# Of a model, and of kernels by how their names begin: a GPU's rungs are compiled at their first call.
COMPILE_S = {
    **{"numba_cuda_unrolled": 2.7, "numba_cuda": 1.2, "numba": 0.9},
    **{"compile": 18.0, "triton": 1.0, "cuda_": 0.3, "cublas": 0.3},
}
FIGURES = {"profile_step": 16, "bench_matmul": 5}
# PAGE_S: with Snakemake's starts and its end. A figure that a process drew ahead is put into place by its job.
OTHER_FIGURES, FIGURE_S, PLACED_S, FIRST_PAGE_S = 2, 1.1, 0.3, 6.0
PAGE_S = ByKind(cpu=9.0, gpu=13.0)  # a GPU's host has many cores, each of them slower


class Sweep:
    """Time of one command: budget, what comes first, estimate. Raises ConfigurationError if the ceilings need more."""

    def __init__(self, plans: Sequence[Plan], began: float) -> None:
        self._plans, self._began, self.targets = plans, began, ["report"]
        self.budget_min = max((plan.budget_min or math.inf for plan in plans if plan.runs), default=math.inf)
        self.headline: dict[str, None] = {}  # folders, in order; none without a budget
        self.turns: dict[str, float] = {}  # of first processes, the least work first: between 0.5 and 1
        if self.budget_min < math.inf:
            self.headline = dict.fromkeys(folder for plan in plans for folder in headline(plan))
            first = [run for plan in plans for run in plan.runs if replicate_of(run.name) == 1]
            for step in {run.step for run in first}:
                ordered = sorted((run for run in first if run.step == step), key=_work)
                self.turns |= {run.folder: 1 - place / len(ordered) / 2 for place, run in enumerate(ordered)}
            for plan in plans:  # a rule before the next, and before what none names
                for after, folders in enumerate(reversed(plan.first), start=1):
                    self.turns |= {folder: after + self.turns[folder] for folder in folders}
            if 60 * self.budget_min < (least := least_s(plans)):
                needs = f"environment, ceilings and page alone need about {least:.0f} s"
                more = f"Give budget_min={math.ceil(least / 6) / 10:g} or more."
                raise ConfigurationError(f"budget_min={self.budget_min:g}: {needs}. {more}")
        self.digest = hashlib.sha256(" ".join(self.headline).encode()).hexdigest()[:16]  # of what the headline needs

    def command(self, *more: str) -> str:
        """The command that goes on to what was asked for, with `more` overrides."""
        experiments = ",".join(dict.fromkeys(plan.experiment for plan in self._plans))
        overrides = [*self._plans[0].overrides, *more]
        given = [word for word in overrides if "." not in word.partition("=")[0]]
        dotted = " ".join(word for word in overrides if word not in given)
        words = [f"experiment={experiments}", *given, *([f"overrides={dotted}"] if dotted else [])]
        return shlex.join(["snakemake", "--cores", "1", *self.targets, "--config", *words])

    def write(self, due: int) -> None:
        """Leaves the budget for `due` runs where clients find it, with an empty ledger; without a budget, nothing."""
        for path in (budget.PLAN, budget.LEDGER):
            remove(Path(path))
        if self.budget_min < math.inf:
            write_json(Path(budget.PLAN), self._plan(due))

    def _plan(self, due: int) -> dict[str, Any]:
        runs = {budget.PAGE: {"group": budget.PAGE, "s": FIRST_PAGE_S, "flops": None, "always": True}}
        for run in (run for plan in self._plans for run in plan.runs):
            runs[run.folder] = cost(run, run.folder in self.headline and run.step in ALWAYS)
        times = {"begun": self._began, "budget_min": self.budget_min, "finish_s": finish_s(self._plans)}
        return {**times, "command": self.command("budget_min=null"), "due": due, "runs": runs}

    def rest(self, folders: Iterable[str], has_page: bool = True) -> budget.Rest:
        """Gives what is to do: the runs in these folders and, where it is asked for, the page."""
        sweep = budget.Budget(self._plan(0), {})
        runs_s = {folder: sweep.predicted_s(folder) for folder in folders}
        return budget.Rest(runs_s, worker_s(self._plans), sweep.plan["finish_s"] * has_page)


def cost(run: Run, always: bool) -> dict[str, Any]:
    """Gives what predicts a run (`runtime.budget`): seconds known now, its group, and the rows that tell the rest."""
    config = run.config
    kind = (config.get("kernel") or config.get("precision") or {}).get("name", "")
    device = (config.get("device") or {}).get("type", "cpu")
    timing = TimingConfig.model_validate(config.get("timing") or {})
    seconds = QUICK_CEILING_S if config.get("search") == "quick" else START_S[device].get(run.step, OTHER_S)
    seconds += next((took for name, took in COMPILE_S.items() if kind.startswith(name)), 0)
    item: dict[str, Any] = {"group": f"{run.step} {kind}", "always": always, "flops": None}
    if run.step == "bench_matmul":
        seconds += 0 if is_short(device, timing) else LONG_MATMUL_S[device]
    if run.step == "profile_step":
        pace = pace_for(device, timing)
        seconds += WARM_UP * pace.warm_up_s + pace.windows * pace.window_s
        seconds += 0 if is_short(device, timing) else LONG_TRACE_S[device]
        seconds += COMPILE_S["compile"] if config["execution"]["mode"] == "compile" else 0
        mode = config["workload"]["mode"]
        passes = ["forward_flops", "backward_flops"][: 2 if mode == "training" else 1]
        item |= {"flops": f"results/{run.needs['flops']}/row.csv", "columns": passes, "default_s": STEPS_S}
        item["steps"] = STEPS.get(mode, OTHER_STEPS)
        item["ceiling"] = f"results/{run.needs.get('compute', '')}/row.csv"
    return item | {"s": seconds}


def worker_s(plans: Iterable[Plan]) -> float:
    """Seconds until the warm worker has imported what the runs of these plans need."""
    return max((WORKER_S[kind_of(plan.hardware)] for plan in plans if plan.runs), default=0.0)


def finish_s(plans: Sequence[Plan]) -> float:
    """Seconds that tables, figures and page of these plans will take, with as many processes as draw figures."""
    steps = {run.step for plan in plans for run in plan.runs if run.needs}
    figure_s = FIGURE_S if (cores := drawing_cores()) == 1 else FIGURE_S / cores + PLACED_S
    page_s = max((PAGE_S[kind_of(plan.hardware)] for plan in plans if plan.runs), default=PAGE_S["cpu"])
    return page_s + figure_s * sum(FIGURES.get(step, OTHER_FIGURES) for step in steps)


def headline(plan: Plan) -> list[str]:
    """Folders for the page's first sentence: environment, what the sweep names first, and what that is joined with."""
    joined = [run for run in plan.runs if "compute" in run.needs and replicate_of(run.name) == 1]
    named = next(iter(plan.first), ())
    first = [run for run in joined if run.folder in named] or [
        run for run in joined if (run.step, run.needs["compute"]) == (joined[0].step, joined[0].needs["compute"])
    ]
    needed = [folder for run in first for folder in (*run.needs.values(), run.folder)]
    return list(dict.fromkeys([*(run.folder for run in plan.runs if run.step == "environment"), *needed]))


def least_s(plans: Sequence[Plan]) -> float:
    """Seconds without which there is no page with an MFU: environment, ceilings, and the page."""
    first = {folder for plan in plans for folder in headline(plan)}
    runs = {run.folder: run for plan in plans for run in plan.runs if run.folder in first}
    return worker_s(plans) + finish_s(plans) + sum(cost(run, True)["s"] for run in runs.values() if run.step in ALWAYS)


ALWAYS = ("environment", "ceilings")  # measured whatever the budget, where the headline needs them


def _work(run: Run) -> float:
    """Work of a run among those of its measurement, by its config alone: samples and passes, or a matmul's size."""
    config = run.config
    sizes = [int(word) for word in str(config.get("size", 1)).split("x")]
    passes = 3 if (config.get("workload") or {}).get("mode") == "training" else 1
    return passes * config.get("batch_size", 1) * math.prod(sizes if len(sizes) > 1 else sizes * 3)
