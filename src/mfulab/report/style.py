"""The look that all figures share: sizes for a projector, colours that everyone can tell apart, who measured when."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK, MUTED, GRID, PAPER = "#1f2933", "#5f6b7a", "#dde2e8", "#ffffff"
# seaborn's "colorblind" without its yellow, its pale pink and one of two near blues: readable on white and on black.
PALETTE = tuple(sns.color_palette("colorblind").as_hex()[index] for index in (0, 1, 2, 3, 4, 5, 9, 7))
SIZE = (10.0, 5.625)  # inches: 16:9, 1920 × 1080 at DPI
DPI = 192
MANY = 1500  # points beyond which an SVG holds them as one picture
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def theme() -> rc_context:
    """A context in which figures are drawn; nothing leaks into the caller's matplotlib."""
    sns_style = sns.axes_style("whitegrid")
    return rc_context(
        {
            **sns_style,
            "font.family": ["DejaVu Sans", *_hangul()],
            "font.size": 12,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 12,
            "axes.labelcolor": INK,
            "axes.edgecolor": MUTED,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "text.color": INK,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "xtick.labelsize": 11,
            "ytick.labelsize": 11,
            "legend.frameon": False,
            "legend.fontsize": 11,
            "lines.linewidth": 2,
            "lines.markersize": 7,
            "figure.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            "svg.fonttype": "path",
            "pdf.fonttype": 42,
        }
    )


def _hangul() -> list[str]:
    """The family of the Hangul font that is installed with the package, registered with matplotlib."""
    found = find_spec("koreanize_matplotlib")
    if found is None or found.origin is None:
        return []
    for weight in ("NanumGothic.ttf", "NanumGothicBold.ttf"):
        path = Path(found.origin).parent / "fonts" / weight
        if path.exists() and not any(font.fname == str(path) for font in font_manager.fontManager.ttflist):
            font_manager.fontManager.addfont(path)
    return ["NanumGothic"]


def colors(values: Iterable[str]) -> dict[str, str]:
    """A colour for each distinct value, in the order given; they repeat beyond eight, so label directly as well."""
    return {value: PALETTE[index % len(PALETTE)] for index, value in enumerate(dict.fromkeys(values))}


def dashes(values: Iterable[str]) -> dict[str, str | tuple[int, tuple[int, ...]]]:
    """A line style for each distinct value, in the order given."""
    patterns = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
    return {value: patterns[index % len(patterns)] for index, value in enumerate(dict.fromkeys(values))}


def blank(title: str, footer: str) -> Figure:
    """A figure with its title above and its provenance below; panels go between them."""
    figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(rect=(0.01, 0.045, 0.98, 0.875), hspace=0.06, wspace=0.04)
    figure.text(0.015, 0.975, title, ha="left", va="top", fontsize=17, fontweight="bold", gid="title")
    figure.text(0.015, 0.012, footer, fontsize=9, color=MUTED, gid="provenance")
    return figure


def panels(
    figure: Figure, rows: Sequence[str], columns: Sequence[str], **shared: bool | str
) -> dict[tuple[str, str], Axes]:
    """A grid of axes by row and column name, titled by whichever of the two varies."""
    grid = figure.subplots(len(rows), len(columns), squeeze=False, **shared)
    named = {}
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            parts = [row] if len(rows) > 1 or not column else []
            grid[i][j].set_title(" · ".join(filter(None, [*parts, column])))
            named[row, column] = grid[i][j]
    return named


def batch_area(batch_size: pd.Series) -> pd.Series:
    """Marker areas in points² that grow with the batch size's number of doublings."""
    return 36 + 16 * np.log2(batch_size.fillna(1).clip(lower=1))


def dot(color: str, label: str, marker: str = "o", fill: str = "full") -> Line2D:
    """A legend's entry for points."""
    return Line2D([], [], color=color, label=label, marker=marker, linestyle="", fillstyle=fill, markeredgewidth=2)


def line(color: str, label: str, linestyle: str = "-") -> Line2D:
    """A legend's entry for lines."""
    return Line2D([], [], color=color, label=label, linestyle=linestyle)


def legend(figure: Figure, entries: Sequence[Line2D]) -> None:
    """One row under the title: what direct labels do not say. A legend of one entry says nothing and is left out."""
    if len(entries) < 2:
        return
    row = figure.legend(
        handles=list(entries),
        loc="upper left",
        bbox_to_anchor=(0.003, 0.93),
        ncols=len(entries),
        handletextpad=0.4,
        columnspacing=1.4,
    )
    row.set_in_layout(False)
    figure.get_layout_engine().set(rect=(0.01, 0.045, 0.98, 0.82))


def provenance(rows: pd.DataFrame) -> str:
    """Who measured, when, with which code: the line under every figure."""
    machines = list(dict.fromkeys(rows["machine"])) if "machine" in rows else []
    dates = sorted({started[:10] for started in rows.get("started_at", pd.Series(dtype=str)) if started})
    commits = sorted({commit for commit in rows.get("commit", pd.Series(dtype=str)) if commit})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} … {dates[-1]}" if dates else ""
    commit = ", ".join(commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") for commit in commits[:2])
    more = "…" if len(commits) > 2 else ""
    return " · ".join(filter(None, [", ".join(machines[:3]), span, f"mfulab {commit}{more}".strip()]))
