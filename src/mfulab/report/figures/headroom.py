"""Milliseconds of a step that are lost between the peak and MFU, each part once."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.mfu.headroom import PARTS
from mfulab.report.drawing import kinds, runs, style
from mfulab.report.frames import Tables, ok, with_machine, with_traces

TABLES = ("profile", "traces", "environment")
TOPIC = "why"
ORDER = 0
MOST = 12  # runs of all machines
SHOWN = 0.05  # points below which a part has no step of its own
NAMED = 4.0  # points of a stacked bar that hold a number
COLORS = dict(
    zip(
        PARTS,
        ("#8c8c8c", "#c9ced6", "#cc78bc", "#56b4e9", "#949494", "#d55e00", "#de8f05", "#ece133",
         "#ca9161", "#fbafe4", "#b4d3b2", "#a5c8e1", "#0173b2", "#029e73"),
        strict=True,
    )
)  # fmt: skip


def rows(tables: Tables) -> pd.DataFrame:
    """The budget of the busiest run of each model on each machine, in points of MFU."""
    columns = [f"{part}_ms" for part in PARTS]
    known = with_machine(tables, ok(with_traces(tables), "time_s", "mfu_percent", "useful_ms"))
    if known.empty:
        return known
    for part, column in zip(PARTS, columns, strict=True):
        known[part] = (100 * known[column] / 1e3 / known["time_s"]).fillna(0)  # a part that is not known takes nothing
    known["busy"] = known["utilization_percent"].fillna(0)
    best = known.loc[known.groupby(["machine", "model"])["busy"].idxmax()]
    ordered = best.sort_values(["recorded", "machine", "useful"], ascending=[True, True, False])
    machines = style.machines(ordered)
    return ordered[ordered["machine"].isin(machines)].groupby("machine", sort=False).head(MOST // len(machines))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The part that takes most off the run that loses most to it."""
    lost = rows[[part for part in PARTS if part != "useful"]].astype(float)
    worst = rows.loc[lost.max(axis=1).idxmax()]
    part = str(lost.loc[worst.name].idxmax())
    values = {"part": text.within("trace")(part), "ms": worst[f"{part}_ms"], "points": worst[part]}
    return text("finding", worst=worst, step=1e3 * worst["time_s"], **values)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """One run falls in steps from the peak to its MFU; several are a bar each, cut where the steps would be."""
    words = text.within("trace")
    axes = style.panels(figure, [""], [""])["", ""]
    if len(rows) == 1:
        _draw_steps(axes, rows, words, text)
        style.legend(figure, runs.key(rows, text))
        return
    present = [part for part in reversed(PARTS) if (rows[part].abs() >= SHOWN).any()]
    style.fit(figure, len(rows) + rows["machine"].nunique())
    _draw_bars(axes, rows, present, text)
    axes.set_xlabel(text("points"))
    style.legend_rows(figure, [style.dot(COLORS[part], words(part), "s") for part in present] + runs.key(rows, text))


def _draw_steps(axes: Axes, rows: pd.DataFrame, words: Texts, text: Texts) -> None:
    row = rows.iloc[0]
    shown = [part for part in PARTS if abs(row[part]) >= SHOWN and part != "useful"] + ["useful"]
    lost = pd.Series([row[part] for part in shown])
    steps = pd.DataFrame({"part": shown, "points": lost, "ms": [row[f"{part}_ms"] for part in shown]})
    steps = steps.assign(left=100 - lost.cumsum(), run=row["run"], doubtful=row[runs.DOUBTFUL])
    steps["left"] = steps["left"].where(steps["part"] != "useful", 0)
    first = steps.head(1).assign(part="peak", points=100, left=0, ms=float("nan"), doubtful=False)
    steps = pd.concat([first, steps], ignore_index=True)
    steps["name"] = [text("peak"), *map(words, shown[:-1]), f"MFU {text('share_of', share=row['useful'])}"]
    colors = {"peak": style.GRID} | {part: COLORS[part] for part in shown}
    look: style.Look = {
        "order": list(steps["name"]),
        "dodge": False,
        "edgecolor": style.MUTED,
        "linewidth": 0.5,
        "width": 0.8,
    }
    for _, step in steps.iterrows():
        one, color = step.to_frame().T, colors[step["part"]]
        kinds.bars(axes, one, "points", "name", "points", "ms", colors=color, start="left", **look)
    for place, step in steps.iloc[1:].iterrows():
        inside = step["left"] > 12
        at, side = (step["left"] - 1, "right") if inside else (step["left"] + step["points"] + 1, "left")
        axes.text(at, place, f"{significant(step['ms'])} ms", ha=side, va="center", fontsize=10)
    axes.set(xlim=(0, max(100.0, row["useful"]) * 1.02), xlabel=text("points"))
    axes.set_title(text("step", model=row["model"], ms=significant(1e3 * row["time_s"])))


def _draw_bars(axes: Axes, rows: pd.DataFrame, present: list[str], text: Texts) -> None:
    """A bar a run, the runs of a machine below its name."""
    lines: list[pd.Series] = []
    for machine, here in rows.groupby("machine", sort=False):
        axes.text(0, len(lines) + 0.1, machine, fontsize=10, fontweight="bold", va="center")
        lines += [pd.Series({runs.DOUBTFUL: False, "run": "", "name": ""}), *(row for _, row in here.iterrows())]
    shown = pd.DataFrame(lines)
    shares = shown[present].astype(float).clip(lower=0).fillna(0)
    shown[present] = shares
    known = shown["model"].notna()
    shown["name"] = (shown["model"] + "  ").fillna("")
    shown.loc[known, "name"] += [text("share_of", share=share) for share in shown.loc[known, "useful"]]
    look = {"edgecolor": style.PAPER, "linewidth": 0.6, "width": 0.78}
    kinds.stacks(
        axes, shown, {part: COLORS[part] for part in present}, "name", *(f"{part}_ms" for part in present), **look
    )
    starts = shares.cumsum(axis=1) - shares
    for (place, part), value in shares.reset_index(drop=True).stack().items():
        if value >= NAMED:
            dark = part in ("matmuls_below_best", "useful", "input_wait", "graph")
            on_bar = "#fefefe" if dark else "#101418"  # whatever the page's theme
            color = style.INK if shown.iloc[place][runs.DOUBTFUL] else on_bar
            middle = starts.iloc[place][part] + value / 2
            axes.text(middle, place, percent(value), ha="center", va="center", fontsize=9, color=color)
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.set(ylim=(len(shown) - 0.4, -0.6), xlim=(0, max(100.0, float(shares.sum(axis=1).max()))))
