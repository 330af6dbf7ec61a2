"""Number formats: how their bits are spent, and what sums lose in them by the way they are added."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report.drawing import runs, style, ticks
from mfulab.report.frames import Tables, ok

TABLES = ("formats",)
TOPIC = "precision"
ORDER = 3
PARTS = ("sign", "exponent_bits", "mantissa_bits")
RUNGS = ("naive_sum_error", "pairwise_sum_error", "kahan_sum_error")


def rows(tables: Tables) -> pd.DataFrame:
    """One row a format, the widest last; integers have no exponent and are left out."""
    known = ok(tables["formats"], "bits", "exponent_bits", "mantissa_bits").drop_duplicates("precision")
    known = known[known["exponent_bits"] > 0]
    return known.assign(sign=1).sort_values(["bits", "mantissa_bits"])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Gain of Kahan's sum in the format in which the plain one loses most."""
    summed = rows.dropna(subset=["naive_sum_error", "kahan_sum_error"])
    widest, narrowest = rows.iloc[-1], rows.iloc[0]
    if summed.empty:
        return text(
            "finding_bits" if narrowest["bits"] < widest["bits"] else "finding_one",
            low=narrowest["precision"],
            few=int(narrowest["bits"]),
            high=widest["precision"],
            many=int(widest["bits"]),
        )
    worst = summed.loc[summed["naive_sum_error"].idxmax()]
    return text(
        "finding",
        precision=text.name("precision", worst["precision"]),
        count=int(worst["sum_length"]),
        naive=significant(worst["naive_sum_error"], 2),
        kahan=significant(worst["kahan_sum_error"], 2),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Left the bits as stacked bars; right relative errors of three ways to add, exact sums at the left edge."""
    bits, errors = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.4])
    names = [text.name("precision", precision) for precision in rows["precision"]]
    base = pd.Series(0.0, index=rows.index)
    for part, color in zip(PARTS, (style.PALETTE[7], style.PALETTE[6], style.PALETTE[5]), strict=True):
        runs.mark(bits.barh(names, rows[part], left=base, color=color, height=0.6), rows, part)
        base += rows[part]
    bits.set_xlabel(text("bits"))
    bits.set_xlim(0, base.max() * 1.05)
    edge = ticks.zero_at_left(errors, rows[list(RUNGS)].to_numpy(dtype=float).ravel())
    for rung, color, marker in zip(RUNGS, style.PALETTE, style.MARKERS, strict=False):
        known = rows[rows[rung].notna()]
        heights = [names.index(text.name("precision", precision)) for precision in known["precision"]]
        places = known[rung].clip(lower=edge)
        look = {"markersize": 9, "alpha": 0.85, "clip_on": False, "zorder": 3}
        runs.mark(errors.plot(places, heights, marker, color=color, **look)[0], known, rung)
    errors.xaxis.set_minor_formatter(NullFormatter())
    errors.set_xlabel(text("error"))
    for axes in (bits, errors):
        axes.grid(axis="y", visible=False)
    entries = [
        style.dot(color, text(part), "s")
        for part, color in zip(PARTS, (style.PALETTE[7], style.PALETTE[6], style.PALETTE[5]), strict=True)
    ]
    entries += [
        style.dot(color, text(rung), marker)
        for rung, color, marker in zip(RUNGS, style.PALETTE, style.MARKERS, strict=False)
    ]
    style.legend(figure, entries)
