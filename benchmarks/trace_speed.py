"""Compares `mfulab trace` with only parsing the JSON of the same file: CPU seconds of one process
each, in turn.

    python benchmarks/trace_speed.py FILE…

The baseline starts Python, decompresses the file and parses it. The ratio of both hardly depends on
the machine's speed and other load.
"""

import argparse
import statistics
import sys
from pathlib import Path

from traces import timed

JSON = """
import gzip, json, sys
opened = gzip.open if sys.argv[1].endswith(".gz") else open
with opened(sys.argv[1], "rb") as file:
    json.load(file)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'file':32} {'json CPU s':>10} {'CPU s':>6} {'ratio':>6} {'MB':>5}")
    for path in options.files:
        ours, alone = [], []
        for _ in range(options.rounds):
            alone.append(timed([sys.executable, "-c", JSON, str(path)])[0])
            ours.append(timed([sys.executable, "-m", "mfulab", "trace", str(path)])[0])
        ratio = statistics.median(
            cost[1] / baseline[1] for cost, baseline in zip(ours, alone, strict=True)
        )
        json_s, own_s = (min(cost[1] for cost in costs) for costs in (alone, ours))
        megabytes = max(cost[2] for cost in ours)
        name = path.name.split(".")[0]
        print(f"{name:32} {json_s:10.2f} {own_s:6.2f} {ratio:6.2f} {megabytes:5.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
