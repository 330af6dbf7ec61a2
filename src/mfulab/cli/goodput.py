"""`mfulab goodput FOLDER`: the ladder of a job, from wall time to useful tokens, and where the rest
went."""

import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mfulab.cli.options import AS_JSON, FILE, LANGUAGE, PATH, PROMETHEUS, SECONDS, command
from mfulab.cli.watch import follow
from mfulab.core.answer import Answer, answered, unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.core.language.quantities import in_percent
from mfulab.core.parts import Record, Row
from mfulab.core.said import Numbers, Said, of_source
from mfulab.loop.goodput.ladder import RUNGS, Job, job_of
from mfulab.loop.interactive.show import add_rung

FIRST = ("step", "lost", "down")  # always of the same colours in the figure


@command(
    "goodput",
    "goodput runs/llama --figure runs/llama.svg",
    more="FOLDER is the one that mfulab.measure, a callback or mfulab.Journal was given as job.",
)
@click.argument("folder", type=PATH)
@AS_JSON
@click.option(
    "--figure",
    type=FILE,
    metavar="FILE",
    help="Also draw it: each rank's time, as .svg, .png or .pdf.",
)
@PROMETHEUS
@click.option(
    "--interval",
    "interval_s",
    type=SECONDS,
    default=15.0,
    help="Seconds between readings, with --prometheus.",
)
@LANGUAGE
def show(
    folder: Path,
    as_json: bool,
    figure: Path | None,
    prometheus: int | None,
    interval_s: float,
    language: str,
) -> int:
    """Prints the ladder once, or serves it for Prometheus until interrupted, read anew every
    `interval_s` seconds."""
    if figure:
        _draw(job_of(folder), figure, language)

    def frames() -> Iterator[tuple[Record, Group]]:
        while True:
            job = job_of(folder)
            row = job.row()
            columns = {
                f"goodput_{name}" if name != "job" else "name": value for name, value in row.items()
            }
            columns |= {"answer": answer(job, row), "notes": _notes(job, Texts("en", "goodput"))}
            yield columns, _picture(job, row, language)
            time.sleep(interval_s)

    return follow(frames(), None if prometheus is not None else 1, as_json, prometheus)


def answer(job: Job, row: Row) -> Answer:
    """Goodput: the share of the job's time that went into steps that were kept, in %."""
    kept = row["kept_percent"]
    if kept is None:
        return unanswered("%", Said("untimed"))
    doubt: dict[str, Numbers] = dict(job.notes)
    if row["mfu_percent"] is None:
        doubt["no_mfu"] = {}
    held_s = row["wall_s"] * row["ranks"]
    return answered(kept, "%", "measured", denominator=held_s, denominator_unit="s", doubt=doubt)


def _notes(job: Job, text: Texts) -> list[str]:
    return [
        *(text(key, **values) for key, values in job.notes),
        *[text("no_mfu")] * (job.mfu["steps"] is None),
    ]


def _picture(job: Job, row: Record, language: str) -> Group:
    text = Texts(language, "goodput")
    rungs, losses = (Table(box=None, pad_edge=False, show_header=False) for _ in range(2))
    for name in RUNGS:
        percent = row[f"{name}_percent"]
        if percent is not None:
            add_rung(rungs, text(name), percent)
    whole = sum(job.spans.values()) or 1
    for name, part in job.spans.most_common():
        if part:
            of_rank = text.duration(part / 1e9 / len(job.timed))
            losses.add_row(text.name("span", name), of_rank, in_percent(100 * part / whole))
    besides = (
        text("beside", name=text.name("span", name), seconds=part / 1e9)
        for name, part in job.beside.items()
    )
    notes = (Text(note, style="dim") for note in _notes(job, text))
    summary = Text(text("summary", **row), style="bold")
    return Group(summary, rungs, Text(text("where")), losses, *map(Text, besides), *notes)


def _draw(job: Job, file: Path, language: str) -> None:
    """Writes the figure as SVG, PNG or PDF by the file's ending. Raises ConfigurationError for any
    other."""
    import seaborn as sns

    from mfulab.lab.report.drawing import style
    from mfulab.lab.report.figures import WRITERS

    if (write := WRITERS.get(file.suffix[1:])) is None:
        endings = Said("ends_in_none", {"endings": f".{', .'.join(WRITERS)}"})
        raise ConfigurationError(of_source(f"--figure {file}", endings))
    text = Texts(language, "goodput")
    row = job.row()
    others = []
    for name, part in job.spans.most_common():
        if part and name not in FIRST:
            others.append(name)
    colors = dict(zip(FIRST, (style.PALETTE[2], style.PALETTE[3], style.GRID), strict=True))
    colors |= dict(zip(others, sns.color_palette("muted", len(others)).as_hex(), strict=True))
    with style.theme():
        figure = style.blank(text("title", job=job.folder), text("summary", **row))
        left, right = figure.subplots(1, 2, width_ratios=(3, 1))
        start = min(stretch.began for stretch in job.stretches)
        for stretch in job.stretches:
            now = (stretch.began - start) / 1e9
            for name, part in stretch.spans.items():
                left.barh(str(stretch.rank), part / 1e9, left=now, color=colors[name], linewidth=0)
                now += part / 1e9
        left.set(xlabel=text("seconds"), ylabel=text("rank"))
        left.invert_yaxis()
        shares = {}
        for name in RUNGS:
            if row[f"{name}_percent"] is not None:
                shares[text(name)] = row[f"{name}_percent"]
        bars = right.barh(list(shares), list(shares.values()), color=style.PALETTE[0])
        right.bar_label(bars, fmt="%.1f %%", padding=3)
        right.set(xlabel=text("of_wall"), xlim=(0, 130))
        right.invert_yaxis()
        handles = [
            style.dot(colors[name], text.name("span", name), "s") for name in (*FIRST, *others)
        ]
        style.legend(figure, handles, columns=6)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(figure, file)
