"""Cost of a sweep of trivial runs as it grows: time and memory of planning, scheduling, tables and page.

python benchmarks/scale.py [100 1000 5000 20000] [--no-page] [--cores 4]

The runs are FLOP counts that count nothing: they need no device, so that as many run at a time as there are cores.
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
    given = parser.parse_args()
    print(trivial.machine())
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "---:|" * len(COLUMNS))
    for count in given.sizes:
        print("| " + " | ".join(row(count, given)) + " |", flush=True)


def row(count: int, given: argparse.Namespace) -> list[str]:
    """One line of the table: everything about a sweep of `count` runs."""
    sweep = trivial.counts(count)
    with trivial.copy() as folder:
        first, again = trivial.plan(folder, sweep), trivial.plan(folder, sweep)
        cells = [str(count), _s(first), _s(again), _mb(first)]
        if given.plan_only:
            return [*cells, *[""] * (len(COLUMNS) - len(cells))]
        all_runs = trivial.measure(folder, sweep, count, given.cores)
        nothing = trivial.measure_nothing(folder, sweep, given.cores)
        cells += [
            _s(all_runs),
            f"{all_runs.time_s / count * 1000:.0f}",
            _mb(all_runs),
            _s(nothing),
            _mb(nothing),
        ]
        if given.no_page:
            return [*cells, "", "", ""]
        manifests = [str(path.relative_to(folder)) for path in folder.glob("results/*/plan/*.json")]
        command = partial(trivial.run, folder, "scripts/command.py")
        tables = command("tables", "--manifest", *manifests, "--out", "results/tables")
        page = command("page", "--out", "report.html")
        return [
            *cells,
            _s(tables),
            _s(page),
            _mb(max(tables, page, key=lambda cost: cost.memory_bytes)),
        ]


def _s(cost: Cost) -> str:
    return f"{cost.time_s:.1f}"


def _mb(cost: Cost) -> str:
    return f"{cost.memory_bytes / 1e6:.0f}"


if __name__ == "__main__":
    main()
