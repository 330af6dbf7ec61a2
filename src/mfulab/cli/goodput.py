"""`mfulab goodput FOLDER`: the ladder of a job, from wall time to useful tokens, and where the rest went."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mfulab.cli.watch import follow
from mfulab.core.language import Texts
from mfulab.loop.goodput.ladder import RUNGS, Job, job_of
from mfulab.loop.interactive.show import bar


def show(
    folder: Path, as_json: bool, figure: Path | None, prometheus: int | None, interval_s: float, language: str
) -> int:
    """Prints the ladder once, or serves it for Prometheus until interrupted, read anew every `interval_s` seconds."""
    if figure:
        from mfulab.cli.goodput_figure import draw

        draw(job_of(folder), figure, language)

    def frames() -> Iterator[tuple[dict[str, Any], Group]]:
        while True:
            job = job_of(folder)
            row = job.row()
            columns = {f"goodput_{name}" if name != "job" else "name": value for name, value in row.items()}
            yield columns | {"notes": _notes(job, Texts("en", "goodput"))}, _picture(job, row, language)
            time.sleep(interval_s)

    return follow(frames(), None if prometheus is not None else 1, as_json, prometheus)


def _notes(job: Job, text: Texts) -> list[str]:
    notes = [text(key, **values) for key, values in job.notes]
    return notes if job.mfu["steps"] is not None else [*notes, text("no_mfu")]


def _picture(job: Job, row: dict[str, Any], language: str) -> Group:
    text = Texts(language, "goodput")
    rungs, losses = (Table(box=None, pad_edge=False, show_header=False) for _ in range(2))
    for name in RUNGS:
        if (share := row[f"{name}_percent"]) is not None:
            rungs.add_row(text(name), f"{share:6.1f} %", Text(bar(share), style="green"))
    whole = sum(job.spans.values()) or 1
    for name, part in job.spans.most_common():
        if part:
            seconds = f"{part / 1e9 / len(job.timed):.1f} s"
            losses.add_row(text.name("span", name), seconds, f"{100 * part / whole:5.1f} %")
    besides = (text("beside", name=text.name("span", name), seconds=part / 1e9) for name, part in job.beside.items())
    notes = (Text(note, style="dim") for note in _notes(job, text))
    summary = Text(text("summary", **row), style="bold")
    return Group(summary, rungs, Text(text("where")), losses, *map(Text, besides), *notes)
