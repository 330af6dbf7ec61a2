"""Summary for the terminal: run, time, MFU, utilization, and the path of the page."""

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table
from rich.text import Text

from mfulab.core.language.quantities import quantity
from mfulab.core.terminal import Terminal
from mfulab.lab.planning.naming import MEASURE, short
from mfulab.lab.report import frames, trust

NUMBERS = {"time": 8, "FLOP/s": 6, "MFU": 6, "utilization": 11}  # characters that a narrow terminal leaves them
LONG = 40  # characters of a name
MOST = 40  # rows; a longer sweep shows its last ones and points to the page


def table(profile: pd.DataFrame, matmul: pd.DataFrame, width: int = 120) -> Table:
    """Rows of this machine in `width` characters; a row without a time says why in its place."""
    own = [rows[~rows["recorded"]].tail(MOST) for rows in (profile, matmul)]
    names, shared = _names([run for rows in own for run in rows["run"]])
    shown = Table(box=None, header_style="bold", pad_edge=False)
    left = max(20, width - sum(NUMBERS.values()) - 2 * len(NUMBERS))  # columns are two blanks apart
    shown.add_column(f"run{shared}", overflow="ellipsis", no_wrap=True, max_width=left)
    for name, width in NUMBERS.items():
        shown.add_column(name, justify="right", no_wrap=True, min_width=width)
    for rows, share in zip(own, ("mfu_percent", "share_of_measured_percent"), strict=True):
        for _, row in rows.iterrows():
            time = quantity(row["time_s"], "s") if row["status"] == "ok" else row["status"].replace("_", " ")
            busy, speed = quantity(row.get("utilization_percent"), "%"), quantity(row["tflop_s"] * 1e12, "")
            cells = (names.pop(0), time, speed, quantity(row[share], "%"), busy)
            shown.add_row(*(Text(cell) for cell in cells), style=None if row["status"] == "ok" else "dim")
    return shown


def _names(runs: Sequence[str]) -> tuple[list[str], str]:
    """Short names of runs; words that all of them share stand apart where names are long."""
    names = [short(run).split() for run in runs]
    long = len(names) > 1 and max(len(" ".join(words)) for words in names) > LONG
    shared = [word for word in names[0] if all(word in words for words in names)] if long else []
    suffix = f", all {' '.join(shared)}" if shared else ""
    return [" ".join(word for word in words if word not in shared) for words in names], suffix


def wrapped(words: str, width: int) -> str:
    """The words in lines of `width` characters, none of which ends between a number and its unit."""
    bound = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", words)
    lines = textwrap.fill(bound, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def left_out(tables: Path) -> int:
    """Number of measured runs that the tables do not show, as after `snakemake rows`, which writes none."""
    written = tables / "profile.csv"
    since = written.stat().st_mtime if written.exists() else 0
    return sum(row.stat().st_mtime > since for row in tables.parent.glob("*/*/*/row.csv"))


def show(tables: Path, page: Path, as_json: bool = False) -> int:
    """Prints rows of the folder `tables`, their doubts and the `page`, or JSON lines alone; 1 without tables."""
    console = Terminal(stderr=as_json)
    if runs := left_out(tables):
        console.print(f"measured runs that no table shows yet: {runs} (to show them: {MEASURE})")
        return 0
    if not tables.is_dir():
        console.print(f"{tables}: nothing was measured here. To measure: {MEASURE}", soft_wrap=True)
        return 1
    read, problems = frames.read(tables)
    if as_json:
        for rows in (read["profile"], read["matmul"]):
            for row in rows[~rows["recorded"]].to_dict("records"):
                print(json.dumps({name: value for name, value in row.items() if pd.notna(value) and value != ""}))
        return 0
    measured = table(read["profile"], read["matmul"], console.width)
    says, lines, again = trust.summary(read)
    for line in frames.unused(read):
        console.print(Text(wrapped(f"The CPU was measured, not the GPU. {line}", console.width), style="bold yellow"))
    for line in filter(None, [says, *lines]):
        console.print(Text(wrapped(line, console.width), style="yellow"), soft_wrap=True)
    if says:
        console.print(Text(f"Quiet the machine and measure again: {again}\n", style="yellow"), soft_wrap=True)
    if measured.row_count:
        console.print(measured)
        console.print(Text(trust.precision(read)), soft_wrap=True)
    for problem in (problem for problem in problems if not problem.startswith(frames.OF_RECORDINGS)):
        console.print(Text(problem, style="yellow"))
    if page.exists():  # after one figure alone there may be none
        console.print(Text(f"\n{page.resolve()}"), soft_wrap=True)
    return 0
