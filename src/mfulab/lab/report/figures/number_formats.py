"""Number formats: how their bits are used, and the error of sums in them by the way of adding."""

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, highest, ok

TOPIC = "precision"
ORDER = 3
CLAIM = claims.COUNTED
# Parts of a format.
BITS = {
    "sign": style.PALETTE[7],
    "exponent_bits": style.PALETTE[6],
    "mantissa_bits": style.PALETTE[5],
}
RUNGS = ("naive_sum_error", "kahan_sum_error")


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each format, the widest last. Integers are left out, as they have no
    exponent."""
    formats = ok(tables["formats"], "bits", "exponent_bits", "mantissa_bits")
    formats = formats.drop_duplicates("precision")
    formats = formats[formats["exponent_bits"] > 0]
    return formats.assign(sign=1).sort_values(["bits", "mantissa_bits"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the gain of Kahan's sum in the format in which the plain sum has the largest
    error."""
    summed = rows.dropna(subset=["naive_sum_error", "kahan_sum_error"])
    if len(summed):
        return text("finding", worst=highest(summed, "naive_sum_error"))
    low = rows.iloc[0]
    high = rows.iloc[-1]
    key = "finding_one"
    if low["bits"] < high["bits"]:
        key = "finding_bits"
    return text(key, low=low, high=high)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws the bits of each format as stacked bars, and the relative errors of two ways to add,
    joined by a line. Exact sums are at the left edge."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.4])
    rows = rows.assign(name=specs.names("precision", rows["precision"], text))
    _draw_bits(left, rows, text)
    colors = style.colors(RUNGS)
    markers = dict(zip(RUNGS, style.MARKERS, strict=False))
    look = style.hued("way", colors, markers) | {
        "s": 81,
        "alpha": 0.85,
        "clip_on": False,
    }
    edge = ticks.zero_at_left(right, rows[[*RUNGS]].to_numpy(dtype=float).ravel())
    others = rows.columns.drop([*RUNGS])
    sums = rows.melt([*others], [*RUNGS], "way", "error")
    place = kinds.lanes(right, sums, "name", list(rows["name"]))
    ends = rows[[*RUNGS]].astype(float).clip(lower=edge)
    right.hlines(range(len(rows)), ends.min(axis=1), ends.max(axis=1), color=style.MUTED)
    sums = sums.assign(place=place, shown=sums["error"].clip(lower=edge))
    kinds.points(right, sums, "shown", "place", "error", **look)
    right.xaxis.set_minor_formatter(NullFormatter())
    right.grid(axis="y", visible=False)
    right.set(xlabel=text("error"), yticklabels=[])
    return style.dots(BITS, text, marker="s") + style.dots(colors, text, marker=markers)


def _draw_bits(axes: Axes, rows: DataFrame, text: Texts) -> None:
    """Draws a stacked bar for each format, the widest at the top."""
    kinds.stacks(
        axes,
        rows[::-1],
        BITS,
        "name",
        width=0.6,
    )
    widest = rows[[*BITS]].sum(axis=1).max()
    axes.set(xlabel=text("bits"), xlim=(0, 1.05 * widest))
