"""The ladder from busy to useful: a panel for each run, with a bar for each rung from the loosest
measure to the strictest. Measures beside this order are in the run's dialog."""

import numpy as np

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, curves, kinds, style
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.figures.mfu_versus_utilization import share as share_in_words
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
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
MOST_RUNS = 3  # each with a panel
FEWEST_RUNGS = 3
RUNGS = [rung.column for rung in ladder.RUNGS]
# Rungs that are part of the falling order in every row.
PLAIN = [rung.column for rung in ladder.RUNGS if rung == ladder.Rung(rung.column)]


def rows(tables: Tables) -> DataFrame:
    """Selects up to MOST_RUNS runs of one machine with at least three falling rungs: the first run
    of the page, and of each model's busiest run the highest MFU, the largest loss and the median.
    Trusted runs and real models are preferred."""
    both = ok(with_traces(tables), "mfu_percent", "utilization_percent")
    steps = selection.pick(with_machine(tables, both), "recorded", "synthetic")
    steps = those(steps, _has_ladder(steps))
    if steps.empty:
        return steps
    named = selection.named_of_page(mfu_versus_utilization, tables)
    first = named[0] if named else None
    is_first = steps.index == first
    here = steps[steps["machine"] == _machine(steps, is_first)]
    told = selection.one_of_each(here, named)
    trusted = preferred(told, ~trust.doubtful(told))
    busiest = trusted.loc[trusted.groupby("model")["utilization_percent"].idxmax()]
    by_mfu = busiest.sort_values("mfu_percent", ascending=False)
    lost = by_mfu["utilization_percent"] - by_mfu["mfu_percent"]
    wanted = [*here.index[here.index == first]]
    wanted.append(by_mfu.index[0])
    wanted.append(lost.idxmax())
    wanted.append(by_mfu.index[len(by_mfu) // 2])
    shown = list(dict.fromkeys(wanted))[:MOST_RUNS]
    return here.loc[shown].sort_values("mfu_percent", ascending=False)


def _has_ladder(steps: DataFrame) -> Series:
    """True for steps with at least three falling rungs."""
    rungs = steps.filter(ladder.COLUMNS)
    is_finite = rungs[PLAIN].abs() < float("inf")
    has_ladder = is_finite.sum(axis=1) >= FEWEST_RUNGS
    # Most rows have three such rungs; only the others are examined one by one.
    for index, row in rungs[~has_ladder].to_dict("index").items():
        falling = [rung for rung in ladder.measured(row) if rung.falls]
        has_ladder[index] = len(falling) >= FEWEST_RUNGS
    return has_ladder


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
    lost = rows["utilization_percent"] - rows["mfu_percent"]
    worst = rows.loc[lost.idxmax()]
    run = worst["model"]
    if worst["batch_size"] == worst["batch_size"]:  # traces have none
        run = text("run", worst=worst)
    drop = ladder.largest_drop(worst.to_dict())
    if drop is None:
        return text("finding_none", run=run, worst=worst)
    names = text.within("rungs")
    before = names(drop.above.column)
    after = names(drop.below.column)
    return text(
        "finding",
        run=run,
        worst=worst,
        drop=drop,
        before=before,
        after=after,
    )


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each run, side by side, with a bar for each rung of the falling order."""
    rungs = _rungs(rows, text)
    words = text.within("rungs")
    present = set(rungs["rung"])
    order = [words(name) for name in RUNGS if name in present]
    titles = curves.apart(rows, text)
    grid = style.panels(
        figure,
        [""],
        titles,
        x=text("percent"),
        sharex=True,
        sharey=True,
    )
    style.fit(figure, len(order))
    right = max(118.0, 1.2 * rungs["percent"].max())
    look: style.Look = {"order": order, "words": "said", "fontsize": 11}
    for axes, (_, here) in zip(grid.flat, rungs.groupby("number"), strict=True):
        kinds.bars(axes, here, "percent", "name", "percent", **look)
        axes.set_xlim(0, right)
        axes.set_xticks([0, 50, 100])
        axes.tick_params(axis="y", length=0)


def _rungs(rows: DataFrame, text: Texts) -> DataFrame:
    """A row for each rung of the falling order of each run, which `number` counts."""
    names = text.within("rungs")
    lines = []
    for number, row in enumerate(rows.to_dict("records")):
        for rung in ladder.measured(row):
            if not rung.falls:
                continue
            line = {
                "number": number,
                "rung": rung.column,
                "name": names(rung.column),
                "percent": rung.percent,
                "said": share_in_words(rung.percent, text),
            }
            lines.append(row | line)
    return DataFrame(lines)
