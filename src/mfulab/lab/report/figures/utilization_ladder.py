"""The ladder from busy to useful: a panel for each run, with a bar for each rung from the loosest
measure to the strictest. Measures beside this order are in the run's dialog."""

import numpy as np

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, curves, kinds, style
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.figures.mfu_versus_utilization import share as share_in_words
from mfulab.lab.report.frames import (
    DataFrame,
    Tables,
    ok,
    preferred,
    those,
    with_machine,
    with_traces,
)
from mfulab.mfu import ladder

TOPIC = "ladder"
ORDER = 0
CLAIM = claims.below("mfu_percent", "utilization_percent")
FEWEST = 1  # rungs of the same run are compared
MOST = 3  # runs, each with a panel
RUNGS = [rung.column for rung in ladder.RUNGS]
# Rungs that are part of the falling order in every row.
PLAIN = [rung.column for rung in ladder.RUNGS if rung == ladder.Rung(rung.column)]


def rows(tables: Tables) -> DataFrame:
    """Selects up to MOST runs of one machine with at least three falling rungs: the first run of
    the page, and of each model's busiest run the highest MFU, the largest loss and the median.
    Trusted runs and real models are preferred."""
    both = ok(with_traces(tables), "mfu_percent", "utilization_percent")
    steps = selection.pick(with_machine(tables, both), "recorded", "synthetic")
    rungs = steps.filter(ladder.COLUMNS)
    # Most rows have three such rungs; only the others are examined one by one.
    sure = (rungs[PLAIN].abs() < float("inf")).sum(axis=1) >= 3
    others = rungs[~sure].to_dict("index").items()
    few = []
    for index, row in others:
        if sum(rung.falls for rung in ladder.measured(row)) < 3:
            few.append(index)
    steps = those(steps, ~steps.index.isin(few))
    if steps.empty:
        return steps
    first = selection.first_of_page(mfu_versus_utilization, tables)
    is_first = steps.index == first
    here = steps[steps["machine"] == _machine(steps, is_first)]
    trusted = preferred(here, ~trust.doubtful(here))
    busiest = trusted.loc[trusted.groupby("model")["utilization_percent"].idxmax()]
    by_mfu = busiest.sort_values("mfu_percent", ascending=False)
    lost = by_mfu["utilization_percent"] - by_mfu["mfu_percent"]
    wanted = [*here.index[here.index == first], by_mfu.index[0], lost.idxmax()]
    wanted.append(by_mfu.index[len(by_mfu) // 2])
    shown = list(dict.fromkeys(wanted))[:MOST]
    return here.loc[shown].sort_values("mfu_percent", ascending=False)


def _machine(steps: DataFrame, is_first: np.ndarray) -> str:
    """Machine of the first run of the page, or the one with the most rungs if that run has too
    few."""
    if is_first.any():
        return str(steps.loc[is_first, "machine"].iloc[0])
    counts = steps[RUNGS].notna().groupby(steps["machine"]).any().sum(axis=1)
    return str(counts.idxmax())


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the run that loses most between the first and last rung, and on its largest
    drop."""
    worst = rows.loc[(rows["utilization_percent"] - rows["mfu_percent"]).idxmax()]
    drop = ladder.largest_drop(worst.to_dict())
    batch = worst["batch_size"]
    # Traces have no batch size.
    run = worst["model"] if batch != batch else text("run", worst=worst)
    if drop is None:
        return text("finding_none", run=run, worst=worst)
    rungs = [text.within("rungs")(rung.column) for rung in (drop.above, drop.below)]
    return text("finding", run=run, worst=worst, drop=drop, before=rungs[0], after=rungs[1])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each run, side by side, with a bar for each rung of the falling order."""
    lines = []
    for number, row in enumerate(rows.to_dict("records")):
        for rung in ladder.measured(row):
            if rung.falls:
                tooltip = {"rung": rung.column, "percent": rung.percent}
                lines.append(row | {"number": number} | tooltip)
    rungs = DataFrame(lines)
    words = text.within("rungs")
    present = set(rungs["rung"])
    names = {name: words(name) for name in RUNGS if name in present}
    grid = style.panels(
        figure, [""], curves.apart(rows, text), x=text("percent"), sharex=True, sharey=True
    )
    style.fit(figure, len(names))
    rungs["name"] = rungs["rung"].map(names)
    rungs["said"] = [share_in_words(share, text) for share in rungs["percent"]]
    look: style.Look = {"order": list(names.values()), "words": "said", "fontsize": 11}
    for (_, here), axes in zip(rungs.groupby("number"), grid.flat, strict=True):
        kinds.bars(axes, here, "percent", "name", "percent", **look)
        axes.set_xlim(0, max(118.0, 1.2 * rungs["percent"].max()))
        axes.set_xticks([0, 50, 100])
        axes.tick_params(axis="y", length=0)
