"""`mfulab goodput FOLDER`: the ladder of a job, from wall time to useful tokens, and the parts of
the lost time."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.text import Text

from mfulab.cli.options import AS_JSON, FILE, LANGUAGE, PATH, PROMETHEUS, SECONDS, command
from mfulab.cli.watch import follow
from mfulab.core.answer import Answer, Doubt, answered, unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.core.language.quantities import in_percent
from mfulab.core.parts import Record, Row
from mfulab.core.said import Said, of_source
from mfulab.core.terminal import bare_table
from mfulab.loop.goodput.ladder import RUNGS, JobTime, job_of
from mfulab.loop.interactive.show import add_rung

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST = ("step", "lost", "down")  # spans with fixed colours in the figure


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
    help="Also draw each rank's time to FILE: .svg, .png or .pdf.",
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
    """Prints the ladder once, or serves it for Prometheus until interrupted, updated every
    `interval_s` seconds. Returns the exit status."""
    if figure:
        _draw(job_of(folder), figure, language)

    def frames() -> Iterator[tuple[Record, Group]]:
        while True:
            job = job_of(folder)
            row = job.row()
            columns: Record = {"name": row["job"]}
            for name, value in row.items():
                if name != "job":
                    columns[f"goodput_{name}"] = value
            columns |= {"answer": answer(job, row), "notes": _notes(job, Texts("en", "goodput"))}
            yield columns, _picture(job, row, language)
            time.sleep(interval_s)

    return follow(frames(), None if prometheus is not None else 1, as_json, prometheus)


def answer(job: JobTime, row: Row) -> Answer:
    """Goodput of a job, in %: the share of its time that went into steps whose result was kept. It
    has no value if no time is known."""
    kept = row["kept_percent"]
    if kept is None:
        return unanswered("%", Said("untimed"))
    doubt: Doubt = dict(job.notes)
    if row["mfu_percent"] is None:
        doubt["no_mfu"] = {}
    held_s = row["wall_s"] * row["ranks"]
    return answered(kept, "%", "measured", denominator=held_s, denominator_unit="s", doubt=doubt)


def _notes(job: JobTime, text: Texts) -> list[str]:
    notes = [text(key, **values) for key, values in job.notes]
    if job.of_steps.mfu_percent is None:
        notes.append(text("no_mfu"))
    return notes


def _picture(job: JobTime, row: Record, language: str) -> Group:
    text = Texts(language, "goodput")
    rungs = bare_table()
    losses = bare_table()
    for name in RUNGS:
        percent = row[f"{name}_percent"]
        if percent is not None:
            add_rung(rungs, text, name, percent)
    total_ns = sum(job.spans.values()) or 1
    for name, span_ns in job.spans.most_common():
        if span_ns:
            per_rank = text.duration(span_ns / 1e9 / len(job.timed))
            share = text.written(in_percent(100 * span_ns / total_ns))
            losses.add_row(text.name("span", name), per_rank, share)
    overlapped = (
        Text(text("beside", name=text.name("span", name), seconds=span_ns / 1e9))
        for name, span_ns in job.beside.items()
    )
    notes = (Text(note, style="dim") for note in _notes(job, text))
    summary = Text(text("summary", **row), style="bold")
    return Group(summary, rungs, Text(text("where")), losses, *overlapped, *notes)


def _draw(job: JobTime, file: Path, language: str) -> None:
    """Writes the figure as SVG, PNG or PDF, chosen by the file's ending. Raises ConfigurationError
    for any other ending."""
    import seaborn as sns

    from mfulab.lab.report.drawing import style
    from mfulab.lab.report.figures import WRITERS

    write = WRITERS.get(file.suffix[1:])
    if write is None:
        endings = Said("ends_in_none", endings=f".{', .'.join(WRITERS)}")
        raise ConfigurationError(of_source(f"--figure {file}", endings))
    text = Texts(language, "goodput")
    row = job.row()
    others = []
    for name, span_ns in job.spans.most_common():
        if span_ns and name not in FIRST:
            others.append(name)
    colors = dict(zip(FIRST, (style.PALETTE[2], style.PALETTE[3], style.GRID), strict=True))
    colors |= dict(zip(others, sns.color_palette("muted", len(others)).as_hex(), strict=True))
    with style.theme():
        figure = style.blank(text("title", job=job.folder), text("summary", **row))
        left, right = figure.subplots(1, 2, width_ratios=(3, 1))
        _draw_ranks(left, job, colors)
        left.set(xlabel=text("seconds"), ylabel=text("rank"))
        left.invert_yaxis()
        _draw_rungs(right, row, text, style.PALETTE[0])
        right.set(xlabel=text("of_wall"), xlim=(0, 130))
        right.invert_yaxis()
        handles = [style.dot(color, text.name("span", name), "s") for name, color in colors.items()]
        style.legend(figure, handles, columns=6)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(figure, file)


def _draw_ranks(axes: "Axes", job: JobTime, colors: Mapping[str, str]) -> None:
    """Draws each rank's spans one after the other, in seconds since the job began."""
    start = min(stretch.began for stretch in job.stretches)
    for stretch in job.stretches:
        began_s = (stretch.began - start) / 1e9
        for name, span_ns in stretch.spans.items():
            span_s = span_ns / 1e9
            axes.barh(str(stretch.rank), span_s, left=began_s, color=colors[name], linewidth=0)
            began_s += span_s


def _draw_rungs(axes: "Axes", row: Record, text: Texts, color: str) -> None:
    """Draws a bar for each rung that the job has, with its percentage."""
    shares = {}
    for name in RUNGS:
        if row[f"{name}_percent"] is not None:
            shares[text(name)] = row[f"{name}_percent"]
    bars = axes.barh(list(shares), list(shares.values()), color=color)
    labels = [text.written(f"{share:.1f} %") for share in shares.values()]
    axes.bar_label(bars, labels, padding=3)
