"""Predicts what runs cost, in seconds of wall time, before any of them: planning's part of a budget.

Constants are of two cores of an AMD EPYC (results/reference/amd-epyc-2c); `runtime.budget` corrects them as runs come
in.
"""

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
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import budget
from mfulab.timing.pace import pace_for

WORKER_S = 6.0  # of the warm worker's imports, for which the first run waits
# A run that is forked from it, and Snakemake's part of it, without warm-up and windows.
START_S = {"environment": 0.6, "ceilings": 2.0, "count_flops": 1.0, "profile_step": 0.4, "bench_matmul": 1.0}
WARM_UP = 0.5  # of the longest warm-up: most steps are steady before
OTHER_S = 3.0  # of other measurements
STEPS_S = 1.0  # of a model whose FLOPs or ceiling are not known yet
# Of a model, in the process that measures it, where they are too long for the windows to hold several. The FLOPs of
# decoding are those of its prefill, which is done once.
STEPS = {"training": 17, "decoding": 1}
OTHER_STEPS = 7
COMPILE_S = {"compile": 18.0, "numba": 0.9}
FIGURES = {"profile_step": 16, "bench_matmul": 5}
OTHER_FIGURES, FIGURE_S, PAGE_S, FIRST_PAGE_S = 2, 1.1, 9.0, 6.0  # PAGE_S: with Snakemake's starts and its end


class Sweep:
    """Time of one command: budget, what comes first, estimate. Raises ConfigurationError if the ceilings need more."""

    def __init__(self, plans: Sequence[Plan], began: float) -> None:
        self._plans, self._began = plans, began
        budgets = [plan.budget_min or math.inf for plan in plans if plan.runs]
        self.budget_min = max(budgets, default=math.inf)
        self.headline: dict[str, None] = {}  # folders, in order; none without a budget
        self.turns: dict[str, float] = {}  # of first processes, the least work first: between 0.5 and 1
        if self.budget_min < math.inf:
            self.headline = dict.fromkeys(folder for plan in plans for folder in headline(plan))
            first = [run for plan in plans for run in plan.runs if replicate_of(run.name) == 1]
            for step in {run.step for run in first}:
                ordered = sorted((run for run in first if run.step == step), key=_work)
                self.turns |= {run.folder: 1 - place / len(ordered) / 2 for place, run in enumerate(ordered)}
            least = least_s(plans)
            if 60 * self.budget_min < least:
                raise ConfigurationError(
                    f"budget_min={self.budget_min:g}: environment, ceilings and page alone need about {least:.0f} s. "
                    f"Give budget_min={math.ceil(least / 6) / 10:g} or more."
                )
        self.digest = hashlib.sha256(" ".join(self.headline).encode()).hexdigest()[:16]  # of what the headline needs

    def command(self, *more: str) -> str:
        """The command that goes on, with `more` overrides."""
        experiments = ",".join(dict.fromkeys(plan.experiment for plan in self._plans))
        given = [word for word in self._plans[0].overrides if "." not in word.partition("=")[0]]
        dotted = [word for word in self._plans[0].overrides if word not in given]
        words = [f"experiment={experiments}", *given, *([f"overrides={' '.join(dotted)}"] if dotted else []), *more]
        return shlex.join(["snakemake", "--cores", "1", "report", "--config", *words])

    def write(self, due: int) -> None:
        """Leaves the budget for `due` runs where clients find it, with an empty ledger; without a budget, nothing."""
        for path in (budget.PLAN, budget.LEDGER):
            remove(Path(path))
        if self.budget_min < math.inf:
            write_json(Path(budget.PLAN), self._plan(due))

    def _plan(self, due: int) -> dict[str, Any]:
        runs = {run.folder: run for plan in self._plans for run in plan.runs}
        return {
            "begun": self._began,
            "budget_min": self.budget_min,
            "finish_s": finish_s(self._plans),
            "command": self.command("budget_min=null"),
            "due": due,
            "runs": {
                budget.PAGE: {"group": budget.PAGE, "s": FIRST_PAGE_S, "flops": None, "always": True},
                **{folder: cost(run, folder in self.headline and run.step in ALWAYS) for folder, run in runs.items()},
            },
        }

    def estimate_s(self, folders: Sequence[str], at_once: int = 1) -> float:
        """Seconds that the runs in these folders and the page will take, so many at a time."""
        sweep = budget.Budget(self._plan(len(folders)), {})
        return WORKER_S + sum(map(sweep.predicted_s, folders)) / at_once + sweep.plan["finish_s"]


def cost(run: Run, always: bool) -> dict[str, Any]:
    """Gives what predicts a run (`runtime.budget`): seconds known now, its group, and the rows that tell the rest."""
    config = run.config
    kind = (config.get("kernel") or config.get("precision") or {}).get("name", "")
    seconds = START_S.get(run.step, OTHER_S) + (COMPILE_S["numba"] if kind.startswith("numba") else 0)
    found: dict[str, Any] = {"group": f"{run.step} {kind}", "always": always, "flops": None}
    if run.step == "profile_step":
        pace = pace_for(config["device"]["type"], TimingConfig.model_validate(config["timing"]))
        seconds += WARM_UP * pace.warm_up_s + pace.windows * pace.window_s
        seconds += COMPILE_S["compile"] if config["execution"]["mode"] == "compile" else 0
        mode = config["workload"]["mode"]
        passes = ["forward_flops", "backward_flops"][: 2 if mode == "training" else 1]
        found |= {"flops": f"results/{run.needs['flops']}/row.csv", "columns": passes, "default_s": STEPS_S}
        found["steps"] = STEPS.get(mode, OTHER_STEPS)
        found["ceiling"] = f"results/{run.needs.get('compute', '')}/row.csv"
    return found | {"s": seconds}


def finish_s(plans: Iterable[Plan]) -> float:
    """Seconds that tables, figures and page of these plans will take."""
    steps = {run.step for plan in plans for run in plan.runs if run.needs}
    return PAGE_S + FIGURE_S * sum(FIGURES.get(step, OTHER_FIGURES) for step in steps)


def headline(plan: Plan) -> list[str]:
    """Folders for the page's first sentence: environment, first profile_step or the like, what it is joined with."""
    joined = [run for run in plan.runs if "compute" in run.needs and replicate_of(run.name) == 1]
    first = [run for run in joined if (run.step, run.needs["compute"]) == (joined[0].step, joined[0].needs["compute"])]
    needed = [folder for run in first for folder in (*run.needs.values(), run.folder)]
    return list(dict.fromkeys([*(run.folder for run in plan.runs if run.step == "environment"), *needed]))


def least_s(plans: Sequence[Plan]) -> float:
    """Seconds without which there is no page with an MFU: environment, ceilings, and the page."""
    first = {folder for plan in plans for folder in headline(plan)}
    runs = {run.folder: run for plan in plans for run in plan.runs if run.folder in first}
    return WORKER_S + finish_s(plans) + sum(cost(run, True)["s"] for run in runs.values() if run.step in ALWAYS)


ALWAYS = ("environment", "ceilings")  # measured whatever the budget, where the headline needs them


def _work(run: Run) -> float:
    """Work of a run among those of its measurement, by its config alone: samples and passes, or a matmul's size."""
    config = run.config
    sizes = [int(word) for word in str(config.get("size", 1)).split("x")]
    passes = 3 if (config.get("workload") or {}).get("mode") == "training" else 1
    return passes * config.get("batch_size", 1) * math.prod(sizes if len(sizes) > 1 else sizes * 3)
