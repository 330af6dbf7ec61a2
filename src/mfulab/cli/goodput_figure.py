"""The figure of a job: each rank's time from begin to end, and the ladder of the whole."""

from pathlib import Path

import seaborn as sns

from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.lab.report.drawing import style
from mfulab.lab.report.figures import WRITERS
from mfulab.loop.goodput.ladder import RUNGS, Job

FIRST = ("step", "lost", "down")  # always of these colours
COLORS = dict(zip(FIRST, (style.PALETTE[2], style.PALETTE[3], style.GRID), strict=True))


def draw(job: Job, file: Path, language: str) -> None:
    """Writes the figure as SVG, PNG or PDF by the file's ending. Raises ConfigurationError for any other."""
    if (write := WRITERS.get(file.suffix[1:])) is None:
        raise ConfigurationError(f"--figure {file}: ends in none of .{', .'.join(WRITERS)}")
    text, row = Texts(language, "goodput"), job.row()
    others = [name for name, part in job.spans.most_common() if part and name not in FIRST]
    colors = COLORS | dict(zip(others, sns.color_palette("muted", len(others)).as_hex(), strict=True))
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
        shares = {text(name): row[f"{name}_percent"] for name in RUNGS if row[f"{name}_percent"] is not None}
        bars = right.barh(list(shares), list(shares.values()), color=style.PALETTE[0])
        right.bar_label(bars, fmt="%.1f %%", padding=3)
        right.set(xlabel=text("of_wall"), xlim=(0, 130))
        right.invert_yaxis()
        handles = [style.dot(colors[name], text.name("span", name), "s") for name in (*FIRST, *others)]
        style.legend(figure, handles, columns=6)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(figure, file)
