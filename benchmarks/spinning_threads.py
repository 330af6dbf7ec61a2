"""Measures how long a library's idle threads spin, and how much this slows down the next library's
matmul.

    python benchmarks/spinning_threads.py [--side 512] [--threads 4]

`HostTimer.settle` in mfulab.timing.repetitions waits until they stop. The spinning shows as CPU
time, even on a busy machine; its cost can only be measured on an idle one.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import threadpoolctl
import torch

from mfulab.device.cpu import usable_cores

PAUSES_S = (0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2)
TRIES = 15
LONGEST_S, SAMPLE_S = 0.4, 0.004


def spins_s(call: Callable[[], object]) -> float:
    """Seconds after a call until the sleeping process stops using CPU time; at most LONGEST_S."""
    call()
    started = time.perf_counter()
    used_s = time.process_time()
    elapsed_s = spun_s = 0.0
    while elapsed_s < LONGEST_S:
        time.sleep(SAMPLE_S)
        before_s = used_s
        used_s = time.process_time()
        if used_s - before_s > SAMPLE_S / 4:
            spun_s = elapsed_s
        elapsed_s = time.perf_counter() - started
    return spun_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    threadpoolctl.threadpool_limits(options.threads)  # NumPy's too, until the end
    a, b, c = (torch.randn(options.side, options.side) for _ in range(3))
    flops = 2 * options.side**3

    def matmul() -> float:
        started = time.perf_counter()
        torch.matmul(a, b, out=c)
        return time.perf_counter() - started

    def numpy_s_matmul() -> object:
        return a.numpy() @ b.numpy()

    def speed(seconds: list[float]) -> str:
        quartiles = [flops / s / 1e9 for s in statistics.quantiles(seconds, n=4)][::-1]
        return "{1:6.0f} GFLOP/s ({0:.0f} … {2:.0f})".format(*quartiles)

    for name, call in (("NumPy", numpy_s_matmul), ("torch", matmul)):
        spun_ms = sorted(1e3 * spins_s(call) for _ in range(TRIES))
        print(
            f"{name}'s threads spin for {spun_ms[TRIES // 2]:.0f} ms ({spun_ms[0]:.0f} … {spun_ms[-1]:.0f})"
        )
    print(f"torch {options.side}³ fp32, {options.threads} threads, median (quartiles)")
    print(f"alone                 {speed([matmul() for _ in range(10 * TRIES)][TRIES:])}")
    for pause_s in PAUSES_S:
        seconds = []
        for _ in range(TRIES):
            numpy_s_matmul()
            time.sleep(pause_s)
            seconds.append(matmul())
        print(f"{1e3 * pause_s:4.0f} ms after NumPy's  {speed(seconds)}")


if __name__ == "__main__":
    main()
