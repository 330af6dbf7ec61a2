"""Summary for the terminal: run, time, MFU, utilization, and the path of the page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mfulab.language.quantities import quantity
from mfulab.planning.naming import short
from mfulab.report import frames, trust

MOST = 40  # rows; a longer sweep shows its last ones and points to the page


def table(profile: pd.DataFrame, matmul: pd.DataFrame) -> Table:
    """This machine's rows; a row without a time says why in its place."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("run", overflow="ellipsis", no_wrap=True)
    for name in ("time", "FLOP/s", "MFU", "utilization"):
        shown.add_column(name, justify="right", no_wrap=True)
    for rows, share in ((profile, "mfu_percent"), (matmul, "share_of_measured_percent")):
        for _, row in rows[~rows["recorded"]].tail(MOST).iterrows():
            time = quantity(row["time_s"], "s") if row["status"] == "ok" else row["status"].replace("_", " ")
            busy = row.get("utilization_percent")
            cells = (
                short(row["run"]),
                time,
                quantity(row["tflop_s"] * 1e12, ""),
                quantity(row[share], "%"),
                quantity(busy, "%"),
            )
            shown.add_row(*(Text(cell) for cell in cells), style=None if row["status"] == "ok" else "dim")
    return shown


def left_out(tables: Path) -> int:
    """Number of measured runs that the tables do not show, as after `snakemake rows`, which writes none."""
    written = tables / "profile.csv"
    since = written.stat().st_mtime if written.exists() else 0
    return sum(row.stat().st_mtime > since for row in tables.parent.glob("*/*/*/row.csv"))


def main(arguments: Sequence[str] | None = None) -> None:
    """`python scripts/summary.py --tables results/tables --page reports/report.html`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--page", type=Path, default=Path("reports/report.html"))
    options = parser.parse_args(arguments)
    console = Console()
    if runs := left_out(options.tables):
        console.print(f"measured runs that no table shows yet: {runs} (to show them: snakemake --cores 1 report)")
        return
    tables, problems = frames.read(options.tables)
    measured = table(tables["profile"], tables["matmul"])
    says, lines, again = trust.summary(tables)
    for line in filter(None, [says, *lines]):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if says:
        console.print(Text(f"Quiet the machine and measure again: {again}\n", style="yellow"), soft_wrap=True)
    if measured.row_count:
        console.print(measured)
    for problem in problems:
        console.print(Text(problem, style="yellow"))
    if options.page.exists():  # after one figure alone there may be none
        console.print(Text(f"\n{options.page.resolve()}"), soft_wrap=True)
