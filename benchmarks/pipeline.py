"""Costs of the pipeline itself, each with its target. Exit status 0 means that all targets are met.

python benchmarks/pipeline.py under two minutes: planning, and the overhead of a run python
benchmarks/pipeline.py --all a quarter of an hour: also 5,000 runs, and quickstart for real
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import trivial
from targets import HEADER, Target, report

Got = tuple[Target, float]
WITH, WITHOUT = 200, 10  # runs with and without the worker; without it, a run takes seconds


def planning() -> Iterator[Got]:
    """Cost of planning 5,000 runs for the first time and again, and memory for 20,000 runs."""
    with trivial.copy() as folder:
        first = trivial.plan(folder, trivial.counts(5000))
        yield Target("plan 5,000 runs from nothing", 10, "s"), first.time_s
        again = trivial.plan(folder, trivial.counts(5000))
        yield Target("plan 5,000 runs again", 6, "s"), again.time_s
        memory = trivial.plan(folder, trivial.counts(20000)).memory_bytes
        yield Target("memory of the planner, 20,000 runs", 1, "GB"), memory / 1e9


def overhead() -> Iterator[Got]:
    """Cost per run that measures nothing: the whole command on one core, divided by the number of
    runs."""
    seconds_per_run = []
    for count, environment in ((WITH, {}), (WITHOUT, {"MFULAB_WORKER": ""})):
        with trivial.copy() as folder:
            cost = trivial.measure(folder, trivial.matmuls(count), count, "1", **environment)
            seconds_per_run.append(cost.time_s / count)
    warm, cold = seconds_per_run
    yield Target(f"a run beyond its measuring, {WITH} runs, one core", 0.10, "s"), warm
    yield Target(f"with the worker ÷ without it ({cold:.2f} s)", 0.1), warm / cold


def many_runs() -> Iterator[Got]:
    """Cost of 5,000 runs that measure nothing, and of repeating the command."""
    sweep = trivial.counts(5000)
    with trivial.copy() as folder:
        first = trivial.measure(folder, sweep, 5000, "4")
        yield Target("5,000 trivial runs on 4 cores", 300, "s"), first.time_s
        again = trivial.measure_nothing(folder, sweep, "4")
        yield Target("5,000 runs, nothing to be done", 3.5, "s"), again.time_s


def share_measured() -> Iterator[Got]:
    """Time in warm-up and measured windows ÷ wall time of the whole command, for quickstart on this
    CPU.

    The wall time includes the start of Snakemake, the figures and the page.
    """
    target = Target("quickstart on the CPU, measuring ÷ the whole command", 60, "%", is_least=True)
    with trivial.copy(steps=()) as folder:
        command = ("-m", "snakemake", "report", "--cores", "1", "--config")
        settings = ("experiment=quickstart", "device=cpu", "budget_min=null")
        wall_s = trivial.run(folder, *command, *settings).time_s
        measured_s = sum(map(measured, folder.glob("results/*/*/*/row.csv")))
        yield target, 100 * measured_s / wall_s


def measured(row: Path) -> float:
    """Column `measured_s` of a run's row; 0 for runs without it."""
    with row.open(newline="", encoding="utf-8") as file:
        return float(next(csv.DictReader(file)).get("measured_s") or 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="also those that take minutes")
    options = parser.parse_args()
    print(trivial.machine())
    print(HEADER)
    parts = [planning, overhead]
    if options.all:
        parts += [many_runs, share_measured]
    missed = 0
    for part in parts:
        for target, got in part():
            missed += not report(target, got)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
