"""The peaks that other libraries take, by how they relate to the datasheet: one bar a library."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import runs, style
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
    words = text(
        "finding",
        agreed=int((given["verdict"] == "agreed").sum()),
        count=len(given),
        libraries=given["library"].nunique(),
        missing=int((rows["precision"].fillna("") == "").sum()),
    )
    wrong = given[(given["verdict"] != "agreed") & (given["ratio"] > 1) & (given["precision"].isin(["bf16", "fp16"]))]
    if wrong.empty:
        return words
    worst = wrong.loc[wrong["ratio"].idxmax()]
    return f"{words} " + text(
        "worst",
        library=worst["library"],
        device=worst["device"],
        precision=text.name("precision", worst["precision"]),
        theirs=worst["theirs"],
        ours=worst["ours"],
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Stacked bars of counts; a device that a library does not know counts once."""
    libraries = list(dict.fromkeys(rows["library"]))[::-1]
    style.fit(figure, len(libraries))
    axes = figure.subplots()
    counts = rows.groupby(["library", "verdict"]).size().unstack(fill_value=0).reindex(libraries)
    shown = [verdict for verdict in VERDICTS if verdict in counts]
    left = pd.Series(0.0, index=libraries)
    looks = dict(zip(VERDICTS, (style.PALETTE[2], *style.PALETTE[:2], *style.PALETTE[3:7], style.GRID), strict=True))
    for verdict in shown:
        bars = axes.barh(libraries, counts[verdict], left=left, color=looks[verdict], height=0.6)
        runs.mark(bars, counts.assign(run=libraries, doubtful=False), verdict)
        left += counts[verdict]
    axes.set_xlabel(text("answers"))
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.03 * left.max())
    style.legend(figure, [style.dot(looks[verdict], text.name("peak_verdict", verdict), "s") for verdict in shown])
