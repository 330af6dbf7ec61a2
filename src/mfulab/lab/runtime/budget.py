"""Wall time of a sweep with a budget: what runs are predicted to take and took, and which ones
still fit. Uses the standard library only."""

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

VARIABLE = "MFULAB_BUDGET"  # set only for the runs of a sweep with a budget
PLAN = "results/plan/budget.json"
LEDGER = "results/plan/budget.log"
WAIT = "wait"  # in place of a run's folder: time in which other commands held the device
PAGE = "page"  # in place of a run's folder: the first page, from which the last is predicted
SHARE = 0.4  # assumed rate of a model's FLOPs, relative to the ceiling
LEFT_OUT_S = 0.2  # time that a run takes which is not measured


class Budget:
    """Time plan of a sweep. `plan` holds its start, budget, end, command, number of runs, and the
    cost of each run."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        took: Mapping[str, tuple[str, float, float]],
        waits: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.plan = plan
        self._took = took  # by folder: group, predicted seconds, actual seconds
        self._ledger = Ledger(_mean([cost["s"] for cost in plan["runs"].values()]))
        for group, predicted_s, took_s in took.values():
            if group != PAGE:
                self._ledger.note(group, predicted_s, took_s)
        self._waited_s = _union_s(waits)
        self._begun = float(plan["begun"])  # Unix time
        self._length_s = 60 * float(plan["budget_min"])

    def elapsed_s(self) -> float:
        """Seconds since the sweep began: by the monotonic clock within one boot, else by the wall
        clock."""
        if self.plan.get("boot") and self.plan["boot"] == system.boot():
            return time.monotonic() - float(self.plan["begun_monotonic"])
        return time.time() - self._begun

    def left_s(self) -> float:
        """Seconds left for measuring. Time for left-out runs, tables, figures and page is reserved;
        time in which other commands held the device does not count."""
        leaving_out_s = LEFT_OUT_S * max(0, self.plan["due"] - len(self._took))
        spent_s = self.elapsed_s() - self._waited_s
        return self._length_s - spent_s - self._end_s() - leaving_out_s

    def _end_s(self) -> float:
        """Seconds that tables, figures and page will take: as predicted, corrected by the first page
        alone, since the time of runs says nothing about them."""
        slower = 1.0
        for group, predicted_s, took_s in self._took.values():
            if group == PAGE:
                # Half of the deviation: a first page may also compile and read what the last finds.
                slower = (1 + took_s / predicted_s) / 2
        return float(self.plan["finish_s"] * slower)

    def limit_s(self, folder: str) -> float | None:
        """Seconds that the run in `folder` may take; None if it is measured whatever it takes."""
        cost = self.plan["runs"].get(folder)
        if cost is None or cost["always"]:
            return None
        return self.left_s()

    def why_not(self, folder: str) -> str:
        """Ending of the run in `folder` if it does not fit into the budget; "" if it does."""
        left_s = self.limit_s(folder)
        if left_s is None:
            return ""
        needed_s = self.predicted_s(folder)
        if needed_s <= left_s:
            return ""
        return self._ending(endings.LEFT_OUT, needed_s=needed_s, left_s=max(0.0, left_s))

    def stopped(self, after_s: float) -> str:
        """Ending of a run that was stopped after `after_s` seconds because the budget was used
        up."""
        return self._ending(endings.STOPPED, after_s=after_s)

    def _ending(self, key: str, **numbers: float) -> str:
        budget_min = float(self.plan["budget_min"])
        command = str(self.plan["command"])
        return endings.ending(key, budget_min=budget_min, **numbers, command=command)

    def predicted_s(self, folder: str) -> float:
        """Seconds that a run will take: for a replicate, what the first process took; else its
        cost, corrected by the ledger."""
        if replicate_of(folder) > 1:
            first = base_name(folder)
            _, _, noted_s = self._took.get(first, ("", 0, 0))
            first_s = noted_s or _number(f"results/{first}/row.csv", "process_s")
            if first_s:
                return first_s
        cost = self.plan["runs"][folder]
        return _cost_s(cost) * self._ledger.slower(cost["group"])

    def note(self, folder: str, seconds: float) -> None:
        """Adds the time of a run to the ledger: of its process, without the worker's start, if its
        row has it, else `seconds`."""
        cost = self.plan["runs"].get(folder)
        seconds = _number(f"results/{folder}/row.csv", "process_s") or seconds
        if cost is not None and seconds > 0:
            _append([folder, cost["group"], _cost_s(cost), seconds])

    def note_wait(self, began_s: float, ended_s: float) -> None:
        """Adds a wait for a device to the ledger; start and end are in seconds since the sweep
        began."""
        _append([WAIT, WAIT, began_s, ended_s])


class Rest:
    """The rest of a sweep: the predicted time of its runs, corrected by those that have ended."""

    def __init__(
        self,
        runs_s: dict[str, float],
        groups: Mapping[str, str],
        worker_s: float,
        finish_s: float,
    ) -> None:
        self.runs_s = runs_s  # by folder, of runs that have not ended
        self.worker_s = worker_s
        self._groups = groups
        self._finish_s = finish_s
        self._ledger = Ledger(_mean(runs_s.values()))
        self._left_s = defaultdict[str, float](float)  # by group
        for folder, run_s in runs_s.items():
            self._left_s[groups[folder]] += run_s

    def estimate_s(self, at_once: int = 1) -> float:
        """Predicted seconds of all runs and the end, with `at_once` runs at a time, before any has
        ended."""
        return self.worker_s + sum(self.runs_s.values()) / at_once + self._finish_s

    def after(self, folder: str, seconds: float, elapsed_s: float) -> float:
        """Seconds left after the run in `folder` took `seconds` and ended `elapsed_s` after the
        first run began."""
        run_s = self.runs_s.pop(folder, 0.0)
        group = self._groups.get(folder, "")
        start_s = 0.0 if self._ledger.took_s else self.worker_s  # the first waits for the imports
        self._left_s[group] -= run_s
        self._ledger.note(group, start_s + run_s, seconds)
        left_s = 0.0
        for name, group_s in self._left_s.items():
            left_s += group_s * self._ledger.slower(name)
        wall_ratio = elapsed_s / self._ledger.took_s  # below 1 if runs overlap
        return max(0.0, left_s) * wall_ratio + self._finish_s * self._ledger.slower("")


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(1, len(values))


# Rest of the sweep that this process runs: set by its plan, shown by the logger plugin.
rest: Rest | None = None


def read() -> Budget | None:
    """Budget of the sweep that this process belongs to; None if it has none."""
    if VARIABLE not in os.environ:
        return None
    took = {}
    waits = []
    with suppress(OSError), open(LEDGER, encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, TypeError):  # another node may be writing the line
                folder, group, first, second = parse_json(line)
                if group == WAIT:
                    waits.append((first, second))  # start and end
                else:
                    took[folder] = (group, first, second)  # predicted and actual seconds
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Budget(load_object(PLAN), took, waits)
    return None


def _append(line: Sequence[Any]) -> None:
    with open(LEDGER, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")  # one write, as other nodes append too


def _union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Total length of intervals; overlaps count once."""
    covered = 0.0
    end = -math.inf
    for began, ended in sorted(intervals):
        covered += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return covered


def _cost_s(cost: Mapping[str, Any]) -> float:
    """Predicted seconds of a run: `s` for start, warm-up and windows, and the time of its steps
    once FLOPs and ceiling are known, `default_s` until then."""
    if not cost["flops"]:
        return float(cost["s"])
    flops = sum(_number(cost["flops"], column) for column in cost["columns"])
    ceiling = _number(cost["ceiling"], "measured_tflop_s") * 1e12
    if not flops or not ceiling:
        return float(cost["s"] + cost["default_s"])
    steps_s = cost["steps"] * flops / (SHARE * ceiling)
    return float(cost["s"] + steps_s + _number(cost["flops"], "process_s"))


def _number(row: str, column: str) -> float:
    """Number in a column of a row's file; 0 if it is empty or cannot be read."""
    try:
        with open(row, newline="", encoding="utf-8") as file:
            return float(next(csv.DictReader(file))[column] or 0)
    except (OSError, ValueError, KeyError, StopIteration, csv.Error):
        return 0.0
