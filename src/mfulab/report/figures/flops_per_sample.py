"""Forward and backward FLOPs of a sample, by model."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report.drawing import kinds, style
from mfulab.report.frames import Tables, ok

TABLES = ("flops",)
TOPIC = "flops"
ORDER = 1
MOST = 24


def rows(tables: Tables) -> pd.DataFrame:
    """One count a model: of its smallest batch and longest sequence, per sample."""
    counted = ok(tables["flops"], "forward_flops", "batch_size")
    counted = counted.sort_values(["batch_size", "sequence_length"], ascending=[True, False]).drop_duplicates("model")
    for name in ("forward", "backward", "other"):
        counted[f"{name}_per_sample"] = counted[f"{name}_flops"] / counted["batch_size"]
    return counted.nlargest(MOST, "forward_per_sample").iloc[::-1]


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The range between models, and of the ratio of backward to forward."""
    least, most = rows.loc[rows["forward_per_sample"].idxmin()], rows.loc[rows["forward_per_sample"].idxmax()]
    ratio = (rows["backward_flops"] / rows["forward_flops"]).dropna()
    key = "finding_one" if least["forward_per_sample"] == most["forward_per_sample"] else "finding"
    words = text(key, least=least, most=most)
    if ratio.empty:
        return words
    low, high = significant(ratio.min()), significant(ratio.max())
    return f"{words} " + text("ratio" if low != high else "ratio_same", low=low, high=high)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Dots on a logarithmic scale: forward, and forward with backward."""
    style.fit(figure, len(rows))
    axes = figure.subplots()
    lengths = [f" ({length:.0f})" if length == length else "" for length in rows["sequence_length"]]
    rows = rows.assign(both=rows["forward_per_sample"] + rows["backward_per_sample"], place=range(len(rows)))
    kinds.lanes(axes, rows, "model", rows["model"] + lengths, fontsize=10 if len(rows) > 14 else 11)
    axes.hlines(rows["place"], rows["forward_per_sample"], rows["both"], color=style.GRID, linewidth=4)
    kinds.points(axes, rows, "forward_per_sample", "place", "forward_per_sample", s=64)
    both = ("both", "place", "backward_per_sample", "other_per_sample")
    kinds.points(axes, rows, *both, colors=style.PALETTE[1], s=64)
    far = rows["both"].fillna(rows["forward_per_sample"])
    for row, end in zip(rows.itertuples(), far, strict=True):
        words = text("label", forward=row.forward_per_sample, parameters=row.parameters)
        beside = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": style.MUTED}
        axes.annotate(words, (end, row.place), (9, 0), **beside)
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log")
    axes.set_xlim(right=far.max() * 30)
    axes.set_xlabel(text("flops"))
    style.legend(figure, [style.dot(style.PALETTE[0], text("forward")), style.dot(style.PALETTE[1], text("both"))])
