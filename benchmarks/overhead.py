"""What a run costs beyond its own measuring: the same runs that measure nothing, with and without the warm worker.

python benchmarks/overhead.py [--runs 200] [--without 20]

Both are whole commands, `snakemake --cores 1` from planning to the last row, one run at a time. Without the worker a
run takes seconds, so that fewer are timed there.
"""

import argparse
import tempfile
from pathlib import Path

from trivial import machine, make_tree, run

TARGETS = {"with": 0.15, "ratio": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs with the worker")
    parser.add_argument("--without", type=int, default=20, help="runs without it")
    given = parser.parse_args()
    print(machine())
    warm = time_of(given.runs)
    cold = time_of(given.without, MFULAB_WORKER="")
    print(f"{'':24}{'runs':>6}{'s each':>9}{'target':>9}")
    print(f"{'with the warm worker':24}{given.runs:>6}{warm:>9.3f}{'≤ ' + str(TARGETS['with']):>9}")
    print(f"{'without':24}{given.without:>6}{cold:>9.3f}")
    print(f"{'ratio':24}{'':>6}{warm / cold:>9.3f}{'≤ ' + str(TARGETS['ratio']):>9}")


def time_of(count: int, **environment: str) -> float:
    """Seconds a run of a sweep of `count` matmuls."""
    with tempfile.TemporaryDirectory(prefix="mfulab-overhead-") as name:
        folder = Path(name)
        make_tree(folder)
        config = ["steps=[bench_matmul]", "kernel=torch", "precision=fp32", f"size=range(1,{count + 1})"]
        cost = run(folder, "-m", "snakemake", "rows", "--cores", "1", "--config", *config, **environment)
        measured = len(list(folder.glob("results/*/bench_matmul/*/row.csv")))
        assert measured == count, f"{measured} of {count} runs have a row"
        return cost.time_s / count


if __name__ == "__main__":
    main()
