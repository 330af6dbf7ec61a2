"""Errors of sums by the direction of rounding, and what compensation gives back."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.report.drawing import runs, style, ticks
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
    known = rows[rows[NEAREST] > 0]
    words = []
    if len(known):
        worst = known.loc[(known["toward_zero_sum_error"] / known[NEAREST]).idxmax()]
        words.append(
            text(
                "finding",
                precision=text.name("precision", worst["precision"]),
                count=int(worst["sum_length"]),
                nearest=significant(worst[NEAREST], 2),
                cut=significant(worst["toward_zero_sum_error"], 2),
                factor=significant(worst["toward_zero_sum_error"] / worst[NEAREST], 2),
            )
        )
    grouped = rows.dropna(subset=["not_associative_percent"])
    if len(grouped):
        row = grouped.loc[grouped["not_associative_percent"].idxmax()]
        share, name = percent(row["not_associative_percent"]), text.name("precision", row["precision"])
        words.append(text("associativity", precision=name, share=share))
    apart = rows[rows["tenths_from_left"] != rows["tenths_from_right"]].dropna(
        subset=["tenths_from_left", "tenths_from_right"]
    )
    if len(apart):
        row = apart.loc[apart["bits"].idxmax()]
        left, right = (repr(float(row[f"tenths_from_{side}"])) for side in ("left", "right"))
        words.append(text("triple", precision=text.name("precision", row["precision"]), left=left, right=right))
    return " ".join(words) or text("exact", count=len(rows))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Relative errors by format; filled marks are directions of rounding, open ones compensated sums."""
    axes = figure.subplots()
    names = [text.name("precision", precision) for precision in rows["precision"]]
    series = [*MODES, *COMPENSATED]
    edge = ticks.zero_at_left(axes, rows[series].to_numpy(dtype=float).ravel())
    entries = []
    for place, name in enumerate(series):
        color, marker = style.PALETTE[place], style.MARKERS[place]
        fill = "none" if name in COMPENSATED else "full"
        shifted = [height + 0.3 - 0.1 * place for height in range(len(rows))]
        places = rows[name].clip(lower=edge)
        look = {"fillstyle": fill, "markersize": 9, "clip_on": False, "zorder": 3}
        runs.mark(axes.plot(places, shifted, marker, color=color, **look)[0], rows, name)
        entries.append(style.dot(color, text(name), marker, fill))
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(text("error"))
    style.legend(figure, entries)
