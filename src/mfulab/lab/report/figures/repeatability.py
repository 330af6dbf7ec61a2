"""Trust in the numbers: the spread of each run between processes, and what repeated measurements
show."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Legend, Texts, runs, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, preferred, with_machine
from mfulab.lab.tables import compare, replicates

TOPIC = "trust"
ORDER = 0
CLAIM = claims.COUNTED
SHARED = [
    "hardware",
    "recorded",
    "run",
    "status",
    "process_times_s",
    "started_at",
    "commit",
    "time_s",
]
MANY_COUNTS = 10  # from which shares are given in percent
FINEST = 0.125  # % at which smaller spreads are drawn
FEWEST_RUNS = 5  # of a machine with a panel
DOUBLINGS = tuple(2.0**power for power in range(-3, 10))
MOST = 12  # groups of runs (models or kernels); others are combined into the last


def rows(tables: Tables) -> DataFrame:
    """Selects runs measured by at least two processes. `what` is a run's model or kernel."""
    parts = [
        ok(trust.with_doubts(tables[name])[[*SHARED, runs.DOUBTFUL, what]], "time_s").rename(
            columns={what: "what"}
        )
        for name, what in (("profile", "model"), ("matmul", "kernel"))
    ]
    timed = selection.pick(pd.concat(parts, ignore_index=True), "recorded")
    times = [
        tuple(replicates.times_of({"process_times_s": cell})) for cell in timed["process_times_s"]
    ]
    timed = with_machine(
        tables, timed.assign(times=times)[np.array([len(run) > 1 for run in times], dtype=bool)]
    )
    spreads = [100 * np.log(run).std(ddof=1) for run in timed["times"]]
    timed = timed.assign(spread_percent=spreads)
    of_machine = timed.groupby("machine")["run"].transform("size")
    return preferred(timed, of_machine >= FEWEST_RUNS)


_trust = lru_cache(4)(compare.trust)  # called for each panel and for the sentence


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the spread between processes, and on verdicts and intervals of repeated
    measurements, if any."""
    first = rows[rows["machine"] == rows["machine"].iloc[0]]
    deserved = _trust(tuple(first["times"]))
    spread = deserved.spread_percent
    if spread is None:
        spread = first["spread_percent"].median()
    worst = first.loc[first["spread_percent"].idxmax()]
    return f"{text('spread', trust=deserved, spread=spread, worst=worst)} {_again(deserved, text)}"


def _again(deserved: compare.Trust, text: Texts) -> str:
    """Sentence on repeated measurements, with shares, or counts if there are few."""
    if deserved.false_percent is None or deserved.covered_percent is None:
        return text("not_repeated")
    if min(deserved.verdicts, deserved.measurements) >= MANY_COUNTS:
        return text("repeated", trust=deserved)
    counts = {
        "wrong": round(deserved.verdicts * deserved.false_percent / 100),
        "covered": round(deserved.measurements * deserved.covered_percent / 100),
    }
    return text("repeated_few", trust=deserved, **counts)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Combines small groups, so that at most MOST are drawn, and clips spreads at FINEST."""
    groups = rows.groupby("what")["spread_percent"].median().sort_values(ascending=False).index
    what = rows["what"]
    if len(groups) > MOST:
        what = what.where(what.isin(groups[: MOST - 1]), text("others"))
    return rows.assign(what=what, shown=rows["spread_percent"].clip(FINEST))


def _order(rows: DataFrame) -> list[str]:
    """Groups, the least repeatable at the bottom and the combined ones at the top."""
    return list(rows.groupby("what")["spread_percent"].median().sort_values(ascending=False).index)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    usual = _trust(tuple(here["times"])).spread_percent
    if usual:
        axes.axvline(usual, **style.LIMIT)
    most = max(2.6, 1.4 * rows["spread_percent"].max())
    least = max(FINEST, min(rows["spread_percent"].min(), most / 8))  # at least three doublings
    ticks.doublings(axes, DOUBLINGS)
    axes.set_xlim(least / 1.3, most)


def _usual(rows: DataFrame, text: Texts) -> Legend:
    return [style.line(style.MUTED, text("usual"), (4, 3))]


draw = specs.Dots(
    x="shown",
    y="what",
    told=("spread_percent", "time_s"),
    x_label="axis",
    order=_order,
    dressed=_dressed,
    finished=_finished,
    entries=_usual,
    small=9,
    shared={"sharex": True, "sharey": True},
    look=specs.MANY_DOTS,
)
