"""MFU against device utilization: one point a run, the diagonal where being busy would mean being useful."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.lab.report import frames, trust
from mfulab.lab.report.drawing import points, style, ticks
from mfulab.lab.report.frames import Tables, ok, own, preferred, with_machine, with_traces
from mfulab.lab.tables.consistency import above_peak
from mfulab.mfu import remedies

TABLES = ("profile", "traces", "environment")
TOPIC, ORDER = "headline", 0
PLACE = ("utilization_percent", "mfu_percent")
BUSY = 90  # percent of the time
USELESS = 1  # percent of MFU: a busy run below it does next to nothing that a model needs
LEAST = 0.01  # percent that is told; a smaller MFU is below it
WIDE = 20  # ratio of the highest to the lowest MFU from which a linear axis hides the low ones


def rows(tables: Tables) -> pd.DataFrame:
    """Runs with both measures."""
    return with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """MFU of the busy runs; of those that `_sound` keeps."""
    above = int(above_peak(rows).sum())
    rows = _sound(rows)
    here = _told(rows)
    worst, best = here.loc[here["mfu_percent"].idxmin()], here.loc[here["mfu_percent"].idxmax()]
    low, high = (f"< {LEAST:g}" if mfu < LEAST else percent(mfu) for mfu in (worst["mfu_percent"], best["mfu_percent"]))
    values = {"low": low, "low_run": worst["model"], "high": high, "high_run": best["model"]}
    if here["utilization_percent"].max() < BUSY:
        return text("finding_none", busiest=rows["utilization_percent"].max(), **values)
    useful = _useful(here)
    if worst["mfu_percent"] < USELESS <= best["mfu_percent"]:
        least = here.loc[useful["mfu_percent"].idxmin()]
        key = "useless" if least["model"] == best["model"] else "useless_and_low"
        values |= {"low_busy": worst["utilization_percent"], "high_busy": best["utilization_percent"], "least": least}
    else:
        key = "finding_one" if len(here) == 1 else "finding_same" if low == high else "finding"
    words = [text(key, count=len(here), total=len(rows), **values)]
    return " ".join([*words, *([text("doubtful", count=above)] if above else [])])


def lowest(rows: pd.DataFrame) -> pd.Series:
    """The run of lowest MFU that the sentence is about, of several useful ones: there is something to try for it."""
    told = _told(_sound(own(rows)))
    return rows.loc[(useful if len(useful := _useful(told)) > 1 else told)["mfu_percent"].idxmin()]


def _useful(told: pd.DataFrame) -> pd.DataFrame:
    return told[told["mfu_percent"] >= USELESS]


def _told(sound: pd.DataFrame) -> pd.DataFrame:
    """The busy runs, or all where none is."""
    return preferred(sound, sound["utilization_percent"] >= BUSY)


def _sound(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs of a sentence: with arithmetic to count, in no emulated format, not doubtful; where any are left."""
    rows = preferred(rows, rows["mfu_percent"] > 0)
    rows = preferred(rows, ~frames.emulated(rows))
    return preferred(rows, ~trust.doubtful(rows))


def because(row: pd.Series, text: Texts) -> str:
    """Sentence on why the lowest run is that low, and what it costs; empty where nothing measured explains it."""
    clauses = text.within("because")
    if not clauses.has(row["verdict"]):
        return ""
    clause, cost = clauses(row["verdict"]), remedies.cost(row.to_dict(), row["verdict"])
    said = clauses("points", clause=clause, points=percent(cost.points)) if cost else clause
    run = text("run" if row["batch_size"] == row["batch_size"] else "run_of_trace", row=row)
    return text("because_useful" if row["mfu_percent"] >= USELESS else "because", run=run, because=said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """One panel a machine; colour is the precision, shape the mode, size the batch."""
    modes = style.modes(rows, text)
    shapes = dict(zip(modes, style.MARKERS, strict=False))
    top = max(105.0, 1.05 * rows["mfu_percent"].max())
    # Most runs read nearly 100 % busy: a logarithmic axis tells their MFU apart, and the other begins where they do.
    low, left = rows["mfu_percent"].min(), max(0.0, 10 * (rows["utilization_percent"].min() // 10) - 10)

    def finish(axes: Axes, here: pd.DataFrame) -> list[tuple[float, float]]:
        same = np.linspace(max(left, 0.1), 108, 60)
        axes.plot(same, same, zorder=1, **style.LIMIT)
        if 0 < low < top / WIDE:
            axes.set(ylim=(low / 2, 1.6 * top), xlim=(left, 108))
            ticks.decades(axes.yaxis)
        else:
            axes.set(ylim=(0, top), xlim=(left, 108))
        # Of the diagonal and of what stands above it.
        return [(share, share * above) for share in np.arange(max(left, 1), 108, 2) for above in (1, 1.06)]

    entries = [style.dot(style.MUTED, word, shapes[mode]) for mode, word in modes.items()]
    entries += [style.line(style.MUTED, text("diagonal"), (4, 3))]
    words = (text("utilization"), text("mfu"))
    also = _told(_sound(own(rows)))["mfu_percent"].agg(["idxmin", "idxmax"]).tolist()
    points.draw(rows, figure, text, PLACE, words, finish, shapes, entries, also, sharex=True, sharey=True)
