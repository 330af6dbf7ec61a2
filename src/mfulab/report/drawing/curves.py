"""Curves against batch size: which runs form a series, and how series are drawn and named."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report import frames
from mfulab.report.drawing import kinds, labels, runs, style, ticks

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
) -> None:
    """One panel a machine and mode, on logarithmic axes; colour is the precision, dashes tell executions apart."""
    titles = style.modes(rows, text)
    colors = style.precision_colors(rows["precision"])
    several = rows.groupby("mode")["workload"].transform("nunique") > 1
    variants = (rows["workload"] + " ").where(several, "") + rows["execution"]
    rows = rows.assign(variant=variants, title=rows["mode"].map(titles))
    dashes = style.dashes(rows["variant"])
    keys = ["model", "precision", "variant", "sequence_length"]
    look: style.Look = {
        "by": keys,
        "hue": "precision",
        "colors": colors,
        "dash": "variant",
        "dashes": dashes,
        "s": 25,
    }
    panels, ranges = style.facets(figure, rows, "title", list(titles.values()), sharex=True), rows.groupby("machine")
    for (axes, here), machine in zip(panels, np.repeat(style.machines(rows), len(titles)), strict=True):
        kinds.lines(axes, here, "batch_size", value, interval=interval, **look)
        ticks.doublings(axes, rows["batch_size"])
        # Values decide the limits: an interval of two windows may be wider than any panel, and then runs out of it.
        values = ranges[value].get_group(machine)
        axes.set(yscale="log", ylim=(values.min() / 2, values.max() * 2))
        ticks.decades(axes.yaxis)
    style.label(figure, text("batch_size"), ylabel)
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()]
    if len(dashes) > 1:
        entries += [style.line(style.MUTED, text.name("execution", name), dash) for name, dash in dashes.items()]
    style.legend(figure, [*entries, *runs.key(rows, text)])
    labels.settle(figure)
    for axes, here in panels:
        ends = here.groupby(keys, sort=False, dropna=False).tail(1)
        if len(ends) > MOST_NAMED:  # one a model, at its highest
            ends = ends.sort_values(value).drop_duplicates("model", keep="last")
        said = [f" {text.name('precision', name)}" if len(colors) > 1 else "" for name in ends["precision"]]
        place = zip(ends["batch_size"], ends[value], ends["model"] + said, ends["precision"].map(colors), strict=True)
        labels.at_line_ends(axes, list(place))
