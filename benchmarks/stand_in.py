"""The main command on a GPU that is not there: what stands on the page, and after how many of its seconds.

    python benchmarks/stand_in.py --device h200 --json
    python benchmarks/stand_in.py --device t4 --keep /tmp/t4      keeps the copy, with its page

Planning, budget, worker, tables and page are real; the device answers with recorded rows, on a clock of recorded costs.
"""

import argparse
import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import gpu_stand_in


def main() -> int:
    """Prints the sweep's output, and last what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(gpu_stand_in.DEVICES), default="h200")
    parser.add_argument("--json", action="store_true", help="Print the last line alone.")
    parser.add_argument("--keep", type=Path, help="A new folder for the copy of the project.")
    arguments = parser.parse_args()
    with (
        nullcontext(arguments.keep)
        if arguments.keep
        else tempfile.TemporaryDirectory(prefix="mfulab-") as folder
    ):
        swept = gpu_stand_in.sweep(gpu_stand_in.prepare(Path(folder)), arguments.device)
        if not arguments.json:
            print(swept.output)
        figures = gpu_stand_in.DEVICES[arguments.device].figures
        print(json.dumps({**found(swept), "figures": figures}, ensure_ascii=False))
    return 0


def found(swept: gpu_stand_in.Swept) -> dict[str, object]:
    """Seconds until the first page and the end, steps and matmuls measured within the budget, and
    the sentence."""
    return {
        "first_page_s": next(
            (round(seconds, 1) for seconds, words in swept.events if words == "page"), None
        ),
        "steps": len(gpu_stand_in.rows(swept.folder, "profile_step")),
        "matmuls": len(gpu_stand_in.rows(swept.folder, "bench_matmul")),
        "sentence": gpu_stand_in.sentence(swept.folder),
        "total_s": round(swept.total_s, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
