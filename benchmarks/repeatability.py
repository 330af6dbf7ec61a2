"""Repeated measurements of the same code on this machine: verdicts of compare without a change, and
with an injected one.

    python benchmarks/repeatability.py --out ../repeat                            the targets, in 25 minutes at most
    python benchmarks/repeatability.py --out ../repeat --sweeps 6                 goes on: only what is missing
    python benchmarks/repeatability.py --existing a/results b/results c/results   sweeps that were measured before

Parts are quickstarts, each the whole command in its own copy, and paired comparisons of eight runs.
In a pair, the profiled steps of one copy also wait for a share of their time. A part that would not
finish in time is left for the next call with the same `--out`. The machine should be idle. Exit
status 0: all targets are met; 3: those that were measured are met.
"""

import argparse
import csv
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import trivial
from targets import HEADER, Target, report

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import read_json, remove, write_json
from mfulab.lab.tables import compare

CHANGED = ("faster", "slower")
NOTICEABLE = 0.1  # between sweeps; paired comparisons detect smaller differences
PAIRED_MIN = 4.0  # minutes of a paired comparison, without planning and starting
# Target by injected slowdown: for 0, maximum percent of runs called different; otherwise, minimum
# percent of runs found slower.
SLOWER_BY = {0.0: 5, 0.1: 90, 0.05: 60}
EIGHT_RUNS = (
    *("steps=[profile_step]", "model=simple_cnn,digit_cnn", "workload=training,inference"),
    *("batch_size=1,4", "precision=fp32"),
)
DONE, COMPARED = "done.json", "comparison.csv"
UNFINISHED = 3  # exit status
# a verdict "slower" is not a failure here
PAIRED = "import sys; from mfulab.cli.main import main; sys.exit(main(sys.argv[1:]) > 1)"
# The real step, followed by a wait for this share of its time.
SLOWER = """
import sys
import time
from dataclasses import replace
from mfulab.lab.runtime.run import main
from mfulab.measurements.profile_step import measure

made = measure.make

def make_slower(config, device):
    step = made(config, device)

    def waiting():
        began = time.perf_counter()
        result = step.call()
        until = time.perf_counter() + {share} * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return result

    return replace(step, call=waiting)

measure.make = make_slower
main(sys.argv.pop(1))
"""


@dataclass(frozen=True)
class Sweep:
    """Measured sweep: folder of its machine, and seconds of the whole command (None if unknown)."""

    folder: Path
    time_s: float | None = None


@dataclass(frozen=True)
class Part:
    """One sweep, or with `slower` one paired comparison with steps that are slower by that
    share."""

    name: str
    about_s: float  # upper estimate of its duration
    slower: float | None = None


def parts(sweeps: int) -> list[Part]:
    """Parts in the order in which they are measured. Those needed for the first results come
    first."""
    paired = [
        Part(f"paired-{100 * slower:g}", 60 * PAIRED_MIN + 30, slower) for slower in SLOWER_BY
    ]
    quick = [Part(f"sweep-{number}", 240) for number in range(sweeps)]
    return [*quick[:2], *paired, *quick[2:]]


def is_done(out: Path) -> bool:
    return (out / DONE).exists()


def measure(part: Part, out: Path, overrides: Sequence[str]) -> None:
    """Measures a part in a new copy of the project, and stores its time."""
    remove(out)
    out.mkdir(parents=True)
    folder = trivial.copy_workflow(out)
    if part.slower is None:
        cost = trivial.run(
            folder, "-m", "snakemake", "report", "--cores", "1", "--config", *overrides
        )
    else:
        (folder / "scripts/run.py").write_text(SLOWER.format(share=part.slower))
        (out / "base").mkdir()
        base = trivial.copy_workflow(out / "base")
        command = ["paired", "--base", str(base), "--minutes", f"{PAIRED_MIN:g}"]
        command += ["--out", str(out / COMPARED), "--config", *EIGHT_RUNS]
        cost = trivial.run(folder, "-c", PAIRED, *command)
    write_json(out / DONE, {"time_s": cost.time_s})


def sweep_of(out: Path) -> Sweep:
    """Sweep that was measured in this folder."""
    return Sweep(compare.machine_folder(out / "results"), read_json(out / DONE)["time_s"])


def duty_percent(sweep: Sweep) -> float:
    """Time in warm-up and measured windows, in percent of the time of all runs' processes."""
    rows = [
        next(csv.DictReader(path.open(newline="", encoding="utf-8")))
        for path in sweep.folder.glob("*/*/row.csv")
    ]
    measured_s = sum(float(row.get("measured_s") or 0) for row in rows)
    process_s = sum(float(row.get("process_s") or 0) for row in rows)
    return 100 * measured_s / process_s


def pairs(sweeps: Sequence[Sweep]) -> list[list[compare.Compared]]:
    """Verdicts of compare.py for each sweep and the next one."""
    rows = [compare.merged(sweep.folder, fast=True) for sweep in sweeps]
    return [
        compare.verdicts(*pair, NOTICEABLE, compare.drift_between(*pair) or 0.0)
        for pair in itertools.pairwise(rows)
    ]


def judged(compared: Sequence[compare.Compared]) -> list[compare.Compared]:
    """Drops verdicts of runs that could not be compared."""
    return [verdict for verdict in compared if verdict.verdict != "not comparable"]


def covered(sweeps: Sequence[Sweep]) -> list[bool]:
    """For each interval of each sweep: True if it contains the median of its run over all
    sweeps."""
    intervals: dict[tuple[str, str], list[compare.Interval]] = {}
    for sweep in sweeps:
        for key, row in compare.merged(sweep.folder).items():
            interval = compare.interval(row)
            if interval is not None and interval.is_measured:
                intervals.setdefault(key, []).append(interval)
    contained = []
    for of_run in intervals.values():
        if len(of_run) > 1:
            median_s = statistics.median(interval.time_s for interval in of_run)
            contained += [interval.low_s <= median_s <= interval.high_s for interval in of_run]
    return contained


def halves(sweeps: Sequence[Sweep]) -> list[float]:
    """Half-widths of all intervals of the sweeps, in percent."""
    found = []
    for sweep in sweeps:
        for row in compare.merged(sweep.folder).values():
            percent = row.get("precision_percent")
            if isinstance(percent, float):
                found.append(percent)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the missing parts, or reads existing sweeps, and prints a line per target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=3, help="quickstarts")
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="no part is begun that would end later"
    )
    parser.add_argument(
        "--config",
        nargs="+",
        default=["experiment=quickstart"],
        help="of the sweeps, as Snakemake's",
    )
    parser.add_argument("--out", type=Path, help="folder of the parts; by default a temporary one")
    parser.add_argument(
        "--existing", type=Path, nargs="+", help="existing results; nothing is measured"
    )
    options = parser.parse_args(arguments)
    if len(options.existing or "ab") < 2 or options.sweeps < 2:
        parser.error("two sweeps are the fewest that can be compared")
    print(trivial.machine(), flush=True)
    if options.existing is not None:
        try:
            sweeps = [Sweep(compare.machine_folder(path)) for path in options.existing]
            return int(not print_targets(sweeps, {}))
        except ConfigurationError as error:
            parser.error(str(error))
    out = (options.out or Path(tempfile.mkdtemp(prefix="mfulab-repeat-"))).absolute()
    print(f"parts stay in {out}", flush=True)
    began, left = time.monotonic(), []
    for part in parts(options.sweeps):
        spent = time.monotonic() - began
        if is_done(out / part.name):
            print(f"{part.name}: measured before", flush=True)
        elif spent + part.about_s > 60 * options.minutes:
            left.append(part.name)
        else:
            print(f"{part.name}: from minute {spent / 60:.1f} of {options.minutes:g}", flush=True)
            measure(part, out / part.name, options.config)
    done = [part for part in parts(options.sweeps) if is_done(out / part.name)]
    sweeps = [sweep_of(out / part.name) for part in done if part.slower is None]
    compared = {
        part.slower: compare.read(out / part.name / COMPARED)
        for part in done
        if part.slower is not None
    }
    met = print_targets(sweeps, compared)
    if left:
        print(
            f"not measured yet: {', '.join(left)}. The same command with --out {out} goes on.",
            flush=True,
        )
    if not met:
        return 1
    return UNFINISHED if left else 0


def print_targets(sweeps: Sequence[Sweep], compared: Mapping[float, pd.DataFrame]) -> bool:
    """Prints a line for each target that these parts determine. Returns True if all are met."""
    verdicts: list[compare.Compared] = []
    for pair in pairs(sweeps):
        verdicts += judged(pair)
    if not verdicts and not compared:
        print("nothing could be compared: no run has a time in two sweeps", file=sys.stderr)
        return False
    print(HEADER)
    lines: list[tuple[Target, float]] = []
    if verdicts:
        lines += _unchanged(sweeps, verdicts)
    for slower, found in compared.items():
        lines.append(_paired(slower, found[found["ratio"] != ""]["verdict"]))
    met = [report(target, got) for target, got in lines]  # a list, so that every line is printed
    return all(met)


def _unchanged(
    sweeps: Sequence[Sweep], verdicts: Sequence[compare.Compared]
) -> list[tuple[Target, float]]:
    """Targets of sweeps without a change, each with its value."""
    counts = Counter(compared.verdict for compared in verdicts)
    called = sum(counts[verdict] for verdict in CHANGED)
    different = Target(f"unchanged: called different, of {len(verdicts)}", 5, "%")
    ambiguous = Target("unchanged: ambiguous", 40, "%")
    half = Target("half the interval, median", 8, "%")
    contain = covered(sweeps)
    name = f"intervals that hold the pooled median, of {len(contain)}"
    intervals = Target(name, 90, "%", is_least=True)
    duty = Target("duty cycle of a sweep", 65, "%", is_least=True)
    lines = [
        (different, 100 * called / len(verdicts)),
        (ambiguous, 100 * counts["ambiguous"] / len(verdicts)),
        (half, statistics.median(halves(sweeps) or [math.inf])),
        (intervals, 100 * statistics.fmean(contain) if contain else 0.0),
        (duty, min(map(duty_percent, sweeps))),
    ]
    times = [sweep.time_s for sweep in sweeps if sweep.time_s is not None]
    if times:
        lines.append((Target("the slowest sweep, the whole command", 210, "s"), max(times)))
    return lines


def _paired(slower: float, verdicts: pd.Series) -> tuple[Target, float]:
    """Target of a paired comparison with an injected slowdown (0 for none), and its value."""
    is_right = verdicts.eq("slower") if slower else verdicts.isin(CHANGED)
    result = "found" if slower else "called different"
    name = f"paired, +{100 * slower:g} %: {result}, of {len(verdicts)}"
    target = Target(name, SLOWER_BY[slower], "%", is_least=bool(slower))
    return target, 100 * is_right.mean() if len(verdicts) else math.nan


if __name__ == "__main__":
    sys.exit(main())
