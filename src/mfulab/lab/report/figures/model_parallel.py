"""A model split over ranks: the share of a step that a pipeline idles, and the speed of each
split."""

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, lowest, ok, one_each, with_machine

TOPIC = "training"
ORDER = 11
REASONS = ("contradict", "recorded", "elsewhere")  # rows only make sense together
# Ratio of speeds below which splits are not ranked, as they have no intervals.
ALIKE = 1.1
UNEVEN = 1.02  # busiest stage's work ÷ even share, above which it gets a sentence
WORDS = ("none", "tensor", "pipeline")  # ways to split a model


def rows(tables: Tables) -> DataFrame:
    """Selects splits of one model on one machine, without duplicates; pipelines are sorted by
    micro-batches."""
    split = with_machine(tables, ok(tables["split"], "time_s", "speedup"))
    if split.empty:
        return split
    split = selection.one_machine(split)
    split = _by_times(split[split["model"] == split["model"].mode()[0]])
    keys = ["machine", "model", "batch_size", "split", "micro_batches", "ranks"]
    return one_each(split, keys).sort_values(["split", "micro_batches"])


def _by_times(split: DataFrame) -> DataFrame:
    """Makes each speedup that of the times in the table: that on one rank ÷ that of the split. A
    row without a time on one rank keeps the speedup of its own process."""
    keys = ["machine", "model", "batch_size"]
    alone = split[split["split"] == "none"].groupby(keys)["time_s"].median()
    of_one_rank_s = split.join(alone.rename("one_rank_s"), on=keys)["one_rank_s"]
    speedup = of_one_rank_s / split["time_s"]
    return split.assign(speedup=speedup.fillna(split["speedup"]))


def name(row: Series, text: Texts) -> str:
    """Name of a split; for a pipeline, with its micro-batches."""
    way = row["split"]
    return text(way, row=row)


def _pipelines(rows: DataFrame) -> DataFrame:
    """Pipelines with a known idle share, sorted by micro-batches. `bubble_percent` is the bubble of
    the busiest rank: (p − 1) ÷ (m + p − 1) for p equal stages."""
    known = (rows["split"] == "pipeline") & rows["idle_percent"].notna()
    pipelines = rows[known].sort_values("micro_batches")
    share = pipelines["rank_flops"] / pipelines["flops"]
    share = share.fillna(1 / pipelines["ranks"])
    micro_batches = pipelines["micro_batches"]
    # The first micro-batch passes all stages; each other one adds the time of the busiest.
    busy = micro_batches * share / (1 + (micro_batches - 1) * share)
    return pipelines.assign(share_percent=100 * share, bubble_percent=100 * (1 - busy))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the idle share with the fewest and with the best number of micro-batches, the
    fastest split, and bytes sent in tensor parallelism."""
    pipelines = _pipelines(rows)
    if len(pipelines) < 2:
        return ""
    first = pipelines.iloc[0]
    best = lowest(pipelines, "idle_percent")
    sentences = [text("finding", first=first, best=best)]
    if first["share_percent"] * first["ranks"] > 100 * UNEVEN:
        sentences.append(text("uneven", first=first))
    fastest = _fastest(rows)
    if fastest is not None:
        sentences.append(
            text(
                "fastest",
                name=name(fastest, text),
                row=fastest,
            )
        )
    for _, row in rows[rows["split"] == "tensor"].head(1).iterrows():
        sentences.append(
            text(
                "sends",
                sent=_sent(row),
                in_pipeline=_sent(first),
            )
        )
    return " ".join(sentences)


def _sent(row: Series) -> float:
    """Bytes that a rank sends in a step, measured; predicted if they were not measured."""
    if pd.notna(row["sent_bytes"]) and row["sent_bytes"] > 0:
        return float(row["sent_bytes"])
    return float(row["predicted_sent_bytes"])


def _fastest(rows: DataFrame) -> Series | None:
    """The fastest split; None unless it is clearly faster than all others and than one rank."""
    split = rows[rows["split"] != "none"].sort_values("speedup", ascending=False)
    first = split.iloc[0]
    if first["speedup"] <= ALIKE:
        return None
    for _, other in split.iloc[1:].iterrows():
        is_apart = first["speedup"] > ALIKE * other["speedup"]
        if not is_apart or not claims.differs(first, other, "time_s"):
            return None
    return first


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws the idle share and the bubble over micro-batches, and the speed of each split relative
    to one rank."""
    left, right = style.panels(figure, [""], [text("idle"), text("speed")])[0]
    color = style.PALETTE[0]
    _draw_idle(left, _pipelines(rows), color, text)
    names = [name(row, text) for _, row in rows.iterrows()]
    words = [text("times", factor=percent(speedup)) for speedup in rows["speedup"]]
    named = rows.assign(name=names, words=words)
    tooltip = ("time_s", "idle_percent")
    kinds.bars(
        right,
        named,
        "speedup",
        "name",
        *tooltip,
        words="words",
        color=color,
    )
    right.axvline(1, **style.LIMIT)
    longest = max(1.0, rows["speedup"].max())
    right.set(xlim=(0, 1.25 * longest), xlabel=text("relative"))
    return [style.dot(color, text("measured")), style.line(style.MUTED, text("bubble"), (4, 3))]


def _draw_idle(axes: Axes, pipelines: DataFrame, color: str, text: Texts) -> None:
    """Draws the idle share over micro-batches, and the bubble as a dashed line."""
    kinds.lines(axes, pipelines, "micro_batches", "idle_percent", color=color, marker="o")
    axes.plot(pipelines["micro_batches"], pipelines["bubble_percent"], **style.LIMIT)
    ticks.doublings(axes, pipelines["micro_batches"])
    axes.set(
        ylim=(0, 100),
        xlabel=text("micro_batches"),
        ylabel="%",
    )
