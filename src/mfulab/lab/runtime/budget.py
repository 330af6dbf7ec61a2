"""Wall time of a sweep: what runs are predicted to cost and took, whose turn still comes; standard
library alone."""

import csv
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mfulab.core.json_text import load_object, parse_json
from mfulab.core.replicates import base_name, replicate_of
from mfulab.device import system
from mfulab.lab.runtime import endings
from mfulab.lab.runtime.ledger import Ledger

VARIABLE = "MFULAB_BUDGET"  # set for the runs of a sweep with a budget, and for no other command's
PLAN = "results/plan/budget.json"
LEDGER = "results/plan/budget.log"
WAIT = "wait"  # in the place of a run's folder: seconds in which others held its device
# in the place of a run's folder: the first page, which tells how long the last one will take
PAGE = "page"
SHARE = 0.4  # of the ceiling, at which the FLOPs of a model are taken to be computed
LEFT_OUT_S = 0.2  # of a run that is not measured


class Budget:
    """Plan of a sweep's time: `begun`, `budget_min`, `finish_s`, `command`, runs `due`, and each
    run's cost."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        took: Mapping[str, tuple[str, float, float]],
        waits: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.plan = plan
        self._took = took  # by folder: group, seconds predicted, seconds taken
        self._ledger = Ledger(_mean([cost["s"] for cost in plan["runs"].values()]))
        for group, predicted_s, took_s in took.values():
            if group != PAGE:
                self._ledger.note(group, predicted_s, took_s)
        self._waited_s = _union_s(waits)
        self._begun = float(plan["begun"])  # Unix time
        self._length_s = 60 * float(plan["budget_min"])

    def elapsed_s(self) -> float:
        """Seconds since the sweep began, within one boot by a clock that nobody sets."""
        if self.plan.get("boot") and self.plan["boot"] == system.boot():
            return time.monotonic() - float(self.plan["begun_monotonic"])
        return time.time() - self._begun

    def left_s(self) -> float:
        """Seconds left for measuring, without those in which other commands held the device: what
        is left out takes some, and so do tables, figures and page."""
        pages = (took for took in self._took.values() if took[0] == PAGE)
        slower = (seconds / predicted for _, predicted, seconds in pages)
        # Runs tell nothing of a page, and the first page, of few rows, not that the last one is
        # shorter.
        reserved = self.plan["finish_s"] * max([1.0, *slower])
        leaving_out_s = LEFT_OUT_S * max(0, self.plan["due"] - len(self._took))
        spent_s = self.elapsed_s() - self._waited_s
        return self._length_s - spent_s - reserved - leaving_out_s

    def limit_s(self, folder: str) -> float | None:
        """Seconds that the run in `folder` may take; None where it is measured whatever it
        takes."""
        cost = self.plan["runs"].get(folder)
        if cost is None or cost["always"]:
            return None
        return self.left_s()

    def why_not(self, folder: str) -> str:
        """Ending of the run in `folder` if it is not measured now; empty where it is."""
        if (left := self.limit_s(folder)) is None or (seconds := self.predicted_s(folder)) <= left:
            return ""
        return self._ending(endings.LEFT_OUT, needed_s=seconds, left_s=max(0.0, left))

    def stopped(self, after_s: float) -> str:
        """Ending of a run that was stopped after `after_s` seconds, when the budget was spent."""
        return self._ending(endings.STOPPED, after_s=after_s)

    def _ending(self, key: str, **numbers: float) -> str:
        budget_min = float(self.plan["budget_min"])
        command = str(self.plan["command"])
        return endings.ending(key, budget_min=budget_min, **numbers, command=command)

    def predicted_s(self, folder: str) -> float:
        """Seconds that a run will take: of a replicate what its first process took, else its cost,
        corrected."""
        if replicate_of(folder) > 1:
            first = base_name(folder)
            if seconds := self._took.get(first, ("", 0, 0))[2] or _number(
                f"results/{first}/row.csv", "process_s"
            ):
                return seconds
        cost = self.plan["runs"][folder]
        return _cost_s(cost) * self._ledger.slower(cost["group"])

    def note(self, folder: str, seconds: float) -> None:
        """Adds what a run took to the ledger: its process, where its row says so, without the
        worker's start."""
        cost = self.plan["runs"].get(folder)
        seconds = _number(f"results/{folder}/row.csv", "process_s") or seconds
        if cost is not None and seconds > 0:
            _append([folder, cost["group"], _cost_s(cost), seconds])

    def note_wait(self, began_s: float, ended_s: float) -> None:
        """Adds a wait for a device to the ledger, both ends in seconds since the sweep began."""
        _append([WAIT, WAIT, began_s, ended_s])


class Rest:
    """Rest of a sweep: what its runs are predicted to take, corrected by those that have ended."""

    def __init__(
        self,
        runs_s: dict[str, float],
        groups: Mapping[str, str],
        worker_s: float,
        finish_s: float,
    ) -> None:
        self.runs_s = runs_s  # by folder, of those that are still to run
        self.worker_s = worker_s
        self._groups = groups
        self._finish_s = finish_s
        self._ledger = Ledger(_mean(runs_s.values()))
        self._left_s = defaultdict[str, float](float)  # by group
        for folder, run_s in runs_s.items():
            self._left_s[groups[folder]] += run_s

    def estimate_s(self, at_once: int = 1) -> float:
        """Seconds that all of it takes, with so many runs at a time, before any has ended."""
        return self.worker_s + sum(self.runs_s.values()) / at_once + self._finish_s

    def after(self, folder: str, seconds: float, elapsed_s: float) -> float:
        """Seconds left once the run in `folder` took so long, `elapsed_s` after the first run
        began."""
        run_s = self.runs_s.pop(folder, 0.0)
        group = self._groups.get(folder, "")
        begin_s = 0.0 if self._ledger.took_s else self.worker_s  # the first waits for the imports
        self._left_s[group] -= run_s
        self._ledger.note(group, begin_s + run_s, seconds)
        left_s = 0.0
        for each, group_s in self._left_s.items():
            left_s += group_s * self._ledger.slower(each)
        side_by_side = elapsed_s / self._ledger.took_s
        return max(0.0, left_s) * side_by_side + self._finish_s * self._ledger.slower("")


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(1, len(values))


# of the sweep that this process runs: its plan sets it, its logger tells it
rest: Rest | None = None


def read() -> Budget | None:
    """The budget of the sweep whose run this process belongs to; None if it has none."""
    if VARIABLE not in os.environ:
        return None
    took = {}
    waits = []
    with suppress(OSError), open(LEDGER, encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, TypeError):  # of another node, half written
                folder, group, predicted, seconds = parse_json(line)
                if group == WAIT:
                    waits.append((predicted, seconds))
                else:
                    took[folder] = (group, predicted, seconds)
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Budget(load_object(PLAN), took, waits)
    return None


def _append(line: Sequence[Any]) -> None:
    with open(LEDGER, "a", encoding="utf-8") as file:  # in one write, beside those of other nodes
        file.write(json.dumps(line) + "\n")


def _union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Length that intervals cover, parts that several share counted once."""
    covered = 0.0
    end = -math.inf
    for began, ended in sorted(intervals):
        covered += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return covered


def _cost_s(cost: Mapping[str, Any]) -> float:
    """Seconds of a run: `s` for its start, warm-up and windows, and its steps, once FLOPs and
    ceiling are known."""
    if not cost["flops"]:
        return float(cost["s"])
    flops = sum(_number(cost["flops"], column) for column in cost["columns"])
    ceiling = _number(cost["ceiling"], "measured_tflop_s") * 1e12
    if not flops or not ceiling:
        return float(cost["s"] + cost["default_s"])
    return float(
        cost["s"] + cost["steps"] * flops / (SHARE * ceiling) + _number(cost["flops"], "process_s")
    )


def _number(row: str, column: str) -> float:
    try:
        with open(row, newline="", encoding="utf-8") as file:
            return float(next(csv.DictReader(file))[column] or 0)
    except (OSError, ValueError, KeyError, StopIteration, csv.Error):
        return 0.0
