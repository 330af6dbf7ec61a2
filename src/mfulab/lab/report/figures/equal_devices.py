"""Equal devices of several participants: the time of the same run on each, relative to the median
of all."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.planning.naming import short
from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Texts, runs, specs, ticks
from mfulab.lab.report.frames import INTERVAL, DataFrame, Tables, highest, lowest, ok
from mfulab.lab.tables.merge import OF

TOPIC = "trust"
ORDER = 1
COLUMNS = [
    *("hardware", "recorded", "run", "status", "started_at", "commit", *INTERVAL),
    *(runs.DOUBTFUL, trust.DOUBTS, trust.REACH),
]
MOST_RUNS = 24  # those that differ most
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)


def rows(tables: Tables) -> DataFrame:
    """Selects runs that at least two participants measured on devices of one kind. Adds `kind`,
    `relative` and `range`."""
    parts = []
    for name in ("profile", "matmul"):
        judged = trust.with_doubts(tables[name])
        parts.append(ok(judged[COLUMNS], "time_s"))
    timed = selection.pick(pd.concat(parts, ignore_index=True), "recorded")
    timed = timed[timed["hardware"].str.contains(OF, regex=False)]
    names = timed["hardware"].str.split(OF, n=1).str
    timed = timed.assign(
        kind=names[0],
        who=names[-1],
        what=timed["run"].map(short),
    )
    alike = timed.groupby(["kind", "run"])
    times = alike["time_s"]
    timed = timed.assign(
        relative=timed["time_s"] / times.transform("median"),
        range=times.transform("max") / times.transform("min"),
    )
    return timed[alike["who"].transform("nunique") > 1]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on how far times of the same run differ between participants of the most common
    kind, and on the run that differs most."""
    here = selection.largest(rows, ["kind"], "who")
    distinct = here.drop_duplicates("run")
    worst = here[here["run"] == highest(distinct, "range")["run"]]
    slow = highest(worst, "relative")
    fast = lowest(worst, "relative")
    key = "finding_alike"
    if claims.differs(fast, slow, "time_s"):
        key = "finding"
    return text(
        key,
        slow=slow,
        fast=fast,
        participants=here["who"].nunique(),
        runs=len(distinct),
        usual=distinct["range"].median(),
    )


def _order(rows: DataFrame) -> list[str]:
    """Runs that differ most, the largest difference at the top."""
    ranges = rows.groupby("what")["range"].max()
    return list(ranges.nlargest(MOST_RUNS).sort_values().index)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axis symmetric around 1."""
    distance = np.abs(np.log(rows["relative"])).max()
    furthest = max(1.3, 1.1 * np.exp(distance))
    ticks.doublings(axes, RATIOS)
    axes.set_xlim(1 / furthest, furthest)


draw = specs.Dots(
    x="relative",
    y="what",
    told=("time_s",),
    x_label="axis",
    facet="kind",
    reference=1,
    order=_order,
    finished=_finished,
    shared={"sharex": True, "sharey": True},
    look=specs.MANY_DOTS,
)
