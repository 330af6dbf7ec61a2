"""What a sweep of trivial runs costs as it grows: planning, scheduling, tables and page; time and memory.

python benchmarks/scale.py [100 1000 5000 20000] [--no-page] [--cores 4]

The runs are FLOP counts that count nothing: they need no device, so that as many run at a time as there are cores.
"""

import argparse
import tempfile
from pathlib import Path

from trivial import Cost, machine, make_tree, run

SIZES = (100, 1000, 5000, 20000)
PLAN = (
    "import sys; from mfulab.planning.workflow import Workflow; Workflow(dict(a.split('=', 1) for a in sys.argv[1:]))"
)
SNAKEMAKE = ("-m", "snakemake")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="numbers of runs")
    parser.add_argument("--cores", default="4")
    parser.add_argument("--plan-only", action="store_true", help="time planning alone")
    parser.add_argument("--no-page", action="store_true", help="neither tables nor page")
    given = parser.parse_args()
    print(machine())
    print(
        "| runs | plan s | again s | plan MB | run all s | ms a run | MB | nothing to do s | tables s | page s | MB |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in given.sizes:
        print("| " + " | ".join(row(count, given)) + " |", flush=True)


def row(count: int, given: argparse.Namespace) -> list[str]:
    """One line of the table: everything about a sweep of `count` runs."""
    with tempfile.TemporaryDirectory(prefix="mfulab-scale-") as name:
        folder = Path(name)
        make_tree(folder)
        config = ["steps=[count_flops]", "model=linear_1024", "precision=fp32", f"batch_size=range(1,{count + 1})"]
        first = run(folder, "-c", PLAN, *config)
        again = run(folder, "-c", PLAN, *config)
        cells = [str(count), _s(first), _s(again), _mb(first)]
        if given.plan_only:
            return [*cells, *[""] * 7]
        target = ["rows", "--cores", given.cores, "--config", *config]
        all_runs = run(folder, *SNAKEMAKE, *target)
        assert len(list(folder.glob("results/count_flops/*/row.csv"))) == count
        nothing = run(folder, *SNAKEMAKE, *target)
        assert "Nothing to be done" in (folder / "output").read_text()
        cells += [_s(all_runs), f"{all_runs.time_s / count * 1000:.0f}", _mb(all_runs), _s(nothing)]
        if given.no_page:
            return [*cells, "", "", ""]
        manifests = [str(path.relative_to(folder)) for path in folder.glob("results/*/plan/*.json")]
        tables = run(folder, "scripts/tables.py", "--manifest", *manifests, "--out", "results/tables")
        page = run(folder, "scripts/page.py", "--out", "report.html")
        return [*cells, _s(tables), _s(page), _mb(max(tables, page, key=lambda cost: cost.memory_bytes))]


def _s(cost: Cost) -> str:
    return f"{cost.time_s:.1f}"


def _mb(cost: Cost) -> str:
    return f"{cost.memory_bytes / 1e6:.0f}"


if __name__ == "__main__":
    main()
