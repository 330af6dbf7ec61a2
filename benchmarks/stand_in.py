"""Runs the main command on an emulated GPU: prints what the page shows, and after how many
simulated seconds.

    python benchmarks/stand_in.py --device h200 --json
    python benchmarks/stand_in.py --device t4 --keep /tmp/t4      keeps the copy, with its page

Planning, budget, worker, tables and page are real. The device answers with recorded rows, on a
clock of recorded costs.
"""

import argparse
import json
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import gpu_stand_in


def main() -> int:
    """Prints the sweep's output, and finally a summary as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(gpu_stand_in.DEVICES), default="h200")
    parser.add_argument("--json", action="store_true", help="Print the last line alone.")
    parser.add_argument("--keep", type=Path, help="A new folder for the copy of the project.")
    options = parser.parse_args()
    copy_folder: AbstractContextManager[str | Path] = tempfile.TemporaryDirectory(prefix="mfulab-")
    if options.keep:
        copy_folder = nullcontext(options.keep)
    with copy_folder as folder:
        project = gpu_stand_in.prepare(Path(folder))
        swept = gpu_stand_in.sweep(project, options.device)
        if not options.json:
            print(swept.output)
        figures = gpu_stand_in.DEVICES[options.device].figures
        print(json.dumps({**found(swept), "figures": figures}, ensure_ascii=False))
    return 0


def found(swept: gpu_stand_in.Swept) -> dict[str, object]:
    """Summary of a sweep: seconds until the first page and the end, measured steps and matmuls, and
    the page's sentence."""
    pages_s = [seconds for seconds, event in swept.events if event == "page"]
    return {
        "first_page_s": round(pages_s[0], 1) if pages_s else None,
        "steps": len(gpu_stand_in.rows(swept.folder, "profile_step")),
        "matmuls": len(gpu_stand_in.rows(swept.folder, "bench_matmul")),
        "sentence": gpu_stand_in.sentence(swept.folder),
        "total_s": round(swept.total_s, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
