"""Tolerances by number format: what an absolute one refuses and accepts, and what a relative one must allow."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.report.drawing import kinds, style
from mfulab.report.figures import number_formats
from mfulab.report.frames import Tables

TABLES = ("formats",)
TOPIC = "precision"
ORDER = 6
BARS = {"absolute_refuses_percent": style.PALETTE[0], "absolute_accepts_percent": style.PALETTE[1]}
MARKS = {"relative_tolerance": style.PALETTE[2], "gradient_difference_error": style.PALETTE[3]}


def rows(tables: Tables) -> pd.DataFrame:
    """The formats whose tolerances are known, the widest last."""
    known = number_formats.rows(tables)
    return known[known[[*BARS, "relative_tolerance"]].notna().all(axis=1)]


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The format in which an absolute tolerance errs most, the relative one there, and where gradcheck fails."""
    words = [text("finding", worst=rows.loc[rows[list(BARS)].sum(axis=1).idxmax()])]
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
    shares, errors = figure.subplots(1, 2)
    rows = rows.assign(name=[text.name("precision", precision) for precision in rows["precision"]])
    each = rows.melt([*rows.columns.drop([*BARS])], [*BARS], "what", "share").iloc[::-1]
    each = each.assign(words=[f"{percent(share)} %" for share in each["share"]])
    order = list(rows["name"])[::-1]
    kinds.bars(shares, each, "share", "name", hue="what", colors=BARS, order=order, words="words")
    shares.set(xlim=(0, 118), xlabel=text("share"))
    each = rows.melt([*rows.columns.drop([*MARKS])], [*MARKS], "what", "error")
    each["place"] = kinds.lanes(errors, each, "name", order[::-1])
    markers = dict(zip(MARKS, "^D", strict=True))
    kinds.points(errors, each, "error", "place", "error", hue="what", colors=MARKS, shape="what", markers=markers, s=81)
    errors.set(xscale="log", xlabel=text("error"), yticklabels=[])
    errors.xaxis.set_minor_formatter(NullFormatter())
    errors.grid(axis="y", visible=False)
    marks = [style.dot(color, text(name), markers[name]) for name, color in MARKS.items()]
    style.legend(figure, style.dots(BARS, text, marker="s") + marks)
