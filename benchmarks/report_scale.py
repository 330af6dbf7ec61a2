"""Time and memory of the page by number of rows: `python benchmarks/report_scale.py 1000 10000 100000`."""

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
    print(f"{'rows':>8} {'build_s':>8} {'memory_gb':>10} {'page_mb':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        manifest = report_rows.lay_out(root)
        main_command(["tables", "--root", str(root), "--out", str(root / "small"), "--manifest", str(manifest)])
        for count in sorted(map(int, sys.argv[1:] or ["1000", "10000", "100000"])):
            folder, page = root / f"rows_{count}", root / f"{count}.html"
            report_rows.multiply(root / "small", folder, count)
            started = time.monotonic()
            command = [sys.executable, "-c", "from mfulab.cli.main import main; main()", "page"]
            subprocess.run([*command, "--tables", str(folder), "--out", str(page)], check=True)
            build_s = time.monotonic() - started
            memory_gb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            print(f"{count:8} {build_s:8.1f} {memory_gb:10.2f} {page.stat().st_size / 1e6:8.1f}")


if __name__ == "__main__":
    main()
