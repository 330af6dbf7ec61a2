"""Wall time of a sweep: what runs are predicted to cost and took, whose turn still comes; standard library alone."""

import csv
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mfulab.core.replicates import base_name, replicate_of

PLAN, LEDGER = "results/plan/budget.json", "results/plan/budget.log"
PAGE = "page"  # in the place of a run's folder: the first page, which tells how long the last one will take
LEFT_OUT = "budget_min="  # how the message of a row begins that was not measured for the budget
SHARE = 0.4  # of the ceiling, at which the FLOPs of a model are taken to be computed
LEFT_OUT_S = 0.2  # of a run that is not measured


class Budget:
    """Plan of a sweep's time: `begun`, `budget_min`, `finish_s`, `command`, runs `due`, and each run's cost."""

    def __init__(self, plan: Mapping[str, Any], took: Mapping[str, tuple[str, float, float]]) -> None:
        self.plan = plan
        self._took = took  # by folder: group, seconds predicted, seconds taken
        self.ends_at = float(plan["begun"]) + 60 * float(plan["budget_min"])  # Unix time

    def left_s(self) -> float:
        """Seconds left for measuring: what is left out takes some, and so do tables, figures and page."""
        pages = [seconds / predicted for group, predicted, seconds in self._took.values() if group == PAGE]
        # Runs tell nothing of a page, and the first page, of few rows, not that the last one is shorter.
        reserved = self.plan["finish_s"] * max(1.0, math.prod(pages) ** (1 / (len(pages) + 1)))
        return self.ends_at - time.time() - reserved - LEFT_OUT_S * max(0, self.plan["due"] - len(self._took))

    def limit_s(self, folder: str) -> float | None:
        """Seconds that the run in `folder` may take; None where it is measured whatever it takes."""
        cost = self.plan["runs"].get(folder)
        return None if cost is None or cost["always"] else self.left_s()

    def why_not(self, folder: str) -> str:
        """Reason why the run in `folder` is not measured now; empty where it is."""
        if (left := self.limit_s(folder)) is None or (seconds := self.predicted_s(folder)) <= left:
            return ""
        return self.left_out(f"about {seconds:.0f} s did not fit into {max(0.0, left):.0f} s")

    def left_out(self, why: str) -> str:
        """Message of a run that was not measured, or not to its end, for the budget."""
        return f"{LEFT_OUT}{self.plan['budget_min']:g}: {why}. To measure it: {self.plan['command']}"

    def predicted_s(self, folder: str) -> float:
        """Seconds that a run will take: of a replicate what its first process took, else its cost, corrected."""
        if replicate_of(folder) > 1:
            first = base_name(folder)
            if seconds := self._took.get(first, ("", 0, 0))[2] or _number(f"results/{first}/row.csv", "process_s"):
                return seconds
        cost = self.plan["runs"][folder]
        return _cost_s(cost) * self._ratio(cost["group"])

    def note(self, folder: str, seconds: float) -> None:
        """Adds what a run took to the ledger: its process, where its row says so, without the worker's start."""
        cost = self.plan["runs"].get(folder)
        seconds = _number(f"results/{folder}/row.csv", "process_s") or seconds
        if cost is None or seconds <= 0:
            return
        with open(LEDGER, "a", encoding="utf-8") as file:  # in one write, beside those of other nodes
            file.write(json.dumps([folder, cost["group"], _cost_s(cost), seconds]) + "\n")

    def _ratio(self, group: str) -> float:
        """Geometric mean of what runs took ÷ what was predicted: of all, then the measurement, then the group."""
        ratio = 1.0
        for beginning in ("", group.partition(" ")[0], group):
            alike = [took for took in self._took.values() if took[0].startswith(beginning) and took[0] != PAGE]
            logarithms = [math.log(seconds / predicted) for _, predicted, seconds in alike]
            ratio = math.exp((sum(logarithms) + math.log(ratio)) / (len(alike) + 1))
        return ratio


class Rest:
    """Rest of a sweep, by the predictions of its estimate, and by how late it is."""

    def __init__(self, runs_s: dict[str, float], worker_s: float, finish_s: float) -> None:
        self.runs_s, self.worker_s, self._finish_s, self._took_s = runs_s, worker_s, finish_s, 0.0
        self._whole_s = worker_s + sum(runs_s.values())

    def estimate_s(self, at_once: int = 1) -> float:
        """Seconds that all of it takes, with so many runs at a time, before any has ended."""
        return self.worker_s + (self._whole_s - self.worker_s) / at_once + self._finish_s

    def after(self, folder: str, seconds: float, elapsed_s: float) -> float:
        """Seconds left once the run in `folder` took so long, `elapsed_s` after the first run began."""
        self._took_s += max(1e-3, seconds)  # of a clock that was set back, too
        self.runs_s.pop(folder, None)
        left_s = sum(self.runs_s.values())
        # At first the estimate counts, at the end the pace: lateness is weighed by the share that has shown it.
        late = (self._took_s - self._whole_s + left_s) / self._whole_s
        return (1 + late) * left_s * elapsed_s / self._took_s + self._finish_s  # runs may go on side by side


rest: Rest | None = None  # of the sweep that this process runs: its plan sets it, its logger tells it


def read() -> Budget | None:
    """The budget of the sweep in this folder; None if it has none."""
    took = {}
    with suppress(OSError), open(LEDGER, encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):  # of another node, half written
                folder, group, predicted, seconds = json.loads(line)
                took[folder] = (group, predicted, seconds)
    with suppress(OSError, ValueError, KeyError, TypeError), open(PLAN, encoding="utf-8") as file:
        return Budget(json.load(file), took)
    return None


def _cost_s(cost: Mapping[str, Any]) -> float:
    """Seconds of a run: `s` for its start, warm-up and windows, and its steps, once FLOPs and ceiling are known."""
    if not cost["flops"]:
        return float(cost["s"])
    flops = sum(_number(cost["flops"], column) for column in cost["columns"])
    ceiling = _number(cost["ceiling"], "measured_tflop_s") * 1e12
    if not flops or not ceiling:
        return float(cost["s"] + cost["default_s"])
    return float(cost["s"] + cost["steps"] * flops / (SHARE * ceiling) + _number(cost["flops"], "process_s"))


def _number(row: str, column: str) -> float:
    try:
        with open(row, newline="", encoding="utf-8") as file:
            return float(next(csv.DictReader(file))[column] or 0)
    except (OSError, ValueError, KeyError, StopIteration, csv.Error):
        return 0.0
