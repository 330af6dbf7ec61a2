"""Cost of a job's journal: CPU time per step of this thread, relative to a step of 20 ms, at its
highest and as usual.

    python benchmarks/journal_cost.py [--steps 20000]

In the first ten seconds of a process, every step of 20 ms writes a line; later only some do. Each
number is the minimum of five stretches, because other load can only add time. It should be below
0.1 %.
"""

import argparse
import tempfile
import time
from pathlib import Path

from mfulab.loop.goodput import journal as journals

STEP_S = 0.02


def step_s(share: float, steps: int) -> float:
    """Minimum CPU seconds of a step's two marks. `share` is the interval between written lines,
    relative to the age of the process."""
    journals.SHARE = share
    found = []
    with tempfile.TemporaryDirectory() as folder:
        journal = journals.Journal(Path(folder))
        for _ in range(5):
            began = time.thread_time()
            for _ in range(steps):
                journal.mark("loader")
                journal.step()
            found.append((time.thread_time() - began) / steps)
        journal.close()
    return min(found)


def main() -> None:
    """Prints both costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    for name, share in (("a line every step", 0.0), ("a line now and then", journals.SHARE)):
        cost = step_s(share, steps)
        print(
            f"{name}: {1e6 * cost:.1f} µs a step, {100 * cost / STEP_S:.4f} % of {1e3 * STEP_S:.0f} ms"
        )


if __name__ == "__main__":
    main()
