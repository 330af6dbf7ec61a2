"""The same code measured again and again on this machine: what compare.py says of no change, and of an injected one.

    python benchmarks/repeatability.py --pairs 5                                  quickstart, six sweeps: half an hour
    python benchmarks/repeatability.py --pairs 5 --config model=simple_cnn        a narrower sweep
    python benchmarks/repeatability.py --sweeps a/results b/results c/results     sweeps that were measured before

Each sweep is the whole command in a copy of its own; a pair is a sweep and the next. `--slower 0.1` measures one more,
whose profiled steps wait for a tenth of their time. The machine should be idle. Exit status 0: all targets hold.
"""

import argparse
import csv
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trivial
from targets import HEADER, Target, report

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import remove
from mfulab.tables import compare

CHANGED = ("faster", "slower")
# The real step, but for a wait behind each that takes this share of its time.
SLOWER = """
import sys
import time
from dataclasses import replace
from mfulab.cli.step import main
from mfulab.measurements.profile_step import process

made = process.make

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

process.make = make_slower
main(sys.argv.pop(1))
"""


@dataclass(frozen=True)
class Sweep:
    """A sweep that was measured: its machine's folder, and the seconds of the whole command, None if not known."""

    folder: Path
    time_s: float | None = None


def measured(out: Path, overrides: Sequence[str], slower: float = 0.0) -> Sweep:
    """One sweep in a new copy of the project below `out`."""
    remove(out)
    out.mkdir(parents=True)
    folder = trivial.copy_workflow(out)
    if slower:
        (folder / "scripts/run.py").write_text(SLOWER.format(share=slower))
    cost = trivial.run(folder, "-m", "snakemake", "report", "--cores", "1", "--config", *overrides)
    return Sweep(compare.machine_folder(folder / "results"), cost.time_s)


def duty_percent(sweep: Sweep) -> float:
    """Time in warm-up and measured windows ÷ time of all runs' processes."""
    rows = [next(csv.DictReader(path.open(newline="", encoding="utf-8"))) for path in sweep.folder.glob("*/*/row.csv")]
    sums = {name: sum(float(row.get(name) or 0) for row in rows) for name in ("measured_s", "process_s")}
    return 100 * sums["measured_s"] / sums["process_s"]


def pairs(sweeps: Sequence[Sweep]) -> list[list[compare.Compared]]:
    """Verdicts of compare.py of each sweep and the next."""
    return [
        compare.compare(old.folder, new.folder, drift=compare.drift_between(old.folder, new.folder) or 0.0)
        for old, new in itertools.pairwise(sweeps)
    ]


def judged(compared: Sequence[compare.Compared]) -> list[compare.Compared]:
    """Those that could be compared."""
    return [each for each in compared if each.verdict != "not comparable"]


def covered(sweeps: Sequence[Sweep]) -> list[bool]:
    """For each interval of each sweep, whether it holds the median of that run over all sweeps."""
    intervals: dict[tuple[str, str], list[compare.Interval]] = {}
    for sweep in sweeps:
        for key, row in compare.merged(sweep.folder).items():
            found = compare.interval(row)
            if found is not None and found.known:
                intervals.setdefault(key, []).append(found)
    return [
        each.low_s <= statistics.median(other.time_s for other in several) <= each.high_s
        for several in intervals.values()
        for each in several
        if len(several) > 1
    ]


def found(old: Sweep, new: Sweep, slower: float) -> list[bool]:
    """For each profiled run whose intervals are narrower than an injected change, whether it was called slower."""
    return [
        each.verdict == "slower"
        for each in judged(pairs([old, new])[0])
        if each.step == "profile_step"
        and each.ratio is not None
        and each.ratio_low is not None
        and each.ratio_high is not None
        and (each.ratio_high / each.ratio_low) ** 0.5 < 1 + slower
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the sweeps, or takes those given, and prints a line a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="one sweep more is measured")
    whole = ["experiment=quickstart", "budget_min=null"]
    parser.add_argument("--config", nargs="+", default=whole, help="as Snakemake's")
    parser.add_argument("--slower", type=float, default=0.0, help="also a sweep with this relative delay: 0.1")
    parser.add_argument("--out", type=Path, help="folder of the sweeps; by default a temporary one")
    parser.add_argument("--sweeps", type=Path, nargs="+", help="existing results; nothing is measured")
    options = parser.parse_args(arguments)
    if options.sweeps is None and options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: 1 is the fewest")
    if options.sweeps is not None and len(options.sweeps) < 2:
        parser.error("--sweeps: two are the fewest that can be compared")
    print(trivial.machine(), flush=True)
    slow = None
    try:
        if options.sweeps is not None:
            sweeps = [Sweep(compare.machine_folder(path)) for path in options.sweeps]
        else:
            out = options.out or Path(tempfile.mkdtemp(prefix="mfulab-repeat-"))
            print(f"sweeps stay in {out}", flush=True)
            sweeps = []
            for number in range(options.pairs + 1):
                sweeps.append(measured(out / f"sweep-{number}", options.config))
                told = f", {_counts(pairs(sweeps[-2:])[0])}" if number else ""
                print(f"sweep {number}: {sweeps[-1].time_s:.0f} s{told}", flush=True)
            if options.slower:
                slow = measured(out / "slower", options.config, options.slower)
    except (ConfigurationError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    return int(not _told(sweeps, slow, options.slower))


def _told(sweeps: Sequence[Sweep], slow: Sweep | None, slower: float) -> bool:
    """Prints the targets' lines and returns True if all hold."""
    compared = [each for pair in pairs(sweeps) for each in judged(pair)]
    if not compared:
        print("nothing could be compared: no run has a time in two sweeps", file=sys.stderr)
        return False
    intervals = covered(sweeps)
    wrong = sum(each.verdict in CHANGED for each in compared)
    print(HEADER)
    lines = [
        (Target(f"unchanged runs called faster or slower, of {len(compared)}", 5, "%"), 100 * wrong / len(compared)),
        (
            Target(f"intervals that hold the pooled median, of {len(intervals)}", 90, "%", is_least=True),
            100 * sum(intervals) / len(intervals) if intervals else 0.0,
        ),
        (Target("duty cycle of a sweep", 65, "%", is_least=True), min(map(duty_percent, sweeps))),
    ]
    times = [sweep.time_s for sweep in sweeps if sweep.time_s is not None]
    if times:
        lines.append((Target("the slowest sweep, the whole command", 240, "s"), max(times)))
    if slow is not None:
        seen = found(sweeps[-1], slow, slower)
        target = Target(f"injected +{100 * slower:g} % found, of {len(seen)} narrow enough", 90, "%", is_least=True)
        if seen:
            lines.append((target, 100 * sum(seen) / len(seen)))
        else:
            print(f"injected +{100 * slower:g} %: no interval here is narrower, so there is nothing to judge")
    held = [report(target, got) for target, got in lines]  # every line is printed
    return all(held) and (slow is None or bool(seen))


def _counts(compared: Sequence[compare.Compared]) -> str:
    counts = Counter(each.verdict for each in compared)
    return json.dumps(counts)[1:-1].replace('"', "")


if __name__ == "__main__":
    sys.exit(main())
