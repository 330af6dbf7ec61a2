"""Scaling from one to two ranks, against a plain torchrun script: `python
benchmarks/data_parallel.py [--rounds 2]`.

Alternates between mfulab and `plain_step.py`, each with one and two processes. Exit status 0 means
that mfulab's scaling efficiency is at least 0.95 of the script's, measured at the same time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from plain_script import PLAIN, planned
from targets import HEADER, Target, report

from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.measurements.profile_step import measure as profile_step

TARGET = Target("mfulab's scaling efficiency ÷ the plain script's", 0.95, is_least=True)


def planned_step(processes: int, batch: int, folder: Path) -> Path:
    """Writes the config of the step, like a run of the experiment `data_parallel`."""
    step = ("model=resnet18", "workload=training", f"batch_size={batch}")
    ranks = (f"parallel.processes={processes}", "device.threads=1", "profile.operators=false")
    return planned((*step, *ranks), folder)


def plain(config: Path, processes: int, batch: int) -> float:
    """Samples per second of the script under torchrun."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    command = [sys.executable, *torchrun, str(PLAIN), str(config), "fresh"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, median_s, _ = json.loads(done.stdout.splitlines()[-1])
    return processes * batch / median_s


def ours(config: Path, processes: int, batch: int) -> float:
    """Samples per second of the same step, measured by mfulab."""
    parsed = ProfileStepConfig.model_validate_json(config.read_text())
    row = profile_step.measure(parsed, config.parent).row
    assert isinstance(row, ProfileRow)
    assert row.time_s is not None
    return processes * batch / row.time_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, measure in (("plain", plain), ("mfulab", ours)):
            for processes in (1, 2):
                with tempfile.TemporaryDirectory() as folder:
                    config = planned_step(processes, options.batch, Path(folder))
                    speed = measure(config, processes, options.batch)
                speeds.setdefault(f"{name} {processes}", []).append(speed)
    best = {name: statistics.median(runs) for name, runs in speeds.items()}
    print("| ResNet-18, Adam, fp32 | 1 process, samples/s | 2 processes | efficiency |")
    print("|---|---:|---:|---:|")
    efficiency = {}
    for name in ("plain", "mfulab"):
        one, two = best[f"{name} 1"], best[f"{name} 2"]
        efficiency[name] = two / one / 2
        print(f"| {name} | {one:.2f} | {two:.2f} | {efficiency[name]:.0%} |")
    print(HEADER)
    return int(not report(TARGET, efficiency["mfulab"] / efficiency["plain"]))


if __name__ == "__main__":
    sys.exit(main())
