"""The bits of special values: zeros, infinities, NaNs, and the ends of the range."""

import json

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report.drawing import style
from mfulab.report.figures import number_formats
from mfulab.report.frames import Tables

TABLES = ("formats",)
TOPIC = "precision"
ORDER = 5
PARTS = ("sign", "exponent_bits", "mantissa_bits")
MOST_BITS = 19  # that can be read side by side
UNMARKED = "bits of a format: what a standard says, and no run"
COLORS = (style.PALETTE[7], style.PALETTE[6], style.PALETTE[5])  # sign, exponent, mantissa, as in number_formats


def rows(tables: Tables) -> pd.DataFrame:
    """The formats whose special values are known; the one to be drawn, with infinities and few bits, comes first."""
    known = number_formats.rows(tables)
    known = known[(known["special_values"] != "") & known["nan_patterns"].notna()]
    drawn = known["special_values"].str.contains("inf") & (known["bits"] <= MOST_BITS)
    return known.assign(drawn=drawn).sort_values(["drawn", "bits", "exponent_bits"], ascending=[False, True, True])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Patterns that the drawn format spends on NaN; digits that numbers need; where a plain sigmoid fails in it."""
    row = rows.iloc[0]
    patterns = 2.0 ** row["bits"]
    many = f"{patterns:,.0f}" if patterns < 1e9 else significant(patterns)
    words = [text("finding", row=row, patterns=many, share=100 * row["nan_patterns"] / patterns)]
    digits = rows.dropna(subset=["round_trip_digits"])
    if len(digits):
        words.append(text("digits", widest=digits.loc[digits["bits"].idxmax()]))
    if row["sigmoid_fails_at"] == row["sigmoid_fails_at"]:
        words.append(text("sigmoid", row=row))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A line a value, a cell a bit; sign, exponent and mantissa in their colours, bits of zero pale."""
    row = rows.iloc[0]
    values = {text(f"value {name}"): bits.split() for name, bits in json.loads(row["special_values"]).items()}
    axes = figure.subplots()
    across = 0.0
    for place, color in enumerate(COLORS):
        bits = pd.DataFrame({name: list(parts[place]) for name, parts in values.items()}).T
        extent = np.arange(bits.shape[1] + 1) + across
        pale = sns.blend_palette([style.PAPER, color], 10)[3]
        axes.pcolormesh(extent, np.arange(len(values) + 1), bits.astype(int), cmap=ListedColormap([pale, color]),
                        vmin=0, vmax=1, edgecolor=style.PAPER, linewidth=2)  # fmt: skip
        for (down, bit), said in bits.stack().items():
            axes.text(across + bit + 0.5, [*values].index(down) + 0.5, said, ha="center", va="center", fontsize=10)
        across += bits.shape[1] + 0.4
    axes.set_yticks(np.arange(len(values)) + 0.5, [*values])
    axes.set_xticks([])
    axes.set_xlabel(text("bits", precision=text.name("precision", row["precision"])))
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    style.legend(figure, [style.dot(color, text(name), "s") for name, color in zip(PARTS, COLORS, strict=True)])
