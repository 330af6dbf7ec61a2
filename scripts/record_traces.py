"""Reads traces and stores their rows, with the source, in results/reference/public/traces.csv. Does
not store the files.

python scripts/record_traces.py --source "REPOSITORY FOLDER, commit, licence" FILE…
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_csv
from mfulab.lab.runtime.run import commit
from mfulab.lab.tables.columns import columns, written
from mfulab.lab.tables.records import from_recorded
from mfulab.measurements.read_trace import ranks
from mfulab.measurements.read_trace.reader import files, read_file
from mfulab.mfu.traced import trace_columns

PLACE = Path("results/reference/public/traces.csv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Adds rows to the recorded ones, replacing rows of the same run. Returns 2 if a file cannot be
    read, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--source", required=True, help="repository and folder, commit, licence")
    parser.add_argument("--out", type=Path, default=PLACE)
    options = parser.parse_args(arguments)
    recorded = from_recorded(options.out.parent).records["traces"] if options.out.exists() else []
    rows = {row["run"]: row for row in recorded}
    origin = {
        "source": options.source,
        "commit": commit(),
        "experiment": "traces",
        "recorded": True,
    }
    try:
        for path in files(options.files):
            found = read_file(path)
            for index, answer in enumerate(found):
                run = f"trace={answer.row.model}" + (
                    f",trace_range={index}" if len(found) > 1 else ""
                )
                rows[run] = {**answer.row.model_dump(), **origin, "run": run}
    except UnsupportedError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        return 2
    kept = [rows[run] for run in sorted(rows)]
    for row in kept:
        row |= trace_columns(row)
    ranks.joined(kept)
    write_csv(options.out, written("traces", kept), columns("traces"))
    print(f"{options.out}: {len(kept)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
