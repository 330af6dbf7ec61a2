"""Errors of compressed models on real images, with their time, FLOPs and bytes."""

from typing import get_args

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    lowest,
    ok,
    one_each,
    with_machine,
)
from mfulab.measurements.quality import Compression

TOPIC = "flops"
ORDER = 2
REASONS = selection.TOGETHER
WAYS = get_args(Compression)
WHOLE = WAYS[0]


NEEDED = (
    "accuracy_percent",
    "whole_accuracy_percent",
    "time_percent",
    "flops",
    "whole_flops",
    "weight_bytes",
    "whole_weight_bytes",
)
# Columns in percent of the whole model's, each with a flag that is False where a bar is pale.
SHARES = {"time_percent": "timed", "flops_percent": "within", "bytes_percent": "within"}
ROOM = 1.8  # length of an x axis ÷ longest bar


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each compression on one machine, in percent of the whole model's. Flags
    mark differences beyond their interval."""
    ways = with_machine(tables, ok(tables["quality"], *NEEDED))
    ways = selection.one_machine(ways[ways["compression"].isin(WAYS)])
    ways = one_each(ways, ["compression"])
    ways = ways.sort_values("compression", key=lambda way: way.map(WAYS.index))
    is_whole = ways["compression"] == WHOLE
    change = ways["accuracy_percent"] - ways["whole_accuracy_percent"]
    is_apart = change.abs() > ways["change_half_points"].fillna(0)
    low = ways["time_low_percent"].fillna(ways["time_percent"])
    high = ways["time_high_percent"].fillna(ways["time_percent"])
    return ways.assign(
        time_percent=ways["time_percent"].mask(is_whole, 100.0),  # itself, measured twice
        errors=100 - ways["accuracy_percent"],
        change=change,
        worse=is_apart & (change < 0),
        differs=is_apart | is_whole,
        faster=high < 100,
        timed=(high < 100) | (low > 100) | is_whole,
        flops_percent=100 * ways["flops"] / ways["whole_flops"],
        bytes_percent=100 * ways["weight_bytes"] / ways["whole_weight_bytes"],
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the fastest compression that keeps the accuracy within its interval, the largest
    loss, and the fewest FLOPs."""
    ways = rows[rows["compression"] != WHOLE]
    if ways.empty:
        return text("whole", row=rows.iloc[0])
    whole = ways.iloc[0].copy()
    whole["accuracy_percent"] = whole["whole_accuracy_percent"]
    sentences = [text("whole", row=whole)]
    accurate = ways[ways["faster"] & ~ways["worse"]]
    if accurate.empty:
        sentences.append(text("none_kept", count=len(ways)))
    else:
        fastest = lowest(accurate, "time_percent")
        sentences.append(text("finding", row=fastest, span=_span(fastest)))
        sentences += _as_fast(fastest, accurate, text)
    if ways["worse"].any():
        worst = lowest(ways[ways["worse"]], "change")
        reach = ""
        if worst["change_half_points"] >= 0:
            reach = f" ± {worst['change_half_points']:.1f}"
        alike = _as_costly(worst, ways[ways["worse"]], text)
        key = "worst"
        if alike:
            key = "among_worst"
        sentences.append(
            text(
                key,
                row=worst,
                lost=-worst["change"],
                reach=reach,
                span=_span(worst),
                others=", ".join(alike),
            )
        )
    fewer = ways[(ways["flops_percent"] < 100) & ~ways["faster"]]
    if len(fewer):
        fewest = lowest(fewer, "flops_percent")
        sentences.append(text("fewer", row=fewest, span=_span(fewest)))
    return " ".join(sentences)


def _as_fast(fastest: Series, accurate: DataFrame, text: Texts) -> list[str]:
    """Sentence on other ways that keep the accuracy and whose intervals of time reach into that of
    the fastest one; empty if there are none."""
    others = accurate.drop(fastest.name)
    reached = others[others["time_low_percent"] <= fastest["time_high_percent"]]
    names = []
    for _, row in reached.sort_values("time_percent").iterrows():
        names.append(text("as_fast_way", row=row, span=_span(row)))
    if not names:
        return []
    return [text("as_fast_ways", others=", ".join(names))]


def _as_costly(worst: Series, ways: DataFrame, text: Texts) -> list[str]:
    """Names of other ways, the costliest first, whose intervals of lost accuracy reach into that of
    the worst one."""
    halves = ways["change_half_points"].fillna(0)
    most = ways["change"] - halves
    least = worst["change"] + halves[worst.name]
    alike = ways[most <= least].drop(worst.name).sort_values("change")
    names = []
    for _, row in alike.iterrows():
        names.append(text("as_costly_way", row=row, lost=-row["change"]))
    return names


def _span(row: Series) -> str:
    """Interval of the time in percent, in brackets; empty if unknown."""
    low = row["time_low_percent"]
    high = row["time_high_percent"]
    if low <= high:
        return f" ({percent(low)}–{percent(high)})"
    return ""


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a line for each compression, with panels for errors, time, FLOPs and bytes. Shorter is
    better in all of them."""
    titles = [text("errors"), text("time"), text("flops"), text("bytes")]
    errors, *others = style.panels(figure, [""], titles, sharey=True)[0]
    style.resize(figure, 2.0 + 0.3 * len(rows))
    names = [text.name("compression", way) for way in rows["compression"]]
    rows = rows.assign(named=names, within=True)
    look: style.Look = {
        "order": names,
        "words": "words",
        "fontsize": 8,
        "labelsize": 9,
    }
    tooltip = ("accuracy_percent", "time_s")
    here = rows.assign(words=_errors_in_words(rows))
    kinds.bars(
        errors,
        here,
        "errors",
        "named",
        "errors",
        *tooltip,
        pale="differs",
        **look,
    )
    errors.set(xlim=(0, ROOM * max(rows["errors"].max(), 1)), xlabel=text("of_images"))
    for axes, (name, pale) in zip(others, SHARES.items(), strict=True):
        axes.axvline(100, **style.LIMIT)
        here = rows.assign(words=rows[name].map(lambda share: text("share_of", share=share)))
        kinds.bars(
            axes,
            here,
            name,
            "named",
            name,
            *tooltip,
            pale=pale,
            beyond=100,
            **look,
        )
        axes.set(xlim=(0, ROOM * max(rows[name].max(), 100)), xlabel=text("of_whole"))
    is_sure = rows["differs"] & rows["timed"]
    return [style.dot("none", text("behind")), *style.within(~is_sure, text)]


def _errors_in_words(rows: DataFrame) -> list[str]:
    """Errors in percent of the images, with their intervals if known."""
    words = []
    for errors, reach in rows[["errors", "accuracy_half_points"]].itertuples(index=False):
        word = f"{errors:.1f}"
        if reach >= 0:
            word += f" ± {reach:.1f}"
        words.append(word)
    return words
