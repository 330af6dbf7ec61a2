"""Wall time of a sweep: what each run is predicted to cost, what it took, what is left, and whether its turn comes.

With a budget the workflow writes PLAN, and the client of each run adds to LEDGER. Standard library alone: a client
starts in 25 ms.
"""

import csv
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
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
        self._took = dict[str, tuple[str, float, float]]()  # by folder: group, seconds predicted, seconds taken
        # Of seconds taken ÷ predicted, by how groups begin.
        self._count, self._logarithm = Counter[str](), defaultdict[str, float](float)
        self._cells = dict[tuple[str, str], float]()  # of rows, which are whole once they are there
        for folder, run in took.items():
            self._add(folder, *run)
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
            if seconds := self._took.get(first, ("", 0, 0))[2] or self._cell(f"results/{first}/row.csv", "process_s"):
                return seconds
        cost = self.plan["runs"][folder]
        return _cost_s(cost, self._cell) * self._ratio(cost["group"])

    def learn(self, folder: str, seconds: float) -> float:
        """Corrects predictions by what a run took: its process, where its row says so, without the worker's start."""
        cost, seconds = self.plan["runs"].get(folder), _number(f"results/{folder}/row.csv", "process_s") or seconds
        if cost is not None and seconds > 0:
            self._add(folder, cost["group"], _cost_s(cost, self._cell), seconds)
        return seconds

    def note(self, folder: str, seconds: float) -> None:
        """Learns what a run took, and adds it to the ledger."""
        self.learn(folder, seconds)
        if took := self._took.get(folder):
            with open(LEDGER, "a", encoding="utf-8") as file:  # in one write, beside those of other nodes
                file.write(json.dumps([folder, *took]) + "\n")

    def _add(self, folder: str, group: str, predicted: float, seconds: float) -> None:
        self._took[folder] = group, predicted, seconds
        for beginning in _beginnings(group) if group != PAGE else ():
            self._count[beginning] += 1
            self._logarithm[beginning] += math.log(seconds / predicted)

    def _ratio(self, group: str) -> float:
        """Geometric mean of what runs took ÷ what was predicted: of all, then the measurement, then the group."""
        logarithm = 0.0
        for beginning in _beginnings(group):
            logarithm = (self._logarithm[beginning] + logarithm) / (self._count[beginning] + 1)
        return math.exp(logarithm)

    def _cell(self, row: str, column: str) -> float:
        found = self._cells[row, column] = self._cells.get((row, column)) or _number(row, column)
        return found


class Rest:
    """What a sweep still has to do, by the predictions of its estimate, which ended runs correct."""

    def __init__(self, sweep: Budget, due: set[str], worker_s: float, finish_s: float) -> None:
        self._sweep, self._due, self._done_s, self._finish_s = sweep, due, worker_s, finish_s

    def estimate_s(self, at_once: int = 1) -> float:
        """Seconds that all of it takes, with so many runs at a time, before any of them has ended."""
        return self._done_s + self._runs_s() / at_once + self._finish_s

    def after(self, folder: str, seconds: float, elapsed_s: float) -> float:
        """Seconds left once the run in `folder` took so long, at the pace of the `elapsed_s` since the first began."""
        self._due.discard(folder)
        self._done_s += self._sweep.learn(folder, seconds)
        return elapsed_s / self._done_s * self._runs_s() + self._finish_s

    def _runs_s(self) -> float:
        return sum(map(self._sweep.predicted_s, self._due))


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


def _beginnings(group: str) -> tuple[str, str, str]:
    return "", group.partition(" ")[0], group


def _cost_s(cost: Mapping[str, Any], number: Callable[[str, str], float]) -> float:
    """Seconds of a run: `s` for its start, warm-up and windows, and its steps, once FLOPs and ceiling are known."""
    if not cost["flops"]:
        return float(cost["s"])
    flops = sum(number(cost["flops"], column) for column in cost["columns"])
    ceiling = number(cost["ceiling"], "measured_tflop_s") * 1e12
    if not flops or not ceiling:
        return float(cost["s"] + cost["default_s"])
    return float(cost["s"] + cost["steps"] * flops / (SHARE * ceiling) + number(cost["flops"], "process_s"))


def _number(row: str, column: str) -> float:
    try:
        with open(row, newline="", encoding="utf-8") as file:
            return float(next(csv.DictReader(file))[column] or 0)
    except (OSError, ValueError, KeyError, StopIteration, csv.Error):
        return 0.0
