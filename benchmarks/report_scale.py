"""Time and memory of the page by number of rows.

python benchmarks/report_scale.py 1000 10000 100000            rows that differ in seed: one stands for those alike
python benchmarks/report_scale.py --axis batch_size 100000     none are alike
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import report_rows

from mfulab.cli.main import main as main_command


def main() -> None:
    """Prints a line for each number of rows given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--axis", default="seed", help="in which the rows differ")
    given = parser.parse_args()
    print(f"{'rows':>8} {'build_s':>8} {'cpu_s':>6} {'memory_gb':>10} {'page_mb':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        manifest = report_rows.lay_out(root)
        main_command(
            [
                "tables",
                "--root",
                str(root),
                "--out",
                str(root / "small"),
                "--manifest",
                str(manifest),
            ]
        )
        for count in sorted(given.counts):
            folder, page = root / f"rows_{count}", root / f"{count}.html"
            report_rows.multiply(root / "small", folder, count, given.axis)
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            command = [sys.executable, "-c", "from mfulab.cli.main import main; main()", "page"]
            subprocess.run([*command, "--tables", str(folder), "--out", str(page)], check=True)
            build_s = time.monotonic() - started
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            sizes = f"{used.ru_maxrss / 1e6:10.2f} {page.stat().st_size / 1e6:8.1f}"
            print(f"{count:8} {build_s:8.1f} {cpu_s:6.1f} {sizes}")


if __name__ == "__main__":
    main()
