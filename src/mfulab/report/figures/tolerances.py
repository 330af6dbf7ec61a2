"""Tolerances by number format: what an absolute one refuses and accepts, and what a relative one must allow."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.report.drawing import runs, style
from mfulab.report.figures import number_formats
from mfulab.report.frames import Tables

TABLES = ("formats",)
TOPIC = "precision"
ORDER = 6
BARS = ("absolute_refuses_percent", "absolute_accepts_percent")
MARKS = ("relative_tolerance", "gradient_difference_error")
COLORS = (style.PALETTE[0], style.PALETTE[1])


def rows(tables: Tables) -> pd.DataFrame:
    """The formats whose tolerances are known, the widest last."""
    known = number_formats.rows(tables)
    return known[known[[*BARS, "relative_tolerance"]].notna().all(axis=1)]


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The format in which an absolute tolerance errs most, the relative one beside it, and where gradcheck fails."""
    row = rows.loc[rows[list(BARS)].sum(axis=1).idxmax()]
    words = [
        text(
            "finding",
            precision=text.name("precision", row["precision"]),
            refused=percent(row["absolute_refuses_percent"]),
            accepted=percent(row["absolute_accepts_percent"]),
            relative=significant(row["relative_tolerance"], 2),
        )
    ]
    checked = rows[rows["gradcheck_passes"].notna()].iloc[::-1]
    passed = checked["gradcheck_passes"].astype(bool)
    names = checked["precision"].map(lambda precision: text.name("precision", precision))
    if passed.any():
        words.append(text("passes", formats=", ".join(names[passed])))
    if not passed.all():
        words.append(text("fails", formats=", ".join(names[~passed])))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Left shares of right results refused and wrong ones accepted; right two relative errors."""
    style.fit(figure, len(rows) + 2)
    shares, errors = figure.subplots(1, 2, sharey=True)
    names = [text.name("precision", precision) for precision in rows["precision"]]
    for place, (name, color) in enumerate(zip(BARS, COLORS, strict=True)):
        heights = [height + 0.19 - 0.38 * place for height in range(len(rows))]
        runs.mark(shares.barh(heights, rows[name], height=0.34, color=color), rows, name)
        for height, share in zip(heights, rows[name], strict=True):
            shares.text(share + 1, height, f"{percent(share)} %", va="center", fontsize=9)
    shares.set_xlim(0, 118)
    shares.set_xlabel(text("share"))
    for place, name in enumerate(MARKS, start=2):
        look = {"color": style.PALETTE[place], "markersize": 9}
        runs.mark(errors.plot(rows[name], range(len(rows)), style.MARKERS[place], **look)[0], rows, name)
    errors.set_xscale("log")
    errors.xaxis.set_minor_formatter(NullFormatter())
    errors.set_xlabel(text("error"))
    shares.set_yticks(range(len(names)), names)
    for axes in (shares, errors):
        axes.grid(axis="y", visible=False)
    entries = [style.dot(color, text(name), "s") for name, color in zip(BARS, COLORS, strict=True)]
    entries += [
        style.dot(style.PALETTE[place], text(name), style.MARKERS[place]) for place, name in enumerate(MARKS, start=2)
    ]
    style.legend(figure, entries)
