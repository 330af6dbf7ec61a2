"""One reading, a poll and a window's mean of the same loop: what each says of it, and when."""

import json
from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.report.drawing import kinds, runs, style
from mfulab.report.frames import Tables, ok, own, with_machine

TABLES = ("readings", "series", "environment")
TOPIC = "series"
SHOWN = ("steady", "bursty")  # loads that are polled at several periods


def rows(tables: Tables) -> pd.DataFrame:
    """Series of each load and period on one machine, with what its row says; `left_out` is why periods are missing."""
    known = own(with_machine(tables, ok(tables["readings"], "mfulab_percent", "window_s", "polling_period_s")))
    asked = known[known["load"].isin(SHOWN)].drop_duplicates(["hardware", "load", "polling_period_s"])
    known = asked[asked["polled_mean_percent"].notna()]
    if known.empty:
        return known
    known = known[known["hardware"] == known["hardware"].iloc[0]].drop(columns="tflop_s")
    silent = asked[(asked["hardware"] == known["hardware"].iloc[0]) & asked["polled_mean_percent"].isna()]
    reasons = [reason(row, "polled_mean_percent") for row in silent.sort_values("polling_period_s").to_dict("records")]
    known = known.assign(left_out="; ".join(dict.fromkeys(filter(None, reasons))))
    keys = ["hardware", "recorded", "run"]
    series = tables["series"].reindex(columns=[*keys, "time_s", "utilization_percent"])
    polled = series.dropna(subset=["time_s", "utilization_percent"]).merge(known, on=keys)
    return polled.sort_values(["load", "polling_period_s", "time_s"], ascending=[False, True, True])


def reason(row: Mapping[Hashable, Any], column: str) -> str:
    """The reason for which a row has nothing in `column`, as it was measured; empty if none is known."""
    try:
        return str(json.loads(row["reasons"])[column])
    except (KeyError, TypeError, ValueError):
        return ""


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """One reading after the loop, the loop's mean and MFU; how far polls spread; memory; periods left out."""
    runs = rows.drop_duplicates("run")
    late = runs.dropna(subset=["after_percent"])
    chosen = late if len(late) else runs
    row = chosen.loc[(chosen["mfulab_percent"] - chosen["after_percent"].fillna(0)).idxmax()]
    words = [text("finding" if len(late) else "finding_without", row=row, load=text(row.load))]
    if row["mfu_percent"] == row["mfu_percent"]:
        words.append(text("mfu", row=row))
    spread = runs["polled_high_percent"] - runs["polled_low_percent"]
    if spread.notna().any() and (runs.loc[spread.idxmax(), "polls"] or 0) > 1:
        wide = runs.loc[spread.idxmax()]
        words.append(text("spread", row=wide, load=text(wide.load)))
    words += _memory(row, text)
    if left_out := row.get("left_out"):
        words.append(text("left_out", reason=text.said(left_out)))
    return " ".join(words)


def _memory(row: pd.Series, text: Texts) -> list[str]:
    """Memory in use beside the time in which memory was accessed, or the reason for which that is unknown."""
    used, accessed = row.get("memory_used_percent"), row.get("memory_utilization_percent")
    if pd.isna(used):
        return []
    if not pd.isna(accessed):
        return [text("memory", used=percent(used), accessed=percent(accessed))]
    why = text.said(reason(row.to_dict(), "memory_utilization_percent"))
    return [text("memory_used", used=percent(used))] + ([text("not_accessed", reason=why)] if why else [])


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a load and period; the loop is shaded, its mean and MFU are lines, single readings are marked."""
    periods = {period: text("each", period=f"{period:g}") for period in sorted(rows["polling_period_s"].unique())[:4]}
    names = {load: text(load) for load in dict.fromkeys(rows["load"])}
    grid = style.panels(figure, list(names.values()), list(periods.values()), sharex=True, sharey=True)
    polled, single, mean, mfu = style.PALETTE[:4]
    shown = rows[rows["polling_period_s"].isin(periods)]
    for (load, period), here in shown.groupby(["load", "polling_period_s"], sort=False):
        axes, first = grid[names[load], periods[period]], here.iloc[0]
        loop_s = first["window_s"]
        axes.axvspan(0, loop_s, color=style.GRID, alpha=0.6, linewidth=0)
        told = ("polls", "polled_low_percent", "polled_high_percent", "mfulab_percent", "mfu_percent")
        look = {"colors": polled, "linewidth": 1.2, "s": 12}
        kinds.lines(axes, here, "time_s", "utilization_percent", *told, **look)
        axes.hlines(first["mfulab_percent"], 0, loop_s, color=mean, linewidth=2)
        axes.hlines(first["mfu_percent"], 0, loop_s, color=mfu, linewidth=2, linestyle=(0, (4, 3)))
        moments = {
            "before": here.loc[here["time_s"] <= 0, "time_s"].max(),
            "during": here.loc[(here["time_s"] - loop_s / 2).abs().idxmin(), "time_s"],
            "after": here.loc[here["time_s"] - period >= loop_s, "time_s"].min(),
        }
        readings = [first[f"{moment}_percent"] for moment in moments]
        axes.plot([*moments.values()], readings, "o", color=single, fillstyle="none", markersize=9)
        axes.set_ylim(0, 1.12 * max(100.0, rows["utilization_percent"].max(), rows["mfu_percent"].max()))
        axes.yaxis.label.set_fontsize(10)
    style.label(figure, text("time"), text("utilization"))
    marks = [style.line(polled, text("poll")), style.dot(single, text("single"), fill="none")]
    marks += [style.line(mean, text("mean")), style.line(mfu, "MFU", (4, 3)), style.dot(style.GRID, text("loop"), "s")]
    style.legend(figure, marks + runs.key(rows, text))
