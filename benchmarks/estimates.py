"""Error of a sweep's estimate before its first run, and of the remaining time after its first ten.
Replays recorded sweeps without the processes that `refine` added, as they were and scaled to
machines whose measurements take longer or shorter.

python benchmarks/estimates.py
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mfulab.lab.planning import costs
from mfulab.lab.planning.runs import Run
from mfulab.lab.runtime import budget
from mfulab.lab.tables.columns import Record
from mfulab.lab.tables.records import from_recorded
from mfulab.measurements.registry import TABLES

ROOT = Path(__file__).parents[1] / "results/reference"
HARDWARE = ("amd-epyc-2c", "nvidia-h100-80gb-hbm3", "nvidia-h200")
FEWEST = 20  # minimum runs of a sweep, of which SEEN are half
SEEN = 10  # runs that have finished when the estimate is evaluated
WITHIN = 0.3
# Factor on the recorded time of each measurement; 1 for all others.
MACHINES: Mapping[str, Mapping[str, float]] = {
    "as recorded": {},
    "slow": {"ceilings": 3.0, "count_flops": 4.0, "profile_step": 3.0, "bench_matmul": 2.5},
    "fast": {"ceilings": 0.4, "count_flops": 0.3, "profile_step": 0.35, "bench_matmul": 0.5},
    "vector": {"profile_step": 3.0, "bench_matmul": 0.6},
}


@dataclass(frozen=True)
class Ended:
    """Recorded run with its planned processes: predicted and actual seconds."""

    folder: str
    step: str
    group: str
    predicted_s: float
    took_s: float


@dataclass(frozen=True)
class Replay:
    """State of a sweep after its first runs. `first` is the initial estimate and `rest` the
    estimate of the remainder, each ÷ the truth."""

    hardware: str
    experiment: str
    runs: int
    first: float
    rest: float

    @property
    def first_holds(self) -> bool:
        """True if the initial estimate is within the target."""
        return abs(self.first - 1) <= WITHIN

    @property
    def holds(self) -> bool:
        """True if the estimate of the remainder is within the target."""
        return abs(self.rest - 1) <= WITHIN


def sweeps(hardware: str) -> dict[str, list[Ended]]:
    """Runs of each recorded experiment of a machine, in the order in which they started."""
    configs = {}
    for line in (ROOT / hardware / "configs.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        configs[entry["table"], entry["run"]] = json.dumps(entry["config"])
    rows = []
    for table, lines in from_recorded(ROOT / hardware).records.items():
        rows += [(row["started_at"], table, row) for row in lines if row["process_s"]]
    planned = _planned(rows)
    warm = _warm(rows, planned)
    found = defaultdict[str, list[Ended]](list)
    for _, table, row in sorted(rows, key=lambda entry: entry[:2]):
        text = configs.get((table, row["run"]))
        if text is None:
            continue
        step = TABLES[table].step
        run = Run(step, row["run"], f"{hardware}/{step}/{row['run']}", text, {"flops": ""})
        processes = planned[row["experiment"], table]
        process_s = row["process_s"] / (row.get("replicates") or 1)
        found[row["experiment"]].append(_ended(run, process_s, processes))
    return {name: runs for name, runs in found.items() if len(runs) >= FEWEST and name not in warm}


def _ended(run: Run, process_s: float, processes: int = 1) -> Ended:
    predicted = costs.cost(run, False)
    seconds = predicted["s"] + predicted.get("default_s", 0.0)
    took_s = processes * process_s
    return Ended(run.folder, run.step, predicted["group"], processes * seconds, took_s)


def measured(project: Path) -> list[Ended]:
    """Planned runs that a sweep in the folder `project` has measured, a process each, in the order
    in which they started."""
    started = []
    for manifest in sorted(project.glob("results/*/plan/*.json")):
        for planned in json.loads(manifest.read_text(encoding="utf-8"))["runs"]:
            row = _row(project / planned["folder"] / "row.csv")
            if not row.get("process_s"):
                continue  # left out for lack of time
            text = (project / planned["folder"] / "config.json").read_text(encoding="utf-8")
            step, name, folder = planned["step"], planned["run"], planned["folder"]
            run = Run(step, name, folder.removeprefix("results/"), text, {"flops": ""})
            started.append((row["started_at"], _ended(run, float(row["process_s"]))))
    started.sort(key=lambda entry: entry[0])
    return [ended for _, ended in started]


def _row(path: Path) -> dict[str, str]:
    """Cells of a run's row; empty if it has none."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return next(csv.DictReader(file))
    except (FileNotFoundError, StopIteration):
        return {}


def _warm(
    rows: Sequence[tuple[str, str, Record]], planned: Mapping[tuple[str, str], int]
) -> set[str]:
    """Experiments with a compiled run of further processes. These found its code in a cache, so
    that their mean is shorter than what the sweep took."""
    found = set()
    for _, table, row in rows:
        is_compiled = str(row.get("execution") or "").startswith("compile")
        if is_compiled and (row.get("replicates") or 1) > planned[row["experiment"], table]:
            found.add(row["experiment"])
    return found


def _planned(rows: Sequence[tuple[str, str, Record]]) -> dict[tuple[str, str], int]:
    """Processes of each run by experiment and table: the fewest that any of its runs has, since
    `refine` adds some to most."""
    fewest: dict[tuple[str, str], int] = {}
    for _, table, row in rows:
        key = row["experiment"], table
        processes = row.get("replicates") or 1
        fewest[key] = min(fewest.get(key, processes), processes)
    return fewest


def replay(
    hardware: str, experiment: str, runs: Sequence[Ended], factors: Mapping[str, float]
) -> Replay:
    """Estimates for one sweep on a machine whose measurements take `factors` times as long."""
    took_s = [run.took_s * factors.get(run.step, 1.0) for run in runs]
    predicted_s = {run.folder: run.predicted_s for run in runs}
    groups = {run.folder: run.group for run in runs}
    rest = budget.Rest(predicted_s, groups, worker_s=0.0, finish_s=0.0)
    first = rest.estimate_s() / sum(took_s)
    left_s = elapsed_s = 0.0
    for run, seconds in list(zip(runs, took_s, strict=True))[:SEEN]:
        elapsed_s += seconds
        left_s = rest.after(run.folder, seconds, elapsed_s)
    return Replay(hardware, experiment, len(runs), first, left_s / sum(took_s[SEEN:]))


def replays(machine: str) -> Iterator[Replay]:
    """Replays of every recorded sweep on a machine of MACHINES."""
    for hardware in HARDWARE:
        for experiment, runs in sorted(sweeps(hardware).items()):
            yield replay(hardware, experiment, runs, MACHINES[machine])


def main() -> None:
    print(f"| machine | sweeps | before any run, within ±{WITHIN:.0%} | from, to", end=" ")
    print(f"| after {SEEN} runs, within ±{WITHIN:.0%} | those beyond: estimate ÷ truth |")
    print("| --- | ---: | ---: | --- | ---: | --- |")
    for machine in MACHINES:
        found = list(replays(machine))
        first = [sweep.first for sweep in found]
        cells = [machine, str(len(found)), str(sum(sweep.first_holds for sweep in found))]
        cells += [f"{min(first):.2f}, {max(first):.2f}", str(sum(sweep.holds for sweep in found))]
        missed = [sweep for sweep in found if not sweep.holds]
        beyond = [f"{sweep.hardware} {sweep.experiment} {sweep.rest:.2f}" for sweep in missed]
        print("|", " | ".join([*cells, "; ".join(beyond)]), "|")


if __name__ == "__main__":
    main()
