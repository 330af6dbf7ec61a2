"""Compares the CPU kernels with torch on the same threads: `python benchmarks/cpu_matmul.py [--size
2048] [--threads 4]`.

Prints a Markdown table. Exit status 0 means that the best Numba kernel reaches 30 % of torch, the
target at 2048³.
"""

import argparse
import sys
from pathlib import Path

from targets import HEADER, Target, report

from mfulab.core.errors import UnsupportedError
from mfulab.measurements.bench_matmul import BenchMatmulConfig, MatmulRow
from mfulab.measurements.bench_matmul.measure import measure

TARGET = Target("the best Numba rung on the CPU, share of torch", 30, "%", is_least=True)
RUNGS = {
    "numba_cpu_reordered": "mfulab.kernels.numba_cpu_reordered.NumbaCpuReordered",
    "numba_cpu_blocked": "mfulab.kernels.numba_cpu_blocked.NumbaCpuBlocked",
    "numpy": "mfulab.kernels.cpu_numpy.Numpy",
    "torch": "mfulab.kernels.torch_matmul.Torch",
}


def row_of(name: str, target: str, size: int, threads: int | None) -> MatmulRow:
    config = BenchMatmulConfig.model_validate(
        {
            "kernel": {"name": name, "_target_": target},
            "size": str(size),
            "precision": {"name": "fp32", "dtype": "float32"},
            "device": {"name": "cpu", "type": "cpu", "threads": threads},
        }
    )
    row = measure(config, Path()).row
    assert isinstance(row, MatmulRow)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    print(f"| rung | median at {options.size}³, fp32 | GFLOP/s | share of torch in the same run |")
    print("|---|---|---|---|")
    shares = {}
    for name, target in RUNGS.items():
        try:
            row = row_of(name, target, options.size, options.threads)
        except UnsupportedError as reason:
            print(f"| {name} | {reason} | | |")
            continue
        if row.time_s is None or row.reference_time_s is None:
            print(f"| {name} | {row.status}: {row.message} | | |")
            continue
        shares[name] = 100 * row.reference_time_s / row.time_s
        speed = row.flops / row.time_s / 1e9 if row.flops else float("nan")
        print(f"| {name} | {row.time_s * 1e3:.1f} ms | {speed:.1f} | {shares[name]:.0f} % |")
    best = max((share for name, share in shares.items() if name.startswith("numba")), default=0.0)
    print(f"\n{HEADER}")
    return int(not report(TARGET, best))


if __name__ == "__main__":
    sys.exit(main())
