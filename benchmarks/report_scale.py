"""Time and memory of drawing the page, or of joining tables, by number of rows.

python benchmarks/report_scale.py 1000 10000 100000

With `--axis batch_size` all rows differ. With `--join` runs are joined into tables.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import report_rows


def main() -> None:
    """Prints a line for each number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--axis", default="seed", help="in which the rows differ")
    parser.add_argument("--join", action="store_true", help="join runs into tables, no page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if options.join:
            join(root, sorted(options.counts))
        else:
            draw(root, sorted(options.counts), options.axis)


def draw(root: Path, counts: Sequence[int], axis: str) -> None:
    """Prints the cost of a page by the number of rows, which differ in `axis`."""
    manifest = report_rows.lay_out(root)
    run_command(tables_of(root, manifest, root / "small"))
    print(f"{'rows':>8} {'build_s':>8} {'cpu_s':>6} {'memory_gb':>10} {'page_mb':>8}")
    for count in counts:
        folder, page = root / f"rows_{count}", root / f"{count}.html"
        report_rows.multiply(root / "small", folder, count, axis)
        cost = run_command(["page", "--tables", str(folder), "--out", str(page)])
        print(f"{count:8} {cost} {page.stat().st_size / 1e6:8.1f}")


def join(root: Path, counts: Sequence[int]) -> None:
    """Prints the cost of joining tables by the number of runs, each in its own folder."""
    print(f"{'runs':>8} {'build_s':>8} {'cpu_s':>6} {'memory_gb':>10}")
    for count in counts:
        manifest = report_rows.lay_out(root / str(count))
        report_rows.add_runs(manifest, count)
        cost = run_command(tables_of(root / str(count), manifest, root / f"tables_{count}"))
        print(f"{count:8} {cost}")


def tables_of(root: Path, manifest: Path, out: Path) -> list[str]:
    """Arguments of the command that joins an experiment's rows into tables."""
    return ["tables", "--root", str(root), "--out", str(out), "--manifest", str(manifest)]


def run_command(arguments: Sequence[str]) -> str:
    """Runs a command of mfulab in a new process. Returns wall and CPU seconds, and the peak memory
    in GB of all processes so far, as text."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "mfulab", *arguments], check=True)
    build_s = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return f"{build_s:8.1f} {cpu_s:6.1f} {used.ru_maxrss / 1e6:10.2f}"


if __name__ == "__main__":
    main()
