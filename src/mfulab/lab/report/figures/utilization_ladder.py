"""The ladder from busy to useful: a falling line or a row of cells a run, from the loosest measure to the strictest."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.lab.report.drawing import kinds, labels, runs, style
from mfulab.lab.report.frames import Tables, ok, those, with_machine, with_traces
from mfulab.mfu import ladder

TABLES = ("profile", "traces", "environment")
TOPIC, ORDER = "ladder", 0
RUNGS = [rung.column for rung in ladder.RUNGS]
PLAIN = [rung.column for rung in ladder.RUNGS if rung == ladder.Rung(rung.column)]  # fall, whatever else a row has
WRAPPED = 11  # letters of a rung's name in one line
MOST = 20  # runs a panel
SMALLEST = 0.1  # percent: with more digits a number is wider than its cell
MOST_LINES = 8  # of which more lie on one another
MOST_LEVEL = 8  # names below cells that have room side by side


def rows(tables: Tables) -> pd.DataFrame:
    """The busiest run of each model on each machine, with at least three rungs of the falling order."""
    known = with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))
    rungs = known.filter(ladder.COLUMNS)
    # Most rows have three rungs that belong to any row's order: only the others are looked at one by one.
    sure = np.isfinite(rungs[PLAIN]).sum(axis=1) >= 3
    others = rungs[~sure].to_dict("index").items()
    few = [index for index, row in others if sum(rung.falls for rung in ladder.measured(row)) < 3]
    known = those(known, ~known.index.isin(few))
    busiest = known.loc[known.groupby(["machine", "model"])["utilization_percent"].idxmax()]
    return busiest.sort_values("mfu_percent", ascending=False).groupby("machine", sort=False).head(MOST)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The run that loses most between the first rung and the last, and the drop at which it loses most."""
    worst = rows.loc[(rows["utilization_percent"] - rows["mfu_percent"]).idxmax()]
    drop, batch = ladder.largest_drop(worst.to_dict()), worst["batch_size"]
    run = worst["model"] if batch != batch else text("run", worst=worst)  # a trace does not report its batch size
    if drop is None:
        return text("finding_none", run=run, worst=worst)
    rungs = [text.within("rungs")(rung.column) for rung in (drop.above, drop.below)]
    return text("finding", run=run, worst=worst, drop=drop, before=rungs[0], after=rungs[1])


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; the rungs that it measured from left to right: falling lines, or cells if runs are many."""
    machines = style.machines(rows)
    lines = rows.groupby("machine").size().max() <= MOST_LINES
    if lines:
        grid = style.panels(figure, [""], machines)
    else:  # one below the other, each as high as its runs need: side by side their names would leave no room
        counts = [int((rows["machine"] == machine).sum()) for machine in machines]
        grid = style.panels(figure, machines, [""], height_ratios=[count + 1 for count in counts])
        style.resize(figure, max(style.SIZE[1], 0.8 + sum(1.1 + 0.3 * count for count in counts)))
    colors = style.precision_colors(rows["precision"])
    for machine, axes in zip(machines, grid.flat, strict=True):
        here = rows[rows["machine"] == machine]
        each = pd.DataFrame(  # a row for each rung that a run measured, in order
            row | {"number": number, "rung": rung.column, "percent": rung.percent, "falls": rung.falls}
            for number, row in enumerate(here.to_dict("records"))
            for rung in ladder.measured(row)
        )
        rungs = [name for name in RUNGS if name in set(each["rung"])]
        slanted = len(machines) > 1 if lines else len(rungs) > MOST_LEVEL
        turned: style.Look = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        if lines:
            each = each.assign(place=each["rung"].map(rungs.index))
            look: style.Look = {"hue": "precision", "palette": colors, "alpha": 0.85}
            kinds.lines(axes, each[each["falls"]], "place", "percent", *rungs, by=["number"], **look)
            # What stands next to that order is a ring on no line.
            aside = each[~each["falls"]]
            kinds.points(axes, aside.assign(doubtful=True), "place", "percent", *rungs, **look)
            axes.set_ylim(0, max(105.0, 1.05 * rows[list(RUNGS)].max(axis=None)))
            axes.grid(axis="x", visible=False)
            last = each.groupby("number").tail(1)
            inks = last["precision"].map(colors)
            labels.later(labels.at_line_ends, axes, last["place"], last["percent"], last["model"], inks)
        else:
            # Lines would lie on one another and none could be followed: a line of cells a run, the highest MFU above.
            shares = here[rungs].astype(float).reset_index(drop=True)
            said = shares.map(lambda x: f"<{SMALLEST}" if 0 < x < SMALLEST else percent(x), na_action="ignore")
            cells: style.Look = {"vmin": 0, "vmax": 100, "cbar": False, "xticklabels": False, "small": 8}
            cells["yticklabels"] = list(here["model"] + " " + here["precision"])
            kinds.cells(axes, shares, said.fillna(""), each, "rung", "number", *rungs, **cells)
            axes.tick_params(axis="y", labelsize=8)
        words, falling = text.within("rungs"), set(each.loc[each["falls"], "rung"])
        names = [words(name) if name in falling else f"({words(name)})" for name in rungs]
        names = [textwrap.fill(name, 40 if slanted else WRAPPED) for name in names]
        axes.set_xticks(np.arange(len(rungs)) + (0 if lines else 0.5), names, fontsize=10 if lines else 9, **turned)
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()] if lines else []
    style.label(figure, **{"y" if lines else "x": text("percent")})
    style.legend(figure, entries + runs.key(rows, text))
