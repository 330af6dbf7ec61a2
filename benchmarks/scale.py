"""Cost of a sweep of trivial runs by number of runs: time and memory of planning, scheduling,
tables and page.

python benchmarks/scale.py [100 1000 5000 20000] [--no-page] [--cores 4]

The runs are FLOP counts that count nothing. They need no device, so as many run at once as there
are cores.
"""

import argparse
from functools import partial

import trivial
from trivial import Cost

SIZES = (100, 1000, 5000, 20000)
COLUMNS = (
    *("runs", "plan s", "again s", "MB", "run all s", "ms a run", "MB", "nothing to do s", "MB"),
    *("tables s", "page s", "MB"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="numbers of runs")
    parser.add_argument("--cores", default="4")
    parser.add_argument("--plan-only", action="store_true", help="time planning alone")
    parser.add_argument("--no-page", action="store_true", help="neither tables nor page")
    options = parser.parse_args()
    print(trivial.machine())
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "---:|" * len(COLUMNS))
    for count in options.sizes:
        print("| " + " | ".join(row(count, options)) + " |", flush=True)


def row(count: int, options: argparse.Namespace) -> list[str]:
    """Cells of the table for a sweep of `count` runs."""
    sweep = trivial.counts(count)
    with trivial.copy() as folder:
        first = trivial.plan(folder, sweep)
        again = trivial.plan(folder, sweep)
        cells = [str(count), _s(first), _s(again), _mb(first)]
        if options.plan_only:
            return [*cells, *[""] * (len(COLUMNS) - len(cells))]
        all_runs = trivial.measure(folder, sweep, count, options.cores)
        nothing = trivial.measure_nothing(folder, sweep, options.cores)
        cells += [
            _s(all_runs),
            f"{all_runs.time_s / count * 1000:.0f}",
            _mb(all_runs),
            _s(nothing),
            _mb(nothing),
        ]
        if options.no_page:
            return [*cells, "", "", ""]
        manifests = [str(path.relative_to(folder)) for path in folder.glob("results/*/plan/*.json")]
        command = partial(trivial.run, folder, "scripts/command.py")
        tables = command("tables", "--manifest", *manifests, "--out", "results/tables")
        page = command("page", "--out", "report.html")
        larger = max(tables, page, key=lambda cost: cost.memory_bytes)
        return [*cells, _s(tables), _s(page), _mb(larger)]


def _s(cost: Cost) -> str:
    return f"{cost.time_s:.1f}"


def _mb(cost: Cost) -> str:
    return f"{cost.memory_bytes / 1e6:.0f}"


if __name__ == "__main__":
    main()
