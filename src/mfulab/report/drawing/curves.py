"""Curves against batch size: which runs form a series, and how series are drawn and named."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report import frames
from mfulab.report.drawing import labels, runs, style, ticks

MOST_NAMED = 12  # lines of a panel that all have a label
KEYS = ["machine", "model", "workload", "mode", "precision", "execution", "sequence_length"]


def series(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of those series (runs alike in all but the batch size) that have two batch sizes or more."""
    rows = frames.alone(rows)
    if rows.empty:
        return rows
    rows = frames.one_each(rows, [*KEYS, "batch_size"])
    sizes = rows.groupby(KEYS, dropna=False)["batch_size"].transform("nunique")
    return rows[sizes >= 2].sort_values("batch_size")


def ends(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The smallest and the largest batch of each series, with the same index."""
    ordered = rows.sort_values("batch_size")
    ordered = ordered.set_index(ordered.groupby(KEYS, dropna=False).ngroup())
    first, last = (ordered[~ordered.index.duplicated(keep=keep)].sort_index() for keep in ("first", "last"))
    return first, last


def named(row: pd.Series, text: Texts) -> str:
    """A series in words: model, mode and precision; workload and execution where they are not the plain ones."""
    known = [text.name("mode", row["mode"]), text.name("precision", row["precision"]), *variant(row, text)]
    return f"{row['model']} ({', '.join(known)})"


def variant(row: Mapping[str, Any] | pd.Series, text: Texts) -> list[str]:
    """Workload and execution of a run, each where it is not the plain one."""
    known = [row["workload"]] if row["workload"] not in ("", row["mode"]) else []
    return known + ([text.name("execution", row["execution"])] if row["execution"] not in ("", "eager") else [])


def draw(
    rows: pd.DataFrame,
    figure: Figure,
    text: Texts,
    value: str,
    interval: tuple[str, str],
    ylabel: str,
    log: bool = False,
) -> None:
    """One panel a machine and mode; colour is the precision, dashes tell executions apart, names stand at line ends."""
    machines, titles = style.machines(rows), style.modes(rows, text)
    grid = style.panels(figure, machines, list(titles.values()), sharex=True)
    colors = style.precision_colors(rows["precision"])
    several = rows.groupby("mode")["workload"].transform("nunique") > 1
    rows = rows.assign(variant=(rows["workload"] + " ").where(several, "") + rows["execution"])
    dashes = style.dashes(rows["variant"])
    ends_of: dict[tuple[str, str], list[tuple[float, float, str, str, str]]] = {}
    for (machine, mode), here in rows.groupby(["machine", "mode"], sort=False):
        if machine not in machines:
            continue
        axes = grid[machine, titles[mode]]
        parts = ["model", "precision", "variant", "sequence_length"]
        for (model, precision, variant, _), line in here.groupby(parts, sort=False, dropna=False):
            low, high = (line[value] - line[interval[0]]).clip(lower=0), (line[interval[1]] - line[value]).clip(lower=0)
            drawn = axes.errorbar(
                line["batch_size"],
                line[value],
                yerr=[low.fillna(0), high.fillna(0)],
                color=colors[precision],
                linestyle=dashes[variant],
                marker="o",
                markersize=5,
                elinewidth=1.2,
                capsize=2.5,
                gid=f"{model} {precision}",
            )
            runs.mark(drawn, line, "batch_size", value)
            last = line.iloc[-1]
            end = (last["batch_size"], last[value], model, colors[precision], precision)
            ends_of.setdefault((machine, titles[mode]), []).append(end)
    for (machine, _), axes in grid.items():
        ticks.doublings(axes, rows["batch_size"])
        # Values decide the limits: an interval of two windows may be wider than any panel, and then runs out of it.
        values = rows.loc[rows["machine"] == machine, value]
        if log:
            axes.set_yscale("log")
            axes.set_ylim(values.min() / 2, values.max() * 2)
            ticks.decades(axes.yaxis)
        else:
            axes.set_ylim(0, 1.15 * values.max())
        if machine == machines[-1]:
            axes.set_xlabel(text("batch_size"))
    for machine in machines:
        grid[machine, next(iter(titles.values()))].set_ylabel(ylabel)
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()]
    if len(dashes) > 1:
        entries += [style.line(style.MUTED, text.name("execution", name), dash) for name, dash in dashes.items()]
    style.legend(figure, [*entries, *runs.key(rows, text)])
    labels.settle(figure)
    for place, ends in ends_of.items():
        labels.at_line_ends(grid[place], _named_ends(ends, len(colors) > 1, text))


def _named_ends(
    ends: list[tuple[float, float, str, str, str]], several: bool, text: Texts
) -> list[tuple[float, float, str, str]]:
    """A label a line, with its precision where the figure has several; of many lines one a model, at its highest."""
    if len(ends) > MOST_NAMED:
        ends = list({end[2]: end for end in sorted(ends, key=lambda end: end[1])}.values())
    return [
        (x, y, f"{model} {text.name('precision', name)}" if several else model, ink) for x, y, model, ink, name in ends
    ]
