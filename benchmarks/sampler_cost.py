"""Cost of sampling: step time with all samplers running ÷ without samplers, in interleaved pairs of
windows.

    python benchmarks/sampler_cost.py [--device cpu|cuda|auto] [--pairs 10] [--seconds 1]

Also prints the difference between two consecutive windows of a step. Then the cost of
`mfulab.measure` around a training loop with steps of about 20 ms. On an idle device all should be
below 1 %. The last lines are CPU seconds of the loop's own thread, on one thread. They compare the
fastest of short stretches of steps, alternately with and without a window, which other load affects
least. `--cpu-only` prints only these lines.
"""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import torch

import mfulab
from mfulab.core.groups import DeviceConfig
from mfulab.device.compute import prepare
from mfulab.device.samplers.selection import samplers_for
from mfulab.device.samplers.series import Series
from mfulab.loop.interactive.unwatched import CALL_S, CHECK_S, UnwatchedSteps
from mfulab.timing.clocks import clock_for
from mfulab.timing.pace import CPU_PACE, CUDA_PACE
from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, median_interval
from mfulab.timing.windows import Step, measure_window, warm_up


def watched_window(step: Step, device: torch.device, seconds: float, estimate_s: float) -> float:
    """Median step time of a window with the device's samplers and the poller running."""
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


def matmul(device: torch.device) -> Step:
    """Step of some milliseconds: one matmul on a CPU, many small launch-bound ones on a GPU."""
    size, repeats = (512, 1) if device.type == "cpu" else (256, 200)
    a = torch.randn(size, size, device=device)

    def step() -> None:
        for _ in range(repeats):
            torch.mm(a, a)

    return step


def training(device: torch.device, width: int = 0, rows: int = 0) -> tuple[torch.nn.Module, Step]:
    """Model and training step of about 20 ms on four cores. Has many layers, so that hooks and
    parameters matter."""
    if not width:
        width, rows = (512, 128) if device.type == "cpu" else (2048, 4096)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, device=device) for _ in range(24)))
    inputs = torch.randn(rows, width, device=device)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return model, step


def measured_loop(window: mfulab.measure, step: Step, steps: int) -> float:
    """Median step time of a loop inside `mfulab.measure`, which has already counted such a step."""
    with window:
        for _ in range(steps):
            step()
            window.step()
    return float(window.row["time_s"])


def thread_s(train: Step, steps: int, window: mfulab.measure | None = None) -> list[float]:
    """CPU seconds per step of this thread, for each of ten stretches of steps. Runs inside `window`
    if given."""
    found = []
    with window or contextlib.nullcontext():
        for _ in range(10):
            began = time.thread_time()
            for _ in range(steps):
                train()
                if window:
                    window.step()
            found.append((time.thread_time() - began) / steps)
    return found


def tick_cpu_s(ticks: int = 100_000) -> float:
    """CPU seconds that an unwatched step costs at its end."""
    steps = UnwatchedSteps(clock_for(torch.device("cpu")), nodes=0, most=2 * ticks)
    began = time.thread_time()
    for _ in range(ticks):
        steps.tick()
    return (time.thread_time() - began) / ticks + CALL_S


def print_thread_costs(pairs: int) -> None:
    """Prints CPU time inside a window ÷ without one, on one thread, for steps of about 1 and 20 ms
    with 25 modules."""
    torch.set_num_threads(1)
    for width, rows, steps in ((16, 8, 100), (256, 232, 8)):
        model, train = training(torch.device("cpu"), width, rows)
        window = mfulab.measure(model, quiet=True, ceiling_s=0)
        plain = thread_s(train, steps)
        measured = thread_s(train, steps, window)  # counts the step's FLOPs first
        for _ in range(pairs):
            plain += thread_s(train, steps)
            measured += thread_s(train, steps, window)
        tick_s = tick_cpu_s()
        share_by_parts = tick_s / min(plain) + window._loop.watch_s / CHECK_S
        fastest = f"× {min(measured) / min(plain):.4f} between checks"
        median = f"median of all stretches × {Stats(measured).median / Stats(plain).median:.3f}"
        hooks_us = f"{1e6 * window._loop.watch_s:.0f} µs a second"
        parts = f"the end of a step {1e6 * tick_s:.2f} µs, hooks {hooks_us}"
        print(
            f"steps of {1e3 * min(plain):.2f} ms CPU time: {fastest} ({median});"
            f" by its parts {share_by_parts:.3%}: {parts}"
        )


def main() -> None:
    """Prints the ratios with their 95 % confidence intervals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--pairs", type=int, default=10, help=f"at least {FEWEST_WINDOWS}, or there is no interval"
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument(
        "--cpu-only", action="store_true", help="CPU time of the loop's thread alone"
    )
    options = parser.parse_args()
    if options.cpu_only:
        print_thread_costs(options.pairs)
        return
    if options.pairs < FEWEST_WINDOWS:
        parser.error(
            f"--pairs {options.pairs}: {FEWEST_WINDOWS} are the fewest that have an interval"
        )
    device, threads = prepare(DeviceConfig(type=options.device))
    pace = CUDA_PACE if device.type == "cuda" else CPU_PACE
    step = matmul(device)
    clock = clock_for(device)
    estimate = warm_up(step, clock, pace).chunks_s[-1]
    costs, repeats = [], []
    for number in range(options.pairs):
        first = measure_window(step, clock, options.seconds, estimate).median_s
        # The order alternates, so that drift of the device does not look like a cost.
        if number % 2:
            plain, watched = first, watched_window(step, device, options.seconds, estimate)
        else:
            watched = watched_window(step, device, options.seconds, estimate)
            plain = measure_window(step, clock, options.seconds, estimate).median_s
        costs.append(watched / plain)
        repeats.append(measure_window(step, clock, options.seconds, estimate).median_s / plain)
    model, train = training(device)
    train_s = warm_up(train, clock, pace).chunks_s[-1]
    window = mfulab.measure(model, quiet=True, ceiling_s=0)
    steps = max(FEWEST_WINDOWS, round(options.seconds / train_s))
    measured_loop(window, train, 2)
    loops = []
    for _ in range(options.pairs):
        before = measure_window(train, clock, options.seconds, train_s).median_s
        loops.append(measured_loop(window, train, steps) / before)
    comparisons = (
        ("samplers on ÷ off", costs),
        ("window ÷ window before", repeats),
        (f"mfulab.measure on ÷ off, steps of {1e3 * train_s:.0f} ms", loops),
    )
    for label, ratios in comparisons:
        low, high = median_interval(ratios) or (None, None)
        print(
            f"{label}: {Stats(ratios).median:.4f} (95 % CI {low:.4f} to {high:.4f}) on {device}, {threads} threads"
        )
    print_thread_costs(options.pairs)


if __name__ == "__main__":
    main()
