"""Errors of sums by the direction of rounding, and what compensation gives back."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import style
from mfulab.report.figures import number_formats
from mfulab.report.frames import Tables

TABLES = ("formats",)
TOPIC = "precision"
ORDER = 4
NEAREST = "naive_sum_error"
DIRECTED = ("toward_zero_sum_error", "up_sum_error", "down_sum_error")
MODES = (NEAREST, "nearest_away_sum_error", *DIRECTED)
COMPENSATED = ("kahan_sum_error", "neumaier_sum_error")


def rows(tables: Tables) -> pd.DataFrame:
    """One row a format in which sums were rounded in all directions."""
    return number_formats.rows(tables).dropna(subset=[NEAREST, "toward_zero_sum_error"])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Cut-off sums against nearest ones where that costs most, and how often the order of two additions matters."""
    known, words = rows[rows[NEAREST] > 0], []
    factors = known["toward_zero_sum_error"] / known[NEAREST]
    if len(known):
        words.append(text("finding", worst=known.loc[factors.idxmax()], factor=factors.max()))
    grouped = rows.dropna(subset=["not_associative_percent"])
    if len(grouped):
        words.append(text("associativity", worst=grouped.loc[grouped["not_associative_percent"].idxmax()]))
    sides = [f"tenths_from_{side}" for side in ("left", "right")]
    apart = rows[rows[sides[0]] != rows[sides[1]]].dropna(subset=sides)
    if len(apart):
        row = apart.loc[apart["bits"].idxmax()]
        left, right = (repr(float(row[side])) for side in sides)
        words.append(text("triple", precision=text.name("precision", row["precision"]), left=left, right=right))
    return " ".join(words) or text("exact", count=len(rows))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Relative errors by format, of each direction of rounding and of compensated sums."""
    marks = number_formats.sums(figure.subplots(), rows, (*MODES, *COMPENSATED), 0.1, text)
    style.legend(figure, marks)
