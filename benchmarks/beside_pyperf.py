"""Compares pyperf and this project on the same three steps: spread between invocations, false
verdicts, time spent.

    pip install pyperf
    python benchmarks/beside_pyperf.py --out ../beside --rounds 4      12 minutes on 2 cores, which should be idle

A round is a sweep of the three steps by this project, within 1.2 minutes. Then pyperf measures the
same steps with its defaults for `--fast`. Nothing changes between rounds, so every reported
difference is false. Both tools report differences of 10 % or more. Needs pyperf.
"""

import argparse
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import repeatability
import trivial

from mfulab.lab.tables import compare

THREE = (
    "steps=[profile_step]",
    "budget_min=1.2",
    "model=digit_cnn,simple_cnn,resnet18",
    "workload=inference",
    "batch_size=1",
    "precision=fp32",
)
# Script of pyperf's processes. Each creates all steps as this project does, and times the one that
# it was started for.
WORK = """
import json
from pathlib import Path

import pyperf
import torch

from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.step import make

runner = pyperf.Runner()
for path in map(Path, {paths!r}):
    config = ProfileStepConfig.model_validate(json.loads(path.read_text()))
    runner.bench_func(config.model.name, make(config, torch.device("cpu")).call)
"""


def by_pyperf(out: Path, configs: Sequence[Path]) -> dict[str, float]:
    """Seconds per call by step, as reported by pyperf. Its result file is kept as `out`."""
    import pyperf

    script = out.with_suffix(".py")
    script.write_text(WORK.format(paths=[str(path) for path in configs]))
    trivial.run(out.parent, str(script), "--fast", "--quiet", "--copy-env", "--output", str(out))
    return {
        bench.get_name(): bench.mean()
        for bench in pyperf.BenchmarkSuite.load(str(out)).get_benchmarks()
    }


def called_by_pyperf(old: Path, new: Path, steps: int) -> int:
    """Number of steps that `pyperf compare_to` reports as faster or slower."""
    command = ["compare_to", str(old), str(new), f"--min-speed={100 * repeatability.NOTICEABLE:g}"]
    output = subprocess.run(
        [sys.executable, "-m", "pyperf", *command], capture_output=True, text=True, check=True
    ).stdout
    hidden = re.search(r"hidden because not significant \((\d+)\)", output)
    return steps - int(hidden[1] if hidden else 0)


def spread(times: Sequence[Mapping[str, float]]) -> list[float]:
    """For each step, percent by which its slowest invocation exceeds its fastest."""
    spreads = []
    for step in times[0]:
        of_step = [invocation[step] for invocation in times]
        spreads.append(100 * (max(of_step) / min(of_step) - 1))
    return spreads


def main() -> None:
    """Measures the rounds and prints a line per tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--out", type=Path, help="folder of what was measured; by default a temporary one"
    )
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp(prefix="mfulab-pyperf-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    print(trivial.machine(), flush=True)
    ours, theirs, spent = [], [], []
    sweeps: list[repeatability.Sweep] = []
    for number in range(options.rounds):
        part = repeatability.Part(f"ours-{number}", 0)
        repeatability.measure(part, out / part.name, THREE)
        sweeps.append(repeatability.sweep_of(out / part.name))
        of_round: dict[str, float] = {}
        for (_, run), row in compare.merged(sweeps[-1].folder, fast=True).items():
            if isinstance(row["time_s"], float):
                of_round[run] = row["time_s"]
        ours.append(of_round)
        began = time.monotonic()
        configs = sorted(sweeps[-1].folder.glob("profile_step/*/config.json"))
        alone = {path.parent.name.partition(",replicate")[0]: path for path in configs}
        theirs.append(by_pyperf(out / f"theirs-{number}.json", list(alone.values())))
        spent.append(time.monotonic() - began)
        print(f"round {number + 1}: {sweeps[-1].time_s:.0f} s and {spent[-1]:.0f} s", flush=True)
    files = [out / f"theirs-{number}.json" for number in range(options.rounds)]
    compared = list(itertools.chain.from_iterable(repeatability.pairs(sweeps)))
    ours_called = sum(run.verdict in repeatability.CHANGED for run in compared)
    theirs_called = sum(
        called_by_pyperf(*pair, len(theirs[0])) for pair in itertools.pairwise(files)
    )
    pairs = (options.rounds - 1) * len(theirs[0])
    print(
        f"{'':8} {'spread: median':>15} {'largest':>8} {'false verdicts':>15} {'seconds a round':>16}"
    )
    our_seconds = [sweep.time_s or 0.0 for sweep in sweeps]
    for name, times, called, seconds in (
        ("mfulab", ours, ours_called, our_seconds),
        ("pyperf", theirs, theirs_called, spent),
    ):
        found = spread(times)
        verdicts = f"{called} of {pairs}"
        numbers = f"{statistics.median(found):13.1f} % {max(found):6.1f} % {verdicts:>15}"
        print(f"{name:8} {numbers} {statistics.median(seconds):16.0f}")


if __name__ == "__main__":
    main()
