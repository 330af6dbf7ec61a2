"""Equal cards of one machine: the time of the same run on each, relative to the median card."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.planning.naming import short
from mfulab.lab.report import selection, trust
from mfulab.lab.report.drawing import Legend, Texts, runs, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine
from mfulab.lab.tables import cards

TOPIC = "trust"
ORDER = 2
REASONS = selection.BESIDE_ONE  # synthetic loads show slow cards as well as models do
RUN = ["hardware", "recorded", "run"]
BY_PROCESS = ["time_s", "process_times_s", "process_cards"]
ABOUT = ["status", "started_at", "commit", "device_uuid", runs.DOUBTFUL, trust.DOUBTS]
MOST_CARDS = 24  # those that differ most
NARROWEST = 1.06  # least upper limit of the axis
REACH = 1.15  # logarithm of an axis limit ÷ that of the furthest dot
RATIOS = (0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 5, 10)


def rows(tables: Tables) -> DataFrame:
    """Selects runs that at least two cards of one machine measured, with a row for each card and
    its time relative to the median (`relative`)."""
    parts = []
    for name in cards.TIMED:
        judged = trust.with_doubts(tables[name])
        parts.append(ok(judged[[*RUN, *BY_PROCESS, *ABOUT]], "time_s"))
    timed = pd.concat(parts, ignore_index=True)
    timed = selection.pick(timed[timed["device_uuid"] != ""], "recorded")
    lines = cards.compared(timed.to_dict("records"))
    shared = [card.name for card in cards.summarised(lines)]
    labels = cards.short_names(shared)
    compared = pd.DataFrame(lines, columns=list(cards.Compared._fields))
    compared = compared[compared["card"].isin(shared)]
    drawn = compared.merge(timed.drop(columns=BY_PROCESS), on=RUN)
    drawn = drawn.assign(what=drawn["run"].map(short), label=drawn["card"].map(labels))
    return selection.one_machine(with_machine(tables, drawn))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the card that is slower than the others, by its median over runs, or on the
    largest difference. Empty if too few runs are shared."""
    lines = rows[list(cards.Compared._fields)].itertuples(index=False)
    found = cards.summarised(cards.Compared(*line) for line in lines)
    if not found:
        return ""
    shared = {"machine": rows["machine"].iloc[0], "count": len(found)}
    slow = [card for card in found if card.is_slow]
    if not slow:
        furthest = max(100 * abs(card.factor - 1) for card in found)
        fewest = min(card.runs for card in found)
        return text("finding_alike", furthest_percent=furthest, runs=fewest, **shared)
    key = "finding"
    if len(slow) > 1:
        key = "finding_several"
    slowest = max(slow, key=lambda card: card.factor)
    label = rows.loc[rows["card"] == slowest.name, "label"].iloc[0]
    return text(
        key,
        card=label,
        factor=slowest.factor,
        runs=slowest.runs,
        slow=len(slow),
        **shared,
    )


def _order(rows: DataFrame) -> list[str]:
    """Labels of the cards that differ most, the slowest at the top."""
    middles = rows.groupby("label")["relative"].median()
    furthest = np.log(middles).abs().nlargest(MOST_CARDS).index
    return list(middles[furthest].sort_values().index)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Marks the median of each card, and sets limits."""
    middles = here.groupby("label")["relative"].median()
    for place, label in enumerate(_order(rows)):
        axes.plot(
            middles[label],
            place,
            marker="|",
            markersize=20,
            color=style.INK,
            zorder=4,
        )
    relative = rows["relative"]
    low = min(1 / NARROWEST, relative.min() ** REACH)
    high = max(NARROWEST, relative.max() ** REACH)
    ticks.doublings(axes, RATIOS)
    axes.set_xlim(low, high)


def _median(rows: DataFrame, text: Texts) -> Legend:
    return [style.dot(style.INK, text("median"), "|", markersize=14)]


draw = specs.Dots(
    x="relative",
    y="label",
    told=("relative", "time_s"),
    x_label="axis",
    reference=1,
    order=_order,
    finished=_finished,
    entries=_median,
    look=specs.MANY_DOTS,
)
