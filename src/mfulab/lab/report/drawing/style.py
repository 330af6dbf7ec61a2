"""The common look of all figures: sizes for projectors, colours that everyone can distinguish,
legends, panels and provenance."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count, product
from typing import Any, TypeAlias, get_args

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import legend as mpl_legend
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from rich.cells import cell_len as letters

from mfulab.core.groups import WorkloadConfig
from mfulab.core.language import Texts
from mfulab.lab.report import frames
from mfulab.lab.report.drawing import fonts

INK = "#1f2933"
MUTED = "#5f6b7a"
GRID = "#dde2e8"
PAPER = "#ffffff"
# Text on colours that no theme of the page changes.
ON_PALE = "#262626"
ON_DEEP = "#fefefe"
# seaborn's "colorblind" without yellow, pale pink and one of two similar blues, so that all colours
# are readable on white and black.
PALETTE = tuple(
    sns.color_palette("colorblind").as_hex()[index] for index in (0, 1, 2, 3, 4, 5, 9, 7)
)
SIZE = (10.0, 5.625)  # inches: 16:9, 1920 × 1080 at DPI
TITLE_WIDTHS = {3: 22, 4: 18}  # letters of a title's line, by the number of panels in a row
DPI = 192
SLIDE_HEIGHT = 4.85  # inches of a figure on a slide; the rest is for its sentence
SMALLEST = 9.2  # font size on a slide, 24 of its 1080 pixels
LEGEND_WIDTH = 690  # points available for a legend
LEAST = 6.0  # smallest readable font size of a legend
WIDTH = 90  # letters of axis labels below all panels in a row
LETTERS = 128  # of the provenance that fit the width of a figure
MANY = 1500  # points above which an SVG holds them as an image
PALE = 0.35  # opacity of differences within the intervals
Look: TypeAlias = dict[str, Any]  # options of `kinds`, seaborn and Matplotlib
LEGEND: Look = {"loc": "upper left", "handletextpad": 0.4, "columnspacing": 1.4}
# Lines of values to compare with.
LIMIT: Look = {
    "color": MUTED,
    "linewidth": 1,
    "linestyle": (0, (4, 3)),
}
PAPER_BEHIND: Look = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}  # box of a text on lines
Dash: TypeAlias = str | tuple[float, ...]
PRECISIONS = ("fp32", "bf16", "fp16", "tf32", "fp8", "fp64", "amp_bf16", "amp_fp16")
FAMILIES = ("library", "CPU", "Numba CUDA", "CUDA C", "Triton", "tile language")  # of kernels
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def theme() -> rc_context:
    """Context manager with the Matplotlib settings of all figures; they do not affect the
    caller's."""
    return rc_context(
        {
            **sns.axes_style("whitegrid"),
            "font.family": fonts.families(),
            "font.size": 12,
            "text.color": INK,
            "figure.facecolor": PAPER,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.labelsize": 12,
            "axes.linewidth": 0.8,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titley": 1.0,  # a fixed position saves a search for ticks above the panel
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "legend.fontsize": 11,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "lines.markersize": 7,
            "pdf.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "mfulab",
            "xtick.color": MUTED,
            "xtick.labelcolor": INK,
            "xtick.labelsize": 11,
            "ytick.color": MUTED,
            "ytick.labelcolor": INK,
            "ytick.labelsize": 11,
        }
    )


def machines(rows: pd.DataFrame, most: int = 3) -> list[str]:
    """Machines that get a panel: measured here before recorded, GPUs before CPUs, then by name."""
    distinct = rows[["recorded", "machine"]].assign(is_cpu=False)
    if "device" in rows:
        distinct["is_cpu"] = rows["device"] == "cpu"
    ordered = distinct.drop_duplicates().sort_values(["recorded", "is_cpu", "machine"])
    return list(dict.fromkeys(ordered["machine"]))[:most]


def of_machines(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Rows of the first `most` machines."""
    return rows[rows["machine"].isin(machines(rows, most))]


def modes(rows: pd.DataFrame, text: Texts) -> dict[str, str]:
    """Modes that occur, each with its name, in the same order in all figures."""
    usual = dict.fromkeys(get_args(WorkloadConfig.model_fields["mode"].annotation))
    present = rows["mode"].unique()
    found = {}
    for mode in usual | dict.fromkeys(sorted(present)):
        if mode in present:
            found[mode] = text.name("mode", mode)
    return found


def usual_colors(values: Iterable[str], usual: Sequence[str] = PRECISIONS) -> dict[str, str]:
    """A colour for each of a few values. Usual values have the same colour in all figures; others
    get a free one."""
    if isinstance(values, pd.Series):
        values = pd.unique(values)  # many rows, few values
    present = set(values)
    indices = {value: index for index, value in enumerate(usual) if value in present}
    taken = set(indices.values())
    free = [index for index in range(len(PALETTE)) if index not in taken]
    others = sorted(present - set(indices))
    indices |= zip(others, chain(free, count()), strict=False)
    return {value: _color(index) for value, index in indices.items()}


def _color(index: int) -> str:
    """A colour by its number. Beyond eight they repeat."""
    return PALETTE[index % len(PALETTE)]


def colors(values: Iterable[str]) -> dict[str, str]:
    """A colour for each distinct value, in order. Beyond eight they repeat, with different
    `shapes`."""
    distinct = dict.fromkeys(values)
    return {value: _color(index) for index, value in enumerate(distinct)}


def shapes(values: Iterable[str]) -> dict[str, str]:
    """A marker for each distinct value; it changes each time `colors` start again."""
    found = {}
    for index, value in enumerate(dict.fromkeys(values)):
        round_of_colors = index // len(PALETTE)
        found[value] = MARKERS[round_of_colors % len(MARKERS)]
    return found


def hued(column: str, palette: Mapping[Any, str], markers: Mapping[Any, str] | None = None) -> Look:
    """Options of marks that have the colour, and the shape if given, of their value of a column."""
    look: Look = {"hue": column, "palette": palette}
    if markers:
        look |= {"style": column, "markers": markers}
    return look


def blank(title: str, footer: str) -> Figure:
    """Returns a figure with its title at the top and its provenance at the bottom, without
    panels."""
    figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(hspace=0.06, wspace=0.04)
    figure.text(
        0.015,
        1,
        title,
        ha="left",
        va="top",
        fontsize=17,
        fontweight="bold",
        gid="title",
    )
    figure.text(
        0.015,
        0,
        footer,
        fontsize=9,
        color=MUTED,
        gid="provenance",
    )
    arrange(figure)
    return figure


def arrange(figure: Figure, top: float = 0.76) -> None:
    """Sets the positions of title, legend, provenance and panels. `top` are the inches for title
    and legend."""
    height = figure.get_figheight()
    places = (1 - 0.14 / height, 0.07 / height)
    for text, y in zip(figure.texts, places, strict=False):
        text.set_y(y)
    for legend in figure.legends:
        anchor = (0.003, 1 - 0.39 / height)
        legend.set_bbox_to_anchor(anchor, transform=figure.transFigure)
    if not figure.legends:
        top = 0.45
    above = top / height
    below = 0.25 / height
    figure.get_layout_engine().set(rect=(0.01, below, 0.98, 1 - above - below))


def panels(
    figure: Figure,
    rows: Sequence[str],
    columns: Sequence[str],
    x: str | Sequence[str] = "",
    y: str = "",
    lines: int | None = None,
    **shared: Any,
) -> np.ndarray:
    """Returns a grid of axes, titled if rows or columns vary, with `x` and `y` as labels of the
    outer axes. `lines` sets the height."""
    figure.set_size_inches(SIZE[0], SIZE[1] * (1 + 0.5 * (len(rows) - 1)))
    arrange(figure)
    grid = figure.subplots(
        len(rows),
        len(columns),
        squeeze=False,
        **shared,
    )
    for axes, (row, column) in zip(grid.flat, product(rows, columns), strict=True):
        if column and len(rows) == 1:
            row = ""
        axes.set_title(_title(row, column, len(columns)))
    if isinstance(x, str):
        x = [x] * len(columns)
    for axes, label in zip(grid[-1], x, strict=True):
        axes.set_xlabel(label)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    if lines is not None:
        fit(figure, lines)
    return grid


def _title(row: str, column: str, across: int) -> str:
    """Title of a panel, in one line if `across` panels leave room for it."""
    width = TITLE_WIDTHS.get(across, 78 // across)
    parts = list(filter(None, (row, column)))
    separator = "\n"
    if across < 3 and sum(map(letters, parts)) + 3 <= width:
        separator = " · "
    return separator.join(wrapped(part, width) for part in parts)


def by_machine(
    figure: Figure,
    rows: pd.DataFrame,
    titled: Callable[[pd.DataFrame], str] = lambda rows: "",
    **shared: Any,
) -> list[tuple[Axes, pd.DataFrame]]:
    """Returns a panel for each machine, from left to right, with its rows. `titled` returns words
    after the machine's name."""
    parts = []
    titles = []
    for name in machines(rows):
        here = frames.those(rows, rows["machine"] == name)
        parts.append(here)
        titles.append(" · ".join(filter(None, [name, titled(here)])))
    grid = panels(figure, [""], titles, **shared)
    return list(zip(grid[0], parts, strict=True))


def facets(
    figure: Figure,
    rows: pd.DataFrame,
    case: str,
    cases: Mapping[Any, str] | int,
    **shared: Any,
) -> list[tuple[Axes, pd.DataFrame]]:
    """Returns a panel for each machine (if any) and value of `case`, with its rows. `cases` are
    titles by value, or a number of values to show. Panels without rows are hidden, as are rows and
    columns of them."""
    if "machine" not in rows:
        rows = rows.assign(machine="")
    if isinstance(cases, int):
        cases = {value: value for value in rows[case].drop_duplicates()[:cases]}
    rows = rows[rows[case].isin(cases)]
    names = machines(rows)
    rows = rows[rows["machine"].isin(names)]
    present = set(rows[case])
    cases = {value: title for value, title in cases.items() if value in present}
    grid = panels(figure, names, list(cases.values()), **shared)
    cells = []
    for axes, (name, value) in zip(grid.flat, product(names, cases), strict=True):
        here = rows[(rows["machine"] == name) & (rows[case] == value)]
        cells.append((axes, here))
    drawn = np.array([len(here) > 0 for _, here in cells]).reshape(grid.shape)
    if not drawn.all():
        _hide(grid, drawn)
    return cells


def _hide(grid: np.ndarray, drawn: np.ndarray) -> None:
    """Hides panels that are not drawn. The outermost others get labels and tick labels, and a panel
    alone in its row gets the whole row."""
    for axes in grid[~drawn]:
        axes.set_visible(False)
    is_wide = (drawn.sum(axis=1) == 1) & (grid.shape[1] > 1)
    for number, (line, is_drawn) in enumerate(zip(grid, drawn, strict=True)):
        first = line[is_drawn][0]
        if is_wide[number]:
            first.set_subplotspec(first.get_gridspec()[number, :])
        first.set_ylabel(line[0].get_ylabel())
        first.tick_params(labelleft=True)
    for line, is_drawn in zip(grid.T, drawn.T, strict=True):
        last = line[is_drawn][-1]
        last.set_xlabel(line[-1].get_xlabel())
        last.tick_params(labelbottom=True)
    if is_wide.any():  # then panels of a column are not aligned, so all need tick labels
        for axes in grid[drawn]:
            axes.tick_params(labelbottom=True)


def in_rows(
    figure: Figure, rows: pd.DataFrame, columns: Sequence[str], **shared: Any
) -> list[tuple[Any, Any]]:
    """Returns a row of panels for each of at most two machines, with its rows. Each row has a panel
    for each title in `columns`."""
    names = machines(rows, 2)
    grid = panels(figure, names, columns, **shared)
    return [(row, rows[rows["machine"] == name]) for row, name in zip(grid, names, strict=True)]


def wrapped(text: str, width: int) -> str:
    """Wraps a text to lines of `width` Latin letters. A percent sign stays with its number."""
    bound = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(bound, max(8, width * len(text) // letters(text)))
    return lines.replace("\N{NO-BREAK SPACE}%", " %")


def resize(figure: Figure, height: float) -> None:
    """Sets the height of a figure in inches."""
    figure.set_figheight(height)
    arrange(figure)


def for_slide(figure: Figure) -> None:
    """Makes room for a sentence of three lines below a figure, and enlarges letters to SMALLEST.
    Call it when all is drawn."""
    figure.set_figheight(SLIDE_HEIGHT)
    lines = max((_slide_legend(figure, row) for row in list(figure.legends)), default=1)
    arrange(figure, _top(lines))
    for words in figure.findobj(Text):
        words.set_fontsize(max(SMALLEST, words.get_fontsize()))
    for axes in figure.axes:
        labelled = [*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both")]
        least = min((label.get_fontsize() for label in labelled), default=SMALLEST)
        axes.tick_params(which="both", labelsize=max(SMALLEST, least))


def _slide_legend(figure: Figure, row: mpl_legend.Legend) -> int:
    """Replaces a legend by one with letters large enough for a slide. Returns its number of
    lines."""
    names = [words.get_text() for words in row.get_texts()]
    width = _legend_width(names)
    size = max(SMALLEST, min(11, LEGEND_WIDTH / width))
    lines = math.ceil(size * width / LEGEND_WIDTH)
    handles = row.legend_handles
    row.remove()
    look = {
        **LEGEND,
        "fontsize": size,
        "ncols": -(-len(names) // lines),
    }
    figure.legend(handles=handles, labels=names, **look).set_in_layout(False)
    return lines


def _legend_width(names: Sequence[str]) -> float:
    """Width of a legend in one line, in multiples of its font size."""
    return sum(3.3 + 0.6 * letters(name) for name in names)


def _top(lines: int) -> float:
    """Inches above the panels for the title and a legend of `lines` lines."""
    if lines > 1:
        return 0.5 + 0.2 * lines
    return 0.76


def fit(figure: Figure, lines: int) -> None:
    """Reduces the height of a figure with few lines, such as bars. Call it after `panels` or before
    `subplots`."""
    resize(figure, min(figure.get_figheight(), 2.2 + 0.55 * max(3, lines)))


def dot(color: str, label: str, marker: str = "o", **look: Any) -> Line2D:
    """Legend entry for points."""
    return Line2D(
        [],
        [],
        color=color,
        label=label,
        marker=marker,
        linestyle="",
        markeredgewidth=2,
        **look,
    )


def beside(
    axes: Axes, words: str, point: tuple[float, float], distance: float, **look: Any
) -> None:
    """Writes words at the right of a point, `distance` points from it."""
    usual: Look = {"textcoords": "offset points", "va": "center", "fontsize": 9}
    axes.annotate(words, point, (distance, 0), **usual | look)


def dots(
    colors: Mapping[Any, str], text: Texts, kind: str = "", marker: str | Mapping[Any, str] = "o"
) -> list[Line2D]:
    """A legend entry for each value, with its name of that kind or its own text. `marker` is one
    for all, or one for each value."""
    markers = dict.fromkeys(colors, marker) if isinstance(marker, str) else marker
    entries = []
    for name, color in colors.items():
        label = text.name(kind, name) if kind else text(name)
        entries.append(dot(color, label, markers[name]))
    return entries


def line(color: str, label: str, dash: Dash = "") -> Line2D:
    """Legend entry for lines."""
    linestyle: object = "-"
    if dash:
        linestyle = (0, dash)
    return Line2D(
        [],
        [],
        color=color,
        label=label,
        linestyle=linestyle,
    )


def within(differences: pd.Series, text: Texts) -> list[Line2D]:
    """Legend entry for differences within the intervals; empty if there are none."""
    if not differences.any():
        return []
    return [dot(MUTED, text("within"), "s", alpha=PALE)]


def legend(figure: Figure, entries: Sequence[Line2D], columns: int = 0) -> None:
    """Draws the legend below the title, in one row if it stays readable. Call it after `panels` and
    `fit`."""
    if not entries:
        return
    width = _legend_width([entry.get_label() for entry in entries])
    size = min(11, 88 / len(entries), LEGEND_WIDTH / width)
    if not columns:
        columns = len(entries)
        if size < LEAST:
            columns = 4
    lines = math.ceil(len(entries) / columns)
    if lines > 1:
        size = 9
    look = {**LEGEND, "fontsize": size, "ncols": columns}
    figure.legend(handles=list(entries), **look).set_in_layout(False)
    if lines > 1:
        figure.set_figheight(figure.get_figheight() + 0.2 * lines)
    arrange(figure, _top(lines))


def provenance(rows: pd.DataFrame, text: Texts) -> str:
    """The line at the bottom of every figure: machines, dates and code."""
    dates_and_code = " · ".join(filter(None, [_dates(rows), _code(rows)]))
    shown = []
    if "machine" in rows:
        by_label = frames.machines(rows)
        shown = [by_label[label] for label in machines(rows)]
    listed = _listed(shown, LETTERS - letters(dates_and_code), text)
    return " · ".join(filter(None, [listed, dates_and_code]))


def _dates(rows: pd.DataFrame) -> str:
    """First and last day of rows; empty if unknown."""
    starts = _distinct(rows, "started_at")
    if not starts:
        return ""
    days = dict.fromkeys([starts[0][:10], starts[-1][:10]])
    return " … ".join(days)


def _code(rows: pd.DataFrame) -> str:
    """Commits of rows, at most two; empty if unknown."""
    commits = _distinct(rows, "commit")
    if not commits:
        return ""
    if "recorded" in rows:  # own commits first, so that they are not cut off
        own = set(rows.loc[~rows["recorded"], "commit"])
        commits.sort(key=lambda commit: commit not in own)
    named = []
    for commit in commits[:2]:
        name = commit[:7]
        if commit.endswith("-dirty"):
            name += "-dirty"
        named.append(name)
    code = f"mfulab {', '.join(named)}"
    if len(commits) > 2:
        code += "…"
    return code


def _distinct(rows: pd.DataFrame, column: str) -> list[str]:
    """Distinct texts of a column, sorted; empty if it is missing."""
    if column not in rows:
        return []
    return sorted(filter(None, pd.unique(rows[column])))


def _listed(drawn: Sequence[frames.Machine], room: int, text: Texts) -> str:
    """Labels joined to at most `room` letters. What all of them tell beside the name is written
    once, and machines that do not fit are counted."""
    labels = [machine.label(text) for machine in drawn]
    listed = ", ".join(labels)
    if letters(listed) <= room:
        return listed
    together = frames.Machine("", False, False)  # what is told of all
    marks = {machine._replace(name="") for machine in drawn}
    if len(marks) == 1:
        labels = [together._replace(name=machine.name).label(text) for machine in drawn]
        together = marks.pop()
    for shown in range(len(labels), 0, -1):
        names = ", ".join(labels[:shown])
        if shown < len(labels):
            names += f" +{len(labels) - shown}"
        listed = together._replace(name=names).label(text)
        if letters(listed) <= room:
            return listed
    fitting = room * len(listed) // letters(listed)
    return f"{listed[: fitting - 2]} …"
