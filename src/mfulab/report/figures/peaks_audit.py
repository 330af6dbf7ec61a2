"""The peaks that other libraries take, by how they relate to the datasheet: one bar a library."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, style
from mfulab.report.frames import Tables, ok

TABLES = ("peaks",)
TOPIC = "published"
ORDER = 3
VERDICTS = (
    "agreed",
    "sparse for dense",
    "another format",
    "another device",
    "halved",
    "guessed",
    "different",
    "missing",
)


def rows(tables: Tables) -> pd.DataFrame:
    """Every answer of every library, and the devices that it does not know."""
    return ok(tables["peaks"], "verdict", "device")


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Number of answers that agree, and the one that is furthest too high for a device that the library knows."""
    given = rows[rows["theirs"].notna()]
    if given.empty:
        return text("none", count=len(rows))
    counts = {"agreed": int((given["verdict"] == "agreed").sum()), "libraries": given["library"].nunique()}
    missing = int((rows["precision"].fillna("") == "").sum())
    words = text("finding", **counts, count=len(given), missing=missing)
    wrong = given[(given["verdict"] != "agreed") & (given["ratio"] > 1) & (given["precision"].isin(["bf16", "fp16"]))]
    return words if wrong.empty else f"{words} {text('worst', worst=wrong.loc[wrong['ratio'].idxmax()])}"


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Stacked bars of counts; a device that a library does not know counts once."""
    counts = rows.groupby(["library", "verdict"], sort=False).size().unstack(fill_value=0)
    style.fit(figure, len(counts))
    axes = figure.subplots()
    looks = (style.PALETTE[2], *style.PALETTE[:2], *style.PALETTE[3:7], style.GRID)
    colors = {verdict: color for verdict, color in zip(VERDICTS, looks, strict=True) if verdict in counts}
    counts = counts.assign(library=counts.index, run=counts.index, doubtful=False)
    kinds.stacks(axes, counts, colors, "library", width=0.6)
    axes.set(xlabel=text("answers"), xlim=(0, 1.03 * counts[[*colors]].sum(axis=1).max()))
    style.legend(figure, style.dots(colors, text, "peak_verdict", "s"))
