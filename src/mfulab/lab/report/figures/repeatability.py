"""Trust in these numbers: the spread of each run between its processes, and what repeated measuring says."""

from functools import lru_cache

import numpy as np
import pandas as pd

from mfulab.lab.report import trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, runs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, own, with_machine
from mfulab.lab.tables import compare, replicates

TOPIC, ORDER = "trust", 0
SHARED = ["hardware", "recorded", "run", "status", "process_times_s", "started_at", "commit", "time_s"]
FINEST = 0.125  # percent: what repeats better is drawn there
DOUBLINGS = tuple(2.0**power for power in range(-3, 10))
MOST = 24  # groups of runs: models, kernels


def rows(tables: Tables) -> DataFrame:
    """Runs that two processes or more measured; `what` is a run's model or kernel."""
    parts = [
        ok(trust.with_doubts(tables[name])[[*SHARED, runs.DOUBTFUL, what]], "time_s").rename(columns={what: "what"})
        for name, what in (("profile", "model"), ("matmul", "kernel"))
    ]
    timed = own(pd.concat(parts, ignore_index=True))
    times = [tuple(replicates.times_of({"process_times_s": cell})) for cell in timed["process_times_s"]]
    timed = with_machine(tables, timed.assign(times=times)[np.array([len(run) > 1 for run in times], dtype=bool)])
    columns = DataFrame(timed["times"].tolist(), timed.index, dtype=float).T  # one a run
    return timed.assign(spread_percent=100 * np.log(columns).std())


_trust = lru_cache(4)(compare.trust)  # of each panel, and once more of the sentence


def finding(rows: DataFrame, text: Texts) -> str:
    """The spread between processes, and the verdicts and intervals of repeated measurements, if any."""
    first = rows[rows["machine"] == rows["machine"].iloc[0]]
    deserved = _trust(tuple(first["times"]))
    spread = deserved.spread_percent if deserved.spread_percent is not None else first["spread_percent"].median()
    words = text("spread", trust=deserved, spread=spread, worst=first.loc[first["spread_percent"].idxmax()])
    repeated = deserved.false_percent is not None and deserved.covered_percent is not None
    return f"{words} {text('repeated', trust=deserved) if repeated else text('not_repeated')}"


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a machine, a line of dots a model or kernel, one dot a run."""
    order = rows.groupby("what")["spread_percent"].median().nsmallest(MOST).sort_values(ascending=False).index
    most = max(2.6, 1.4 * rows["spread_percent"].max())
    least = max(FINEST, min(rows["spread_percent"].min(), most / 8))  # three doublings at least
    for axes, here in style.by_machine(figure, rows, sharex=True, sharey=True, lines=len(order)):
        if usual := _trust(tuple(here["times"])).spread_percent:
            axes.axvline(usual, **style.LIMIT)
        here = here[here["what"].isin(order)]
        here = here.assign(place=kinds.lanes(axes, here, "what", order), shown=here["spread_percent"].clip(FINEST))
        look: style.Look = {"alpha": 0.75, "s": 36, "edgecolor": style.PAPER, "linewidth": 0.5}
        kinds.points(axes, here, "shown", "place", "spread_percent", "time_s", **look)
        ticks.doublings(axes, DOUBLINGS)
        axes.set(xlim=(least / 1.3, most), xlabel=text("axis"))
    return [style.line(style.MUTED, text("usual"), (4, 3))]
