"""Number formats: how their bits are spent, and what sums lose in them by the way they are added."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, style, ticks
from mfulab.report.frames import Tables, ok

TABLES = ("formats",)
TOPIC, ORDER = "precision", 3
PARTS = ("sign", "exponent_bits", "mantissa_bits")
BITS = dict(zip(PARTS, (style.PALETTE[7], style.PALETTE[6], style.PALETTE[5]), strict=True))
RUNGS = ("naive_sum_error", "pairwise_sum_error", "kahan_sum_error")


def rows(tables: Tables) -> pd.DataFrame:
    """One row a format, the widest last; integers have no exponent and are left out."""
    known = ok(tables["formats"], "bits", "exponent_bits", "mantissa_bits").drop_duplicates("precision")
    known = known[known["exponent_bits"] > 0]
    return known.assign(sign=1).sort_values(["bits", "mantissa_bits"])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Gain of Kahan's sum in the format in which the plain one loses most."""
    summed = rows.dropna(subset=["naive_sum_error", "kahan_sum_error"])
    if len(summed):
        return text("finding", worst=summed.loc[summed["naive_sum_error"].idxmax()])
    low, high = rows.iloc[0], rows.iloc[-1]
    return text("finding_bits" if low["bits"] < high["bits"] else "finding_one", low=low, high=high)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Left the bits as stacked bars; right relative errors of three ways to add, exact sums at the left edge."""
    bits, errors = figure.subplots(1, 2, width_ratios=[1, 1.4])
    rows = rows.assign(name=[text.name("precision", precision) for precision in rows["precision"]])
    kinds.stacks(bits, rows.iloc[::-1], BITS, "name", width=0.6)
    bits.set(xlabel=text("bits"), xlim=(0, 1.05 * rows[list(PARTS)].sum(axis=1).max()))
    marks = sums(errors, rows, RUNGS, 0.0, text)
    errors.set_yticklabels([])
    style.legend(figure, style.dots(BITS, text, marker="s") + marks)


def sums(axes: Axes, rows: pd.DataFrame, ways: Sequence[str], apart: float, text: Texts) -> list[Line2D]:
    """Relative errors of sums, a line a format and a mark a way to add, exact ones at the left edge; the legend."""
    names = {precision: text.name("precision", precision) for precision in rows["precision"]}
    edge = ticks.zero_at_left(axes, rows[list(ways)].to_numpy(dtype=float).ravel())
    colors, markers = (dict(zip(ways, looks, strict=False)) for looks in (style.PALETTE, style.MARKERS))
    each = rows.melt([*rows.columns.drop([*ways])], [*ways], "way", "error")
    look: style.Look = {"hue": "way", "hues": ways, "apart": apart}
    each["place"] = kinds.lanes(axes, each, "precision", list(names), list(names.values()), **look)
    each = each.assign(shown=each["error"].clip(lower=edge))
    look = {"hue": "way", "colors": colors, "shape": "way", "markers": markers, "s": 81, "alpha": 0.85}
    kinds.points(axes, each, "shown", "place", "error", clip_on=False, **look)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(text("error"))
    return [style.dot(colors[way], text(way), markers[way]) for way in ways]
