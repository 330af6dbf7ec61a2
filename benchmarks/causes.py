"""Effect of one setting at a time on the time and on the spread between processes.

    python benchmarks/causes.py [--processes 8] [--only affinity]

Each measurement is a new process. Processes with and without the setting alternate (A B, then B A),
so that drift of the machine affects both alike. On an idle machine, a setting is useful if it
reduces the spread, or if it reduces the time by more than the interval.
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from mfulab.timing.statistics import relative_half_width

SETTINGS: dict[str, dict[str, str]] = {
    "affinity": {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
    "no spinning": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"},
    "spinning": {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "infinite"},
    "huge pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "kept memory": {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"},
    "no collector": {"MFULAB_CAUSE_GC": "off"},
}
# One process: prints seconds of a small convolutional network's step, and of a 128³ and a 1024³
# matmul.
PROCESS = """
import gc, os, statistics, time
import torch
from mfulab.device.cpu import usable_cores
if os.environ.get("MFULAB_CAUSE_GC") == "off":
    gc.disable()
torch.set_num_threads(usable_cores())
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU())
images = torch.randn(4, 3, 64, 64)
small, large = torch.randn(128, 128), torch.randn(1024, 1024)
for work in (lambda: network(images).sum().backward(), lambda: small @ small, lambda: large @ large):
    began = time.perf_counter()
    while time.perf_counter() - began < 0.3:
        work()
    times = []
    while sum(times) < 0.3:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    print(statistics.median(times))
"""
WORK = ("convolutions", "128³", "1024³")


def process(setting: Mapping[str, str]) -> list[float]:
    """Seconds of each kind of work in one new process."""
    environment = {**os.environ, **setting}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], env=environment, capture_output=True, text=True, check=True
    )
    return [float(line) for line in done.stdout.split()]


def spread(times: Sequence[float]) -> float:
    """Standard deviation of the logarithms of the times, in percent."""
    return 100 * statistics.stdev(map(math.log, times))


def main() -> None:
    """Prints a line for each setting and kind of work: time with ÷ without, and both spreads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=8,
        help="of each setting, and as many without it; 3 or more",
    )
    parser.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS))
    options = parser.parse_args()
    if options.processes < 3:
        parser.error(f"--processes {options.processes}: 3 are the fewest that have a spread")
    print(f"{'setting':14}| {'work':13}| time with ÷ without   | spread with | without")
    for name in options.only:
        both: dict[bool, list[list[float]]] = {True: [], False: []}
        for number in range(options.processes):
            order = (True, False) if number % 2 else (False, True)
            for is_set in order:
                both[is_set].append(process(SETTINGS[name] if is_set else {}))
        for index, work in enumerate(WORK):
            with_, without = ([times[index] for times in both[is_set]] for is_set in (True, False))
            ratios = [
                time_with / time_without
                for time_with, time_without in itertools.zip_longest(with_, without)
            ]
            half = relative_half_width(ratios) or 0.0
            ratio = f"{statistics.median(ratios):.3f} (±{100 * math.expm1(half):.1f} %)"
            print(
                f"{name:14}| {work:13}| {ratio:22}| {spread(with_):9.1f} % | {spread(without):.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
