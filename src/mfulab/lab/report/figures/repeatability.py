"""Trust in the numbers: the spread of each run between processes, and what repeated measurements
show."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Texts, runs, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, highest, ok, preferred, with_machine
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
OFFSET: style.Look = {"textcoords": "offset points"}
MARKED = (50, 90)  # % of runs whose spread is written


def rows(tables: Tables) -> DataFrame:
    """Selects runs measured by at least two processes. `what` is a run's model or kernel."""
    parts = []
    for name, what in {"profile": "model", "matmul": "kernel"}.items():
        judged = trust.with_doubts(tables[name])
        part = ok(judged[[*SHARED, runs.DOUBTFUL, what]], "time_s")
        parts.append(part.rename(columns={what: "what"}))
    timed = selection.pick(pd.concat(parts, ignore_index=True), "recorded")
    times = []
    for cell in timed["process_times_s"]:
        times.append(tuple(replicates.times_of({"process_times_s": cell})))
    timed = timed.assign(times=pd.Series(times, timed.index, dtype=object))
    timed = with_machine(tables, timed[timed["times"].map(len) > 1])
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
    spread = first["spread_percent"].median()
    worst = highest(first, "spread_percent")
    sentence = text("spread", trust=deserved, spread=spread, worst=worst)
    return f"{sentence} {_again(deserved, text)}"


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
    """Adds the share of a machine's runs that repeat as well or better. Clips spreads at FINEST,
    and names the worst runs."""
    of_machine = rows.groupby("machine")["spread_percent"]
    place = of_machine.rank(method="first")
    share = 100 * place / of_machine.transform("size")
    return rows.assign(shown=rows["spread_percent"].clip(FINEST), share=share)


def _is_left(spread: float, limits: tuple[float, float]) -> bool:
    """True in the left half of a logarithmic axis, where a text has more room to the right."""
    least, most = limits
    return spread**2 < least * most


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Sets limits, and marks the spread that half and nine tenths of the runs stay below."""
    most = max(2.6, 1.4 * rows["spread_percent"].max())
    least = max(FINEST, min(rows["spread_percent"].min(), most / 8))  # at least three doublings
    limits = (least / 1.3, most)
    for share in MARKED:
        spread = max(FINEST, float(here["spread_percent"].quantile(share / 100)))
        axes.plot([limits[0], spread, spread], [share, share, 0], **style.LIMIT)
        words = text("within", share=share, spread=spread)
        if _is_left(spread, limits):
            look: style.Look = {"xytext": (8, -4), "ha": "left", "va": "top"}  # below the dots
        else:
            look = {"xytext": (-8, 4), "ha": "right"}
        axes.annotate(words, (spread, share), fontsize=11, **look, **OFFSET)
    worst = highest(here, "spread_percent")
    axes.annotate(
        worst["what"],
        (worst["shown"], worst["share"]),
        (0, 8),
        ha="left" if _is_left(worst["shown"], limits) else "right",
        fontsize=9,
        **OFFSET,
    )
    ticks.doublings(axes, DOUBLINGS)
    axes.set(
        xlim=limits,
        ylim=(0, 109),
        yticks=range(0, 101, 20),
    )


draw = specs.Points(
    x="shown",
    y="share",
    told=("spread_percent", "time_s"),
    x_label="axis",
    y_label="share",
    dressed=_dressed,
    finished=_finished,
    shared={"sharex": True, "sharey": True},
    look=specs.MANY_DOTS,
)
