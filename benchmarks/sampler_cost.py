"""Cost of watching: the step time with every sampler on ÷ with none, in interleaved pairs of windows.

    python benchmarks/sampler_cost.py [--device cpu|cuda|auto] [--pairs 10] [--seconds 1]

Also says how far two consecutive windows of the same step differ. On an idle GPU both should stay under 1 %.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from mfulab.hardware.compute import prepare
from mfulab.samplers.selection import samplers_for
from mfulab.samplers.series import Series
from mfulab.schema.configs import DeviceConfig
from mfulab.timing.clocks import clock_for
from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, median_interval
from mfulab.timing.windows import CPU_PACE, CUDA_PACE, Step, measure_window, warm_up


def watched_window(step: Step, device: torch.device, seconds: float, estimate_s: float) -> float:
    """The median step time of a window with the device's samplers and the poller running."""
    with tempfile.TemporaryDirectory() as folder:
        series = Series(device, Path(folder) / "series.csv").open()
        try:
            samplers = samplers_for(device, [series])
            for sampler in samplers:
                sampler.start()
            window = measure_window(step, clock_for(device), seconds, estimate_s)
            for sampler in reversed(samplers):
                sampler.stop()
        finally:
            series.close()
    return window.median_s


def product(device: torch.device) -> Step:
    """A step of some milliseconds: one product on the CPU, many small ones, bound by launches, on a GPU."""
    size, repeats = (512, 1) if device.type == "cpu" else (256, 200)
    a = torch.randn(size, size, device=device)

    def step() -> None:
        for _ in range(repeats):
            torch.mm(a, a)

    return step


def main() -> None:
    """Prints both ratios with their 95 % confidence intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--pairs", type=int, default=10, help=f"at least {FEWEST_WINDOWS}, or there is no interval")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.pairs < FEWEST_WINDOWS:
        parser.error(f"--pairs {options.pairs}: {FEWEST_WINDOWS} are the fewest that have an interval")
    device, threads = prepare(DeviceConfig(type=options.device))
    step, clock = product(device), clock_for(device)
    estimate = warm_up(step, clock, CUDA_PACE if device.type == "cuda" else CPU_PACE).step_s
    costs, repeats = [], []
    for number in range(options.pairs):
        first = measure_window(step, clock, options.seconds, estimate).median_s
        # Which comes first alternates, so that a drift of the device does not look like a cost.
        if number % 2:
            plain, watched = first, watched_window(step, device, options.seconds, estimate)
        else:
            watched = watched_window(step, device, options.seconds, estimate)
            plain = measure_window(step, clock, options.seconds, estimate).median_s
        costs.append(watched / plain)
        repeats.append(measure_window(step, clock, options.seconds, estimate).median_s / plain)
    for label, ratios in (("samplers on ÷ off", costs), ("window ÷ window before", repeats)):
        low, high = median_interval(ratios) or (None, None)
        print(f"{label}: {Stats(ratios).median:.4f} (95 % CI {low:.4f} to {high:.4f}) on {device}, {threads} threads")


if __name__ == "__main__":
    main()
