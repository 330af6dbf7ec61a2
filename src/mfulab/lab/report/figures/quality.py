"""Errors of compressed models on real images, with their time, FLOPs and bytes."""

from typing import get_args

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
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


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each compression on one machine, in percent of the whole model's. Flags
    mark differences beyond their interval."""
    needed = (
        "accuracy_percent",
        "whole_accuracy_percent",
        "time_percent",
        "flops",
        "whole_flops",
        "weight_bytes",
    )
    ways = with_machine(tables, ok(tables["quality"], *needed, "whole_weight_bytes"))
    ways = selection.one_machine(ways[ways["compression"].isin(WAYS)])
    ways = one_each(ways, ["compression"]).sort_values(
        "compression", key=lambda way: way.map(WAYS.index)
    )
    change = ways["accuracy_percent"] - ways["whole_accuracy_percent"]
    apart = change.abs() > ways["change_half_points"].fillna(0)
    low, high = (
        ways[f"time_{end}_percent"].fillna(ways["time_percent"]) for end in ("low", "high")
    )
    return ways.assign(
        errors=100 - ways["accuracy_percent"],
        change=change,
        worse=apart & (change < 0),
        differs=apart | (ways["compression"] == WHOLE),
        faster=high < 100,
        timed=(high < 100) | (low > 100) | (ways["compression"] == WHOLE),
        flops_percent=100 * ways["flops"] / ways["whole_flops"],
        bytes_percent=100 * ways["weight_bytes"] / ways["whole_weight_bytes"],
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the fastest compression that keeps the accuracy within its interval, the largest
    loss, and the fewest FLOPs."""
    ways = rows[rows["compression"] != WHOLE]
    if ways.empty:
        return text("whole", row=rows.iloc[0])
    accurate = ways[ways["faster"] & ~ways["worse"]].nsmallest(1, "time_percent")
    sentences = [
        text("whole", row=ways.assign(accuracy_percent=ways["whole_accuracy_percent"]).iloc[0])
    ]
    best = [text("finding", row=row, span=_span(row)) for _, row in accurate.iterrows()]
    sentences += best or [text("none_kept", count=len(ways))]
    sentences += _as_fast(accurate, ways, text)
    if ways["worse"].any():
        worst = ways.loc[ways["change"].where(ways["worse"]).idxmin()]
        reach = ""
        if worst["change_half_points"] >= 0:
            reach = f" ± {worst['change_half_points']:.1f}"
        sentences.append(
            text("worst", row=worst, lost=-worst["change"], reach=reach, span=_span(worst))
        )
    fewer = ways[(ways["flops_percent"] < 100) & ~ways["faster"]].nsmallest(1, "flops_percent")
    for _, row in fewer.iterrows():
        sentences.append(text("fewer", row=row, span=_span(row)))
    return " ".join(sentences)


def _as_fast(accurate: DataFrame, ways: DataFrame, text: Texts) -> list[str]:
    """Sentence on other ways that keep the accuracy and whose intervals of time reach into that of
    the fastest one; empty if there are none."""
    others = ways[ways["faster"] & ~ways["worse"]].drop(accurate.index)
    reached = others["time_low_percent"] <= accurate["time_high_percent"].max()
    names = []
    for _, row in others[reached].sort_values("time_percent").iterrows():
        names.append(text("as_fast_way", row=row, span=_span(row)))
    if not names:
        return []
    return [text("as_fast_ways", others=", ".join(names))]


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
    shown = {
        "errors": "differs",
        "time_percent": "timed",
        "flops_percent": "within",
        "bytes_percent": "within",
    }
    grid = style.panels(
        figure, [""], [text("errors"), text("time"), text("flops"), text("bytes")], sharey=True
    )[0]
    style.resize(figure, 2.0 + 0.3 * len(rows))
    rows = rows.assign(
        named=[text.name("compression", way) for way in rows["compression"]], within=True
    )
    half = [f" ± {reach:.1f}" if reach >= 0 else "" for reach in rows["accuracy_half_points"]]
    look: style.Look = {
        "order": list(rows["named"]),
        "words": "words",
        "fontsize": 8,
        "labelsize": 9,
    }
    for axes, (name, pale) in zip(grid, shown.items(), strict=True):
        if name == "errors":
            least = 1
            key = "of_images"
            words = rows[name].map("{:.1f}".format) + half
        else:
            least = 100
            key = "of_whole"
            words = rows[name].map(lambda share: text("share_of", share=share))
            axes.axvline(100, **style.LIMIT)
        here = rows.assign(words=words)
        kinds.bars(axes, here, name, "named", name, "accuracy_percent", "time_s", pale=pale, **look)
        axes.set(xlim=(0, 1.8 * max(rows[name].max(), least)), xlabel=text(key))
    return [
        style.dot("none", text("behind")),
        *style.within(~(rows["differs"] & rows["timed"]), text),
    ]
