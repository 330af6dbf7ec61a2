"""The ladder from busy to useful: a falling line or a row of cells a run, from the loosest measure to the strictest."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.mfu import ladder
from mfulab.report.drawing import labels, runs, style
from mfulab.report.frames import Tables, ok, with_machine, with_traces

TABLES = ("profile", "traces", "environment")
TOPIC = "ladder"
RUNGS = [rung.column for rung in ladder.RUNGS]
WRAPPED = 11  # letters of a rung's name in one line
MOST = 20  # runs a panel
SMALLEST = 0.1  # percent: with more digits a number is wider than its cell
MOST_LINES = 8  # of which more lie on one another


def rows(tables: Tables) -> pd.DataFrame:
    """The busiest run of each model on each machine, with at least three rungs of the falling order."""
    known = with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))
    rungs = known.filter(ladder.COLUMNS).to_dict("records")  # of all columns this takes seconds for thousands of rows
    known = known[[sum(rung.falls for rung in ladder.measured(row)) >= 3 for row in rungs]]
    if known.empty:
        return known
    busiest = known.loc[known.groupby(["machine", "model"])["utilization_percent"].idxmax()]
    return busiest.sort_values("mfu_percent", ascending=False).groupby("machine", sort=False).head(MOST)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The run that loses most between the first rung and the last, and the step at which it loses most."""
    gap = rows["utilization_percent"] - rows["mfu_percent"]
    worst = rows.loc[gap.idxmax()]
    drop = ladder.largest_drop(worst.to_dict())
    run, batch_size = worst["model"], worst["batch_size"]
    if batch_size == batch_size:  # a trace does not tell it
        run = text("run", model=run, batch_size=int(batch_size))
    said = {
        "run": run,
        "machine": worst["machine"],
        "busy": percent(worst["utilization_percent"]),
        "mfu": percent(worst["mfu_percent"]),
    }
    if drop is None:
        return text("finding_none", **said)
    rungs = text.within("rungs")
    said |= {"before": rungs(drop.above.column), "after": rungs(drop.below.column)}
    return text("finding", **said, high=percent(drop.above.percent), low=percent(drop.below.percent))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; the rungs that it measured from left to right: falling lines, or cells if runs are many."""
    machines = style.machines(rows)
    lines = rows.groupby("machine").size().max() <= MOST_LINES
    grid = style.panels(figure, [""], machines) if lines else _stacked(figure, rows, machines)
    colors = style.precision_colors(rows["precision"])
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        rungs = _measured(here)
        slanted = lines and len(machines) > 1
        names = _names(here, rungs, text, 40 if slanted else WRAPPED)
        if lines:
            _draw_lines(axes, here, rungs, colors)
            axes.set_ylim(0, max(105.0, 1.05 * rows[list(RUNGS)].max(axis=None)))
            axes.set_xticks(range(len(rungs)), names)
            axes.grid(axis="x", visible=False)
        else:
            _draw_cells(axes, here, rungs)
            axes.set_xticks([place + 0.5 for place in range(len(rungs))], names)
        turned = {"ha": "right", "rotation": 40, "rotation_mode": "anchor"} if slanted else {"rotation": 0}
        for label in axes.get_xticklabels():
            label.set(fontsize=10 if lines else 9, **turned)
    if not lines:
        grid["", machines[-1]].set_xlabel(text("percent"))
        style.legend(figure, runs.key(rows, text))
        return
    grid["", machines[0]].set_ylabel(text("percent"))
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()]
    style.legend(figure, entries + runs.key(rows, text))
    labels.settle(figure)
    for machine in machines:
        here = rows[rows["machine"] == machine]
        rungs, ends = _measured(here), []
        for row in here.to_dict("records"):
            last = ladder.measured(row)[-1]
            ends.append((rungs.index(last.column), last.percent, row["model"], colors[row["precision"]]))
        labels.at_line_ends(grid["", machine], ends)


def _measured(here: pd.DataFrame) -> list[str]:
    """The rungs that any of these runs has, in order."""
    found = {each.column for row in here.to_dict("records") for each in ladder.measured(row)}
    return [name for name in RUNGS if name in found]


def _stacked(figure: Figure, rows: pd.DataFrame, machines: Sequence[str]) -> dict[tuple[str, str], Axes]:
    """Panels one below the other, each as high as its runs need: beside one another their names would leave no room."""
    counts = [int((rows["machine"] == machine).sum()) for machine in machines]
    figure.set_size_inches(style.SIZE[0], max(style.SIZE[1], 0.8 + sum(1.1 + 0.3 * count for count in counts)))
    style.arrange(figure)
    column = figure.subplots(len(machines), 1, squeeze=False, height_ratios=[count + 1 for count in counts])
    for machine, [axes] in zip(machines, column, strict=True):
        axes.set_title(machine)
    return {("", machine): axes for machine, [axes] in zip(machines, column, strict=True)}


def _share(share: float) -> str:
    """A share as it fits a cell; empty if it was not measured."""
    if share != share:
        return ""
    return f"<{SMALLEST}" if 0 < share < SMALLEST else percent(share)


def _names(here: pd.DataFrame, rungs: Sequence[str], text: Texts, width: int) -> list[str]:
    """The rungs' names in lines of `width` letters; in parentheses if they are in no run's falling order."""
    words = text.within("rungs")
    falling = {rung.column for row in here.to_dict("records") for rung in ladder.measured(row) if rung.falls}
    return [textwrap.fill(words(name) if name in falling else f"({words(name)})", width) for name in rungs]


def _draw_lines(axes: Axes, here: pd.DataFrame, rungs: Sequence[str], colors: Mapping[str, str]) -> None:
    """A line a run through its falling order; what stands beside that order is a ring on no line."""
    for row in here.to_dict("records"):
        measured = ladder.measured(row)
        falling = [(rungs.index(each.column), each.percent) for each in measured if each.falls]
        style_of = {"color": colors[row["precision"]], "marker": "o", "alpha": 0.85, "gid": row["model"]}
        drawn = axes.plot(*zip(*falling, strict=True), **style_of)
        beside = [(rungs.index(each.column), each.percent) for each in measured if not each.falls]
        if beside:
            drawn += axes.plot(*zip(*beside, strict=True), **style_of, linestyle="none", markerfacecolor="none")
        for points in drawn:
            runs.mark(points, pd.DataFrame([row] * len(points.get_xdata())), *(each.column for each in measured))


def _draw_cells(axes: Axes, here: pd.DataFrame, rungs: Sequence[str]) -> None:
    """A line of cells a run, the highest MFU above; lines would lie on one another and none could be followed."""
    shares = here[rungs].astype(float)
    sns.heatmap(
        shares,
        ax=axes,
        cmap="crest",
        vmin=0,
        vmax=100,
        cbar=False,
        annot=shares.map(_share),
        fmt="",
        annot_kws={"fontsize": 8},
        linewidths=1,
        linecolor=style.PAPER,
        xticklabels=False,
        yticklabels=[f"{model} {precision}" for model, precision in zip(here["model"], here["precision"], strict=True)],
    )
    style.keep_words(axes)
    for across, name in enumerate(rungs):
        runs.cells(axes, here, [across + 0.5] * len(here), np.arange(len(here)) + 0.5, name)
    axes.tick_params(axis="y", labelrotation=0, labelsize=8)
    axes.set_ylabel("")
    axes.grid(visible=False)
