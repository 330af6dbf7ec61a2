"""Summary for the terminal: run, time, MFU, utilization, and the path of the page."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table
from rich.text import Text

from mfulab.core.answer import unanswered
from mfulab.core.language import Texts
from mfulab.core.language.quantities import quantity
from mfulab.core.printing import say_json
from mfulab.core.said import Said
from mfulab.core.terminal import Terminal
from mfulab.lab.planning.naming import MEASURE, has_workflow, in_language, measures, short
from mfulab.lab.report import frames, selection, trust
from mfulab.lab.tables.answers import answer_of
from mfulab.measurements.registry import MEASUREMENTS, TABLES
from mfulab.mfu.three_lines import ThreeLines

# Key of each numeric column, and its width in a narrow terminal.
NUMBERS = {"time": 8, "speed": 6, "mfu": 6, "utilization": 11}
LONG = 40  # characters of a name, above which common words are split off
MOST_ROWS = 40  # of a table; a longer sweep shows its last ones and points to the page


def table(
    profile: pd.DataFrame, matmul: pd.DataFrame, width: int = 120, language: str = "en"
) -> Table:
    """Table of this machine's rows, `width` characters wide. A row without a time shows its status
    instead."""
    text = Texts(language, "summary")
    steps = profile[~profile["recorded"]].tail(MOST_ROWS)
    matmuls = matmul[~matmul["recorded"]].tail(MOST_ROWS)
    names, shared = _names([*steps["run"], *matmuls["run"]], text)
    title = text("run")
    if shared:
        title = text("run_of", shared=shared)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    left = max(20, width - sum(NUMBERS.values()) - 2 * len(NUMBERS))  # columns are two blanks apart
    shown.add_column(title, overflow="ellipsis", no_wrap=True, max_width=left)
    for name, least in NUMBERS.items():
        shown.add_column(
            text(name),
            justify="right",
            no_wrap=True,
            min_width=least,
        )
    lines = []
    for _, row in steps.iterrows():
        lines.append((row, row["mfu_percent"]))
    for _, row in matmuls.iterrows():
        lines.append((row, row["share_of_measured_percent"]))
    for name, (row, share) in zip(names, lines, strict=True):
        look: str | None = "dim"
        time = text.name("status", row["status"])
        if row["status"] == "ok":
            look = None
            time = quantity(row["time_s"], "s")
        speed = quantity(row["tflop_s"] * 1e12, "")
        busy = text.written(quantity(row.get("utilization_percent"), "%"))
        cells = (name, time, speed, text.written(quantity(share, "%")), busy)
        shown.add_row(*map(Text, cells), style=look)
    return shown


def _names(runs: Sequence[str], text: Texts) -> tuple[list[str], str]:
    """Returns short names of runs, and the words common to all of them, which are split off if
    names are long."""
    names = []
    for run in runs:
        names.append([text.name("mode", word) for word in short(run).split()])
    longest = max((len(" ".join(words)) for words in names), default=0)
    shared = []
    if len(names) > 1 and longest > LONG:
        for word in names[0]:
            if all(word in words for words in names):
                shared.append(word)
    shortened = []
    for words in names:
        shortened.append(" ".join(word for word in words if word not in shared))
    return shortened, " ".join(shared)


def wrapped(words: str, width: int) -> str:
    """Wraps a text to `width` characters without separating a number from its unit."""
    bound = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", words)
    lines = textwrap.fill(bound, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def left_out(tables: Path) -> int:
    """Number of measured runs newer than the tables, as after `snakemake rows`, which writes no
    tables."""
    written = tables / "profile.csv"
    since = 0.0
    if written.exists():
        since = written.stat().st_mtime
    newer = 0
    for step in MEASUREMENTS:
        for row in tables.parent.glob(f"*/{step}/*/row.csv"):
            newer += row.stat().st_mtime > since
    return newer


def _first_screen(tables: frames.Tables, language: str) -> list[str]:
    """Lines of the page's first screen: finding, because, try, and the command to try. If nothing
    was measured here, they are about recorded machines. Empty if no run has both MFU and
    utilization."""
    from mfulab.lab.report.figures import mfu_versus_utilization
    from mfulab.lab.report.page import why

    rows = selection.drawable(mfu_versus_utilization, trust.judged(tables))
    measured = pd.concat([tables[name]["recorded"] for name in trust.STEPS])
    if not measured.all():
        rows = rows[~rows["recorded"]]
    if rows.empty:
        return []
    rows = frames.in_words(rows, Texts(language))
    first = why.first(tables, selection.first_run(rows), set(), language)
    finding = mfu_versus_utilization.finding(rows, Texts(language, "mfu_versus_utilization"))
    told = ThreeLines(
        f"\n{finding}",
        first["because"],
        first["advice"],
        is_elsewhere=first["is_elsewhere"],
    )
    commands = filter(None, [first["experiment"], first["otherwise"]])
    return [*told.worded(language), *commands]


def _print_doubts(console: Terminal, tables: frames.Tables, language: str) -> None:
    """Prints whether a GPU was not used, what is doubtful, and the command to measure it again."""
    text = Texts(language, "summary")
    for line in frames.unused(tables, language):
        words = wrapped(f"{text('no_gpu')} {line}", console.width)
        console.print(words, style="bold yellow")
    doubts = trust.summary(tables, language)
    for line in filter(None, [doubts.headline, *doubts.lines]):
        words = wrapped(line, console.width)
        console.print(words, style="yellow", soft_wrap=True)
    if doubts.again:
        words = text("again", command=in_language(doubts.again, language))
        console.print(f"{words}\n", style="yellow", soft_wrap=True)


def _print_json(tables: frames.Tables) -> int:
    """Prints each row measured here with its answer; returns 1 if there is none."""
    shown = 0
    for rows in (tables["profile"], tables["matmul"]):
        for row in rows[~rows["recorded"]].to_dict("records"):
            cells = {}
            for key, cell in row.items():
                if pd.notna(cell) and cell != "":
                    cells[key] = cell
            say_json(answer_of(cells).line(cells))
            shown += 1
    if not shown:
        say_json(unanswered("", Said("no_row")).line({}))
    return int(not shown)


def show(tables: Path, page: Path, as_json: bool = False, language: str = "en") -> int:
    """Prints the rows in the folder `tables`, their doubts and the path of the `page`, or only JSON
    lines. Returns the exit status: 1 without tables."""
    console = Terminal(stderr=as_json)
    text = Texts(language, "summary")
    runs = left_out(tables)
    if runs:
        if as_json:
            say_json(unanswered("", Said("no_tables", runs=runs)).line({}))
        key = "not_shown_alone"
        if has_workflow():
            key = "not_shown"
        console.print(text(key, count=runs, command=MEASURE))
        return 0
    if not any((tables / f"{name}.csv").is_file() for name in TABLES):
        if as_json:
            say_json(unanswered("", Said("no_row")).line({}))
        console.print(
            text(
                "nothing",
                folder=tables,
                command=measures(),
            ),
            soft_wrap=True,
        )
        return 1
    read, problems = frames.read(tables)
    if as_json:
        return _print_json(read)
    _print_doubts(console, read, language)
    _print_rows(console, read, language)
    for problem in problems:
        if not problem.of_recordings:
            console.print(problem.in_words(language), style="yellow")
    for line in _first_screen(read, language):
        console.print(line, style="bold", soft_wrap=True)
    if page.exists():  # not after drawing a single figure
        console.print(f"\n{page.resolve()}", soft_wrap=True)
    return 0


def _print_rows(console: Terminal, tables: frames.Tables, language: str) -> None:
    """Prints the table of this machine's rows, and how precise they are; nothing without rows."""
    measured = table(tables["profile"], tables["matmul"], console.width, language)
    if measured.row_count:
        console.print(measured)
        console.print(trust.precision(tables, language), soft_wrap=True)
