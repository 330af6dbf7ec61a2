"""Milliseconds of a step that are lost between the peak and MFU, each part once."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.mfu.headroom import PARTS
from mfulab.report.drawing import runs, style
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
    return text(
        "finding",
        model=worst["model"],
        machine=worst["machine"],
        part=text.within("trace")(part),
        ms=significant(worst[f"{part}_ms"]),
        step=significant(1e3 * worst["time_s"]),
        points=percent(worst[part]),
        mfu=percent(worst["useful"]),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """One run falls in steps from the peak to its MFU; several are a bar each, cut where the steps would be."""
    words = text.within("trace")
    axes = style.panels(figure, [""], [""])["", ""]
    if len(rows) == 1:
        _draw_steps(axes, rows.iloc[0], words, text)
        style.legend(figure, runs.key(rows, text))
        return
    present = [part for part in PARTS if (rows[part].abs() >= SHOWN).any()]
    machines = list(dict.fromkeys(rows["machine"]))
    style.fit(figure, len(rows) + len(machines))
    _draw_bars(axes, rows, machines, present, text)
    axes.set_xlabel(text("points"))
    parts = [style.dot(COLORS[part], words(part), "s") for part in reversed(present)]
    style.legend_rows(figure, parts + runs.key(rows, text))


def _draw_steps(axes: Axes, row: pd.Series, words: Texts, text: Texts) -> None:
    shown = [part for part in PARTS if abs(row[part]) >= SHOWN and part != "useful"]
    level, names = 100.0, [text("peak")]
    axes.barh(0, 100, color=style.GRID)
    for place, part in enumerate(shown, start=1):
        bars = axes.barh(
            place, row[part], left=level - row[part], color=COLORS[part], edgecolor=style.MUTED, linewidth=0.5
        )
        runs.mark(bars, row.to_frame().T, f"{part}_ms", part)
        level -= row[part]
        inside = level > 12
        at, side = (level - 1, "right") if inside else (level + row[part] + 1, "left")
        axes.text(at, place, f"{significant(row[f'{part}_ms'])} ms", ha=side, va="center", fontsize=10)
        names.append(words(part))
    runs.mark(axes.barh(len(names), row["useful"], color=COLORS["useful"]), row.to_frame().T, "useful_ms", "useful")
    axes.text(row["useful"] + 1, len(names), f"{significant(row['useful_ms'])} ms", va="center", fontsize=10)
    names.append(f"MFU {text('share_of', share=row['useful'])}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlim=(0, max(100.0, row["useful"]) * 1.02), xlabel=text("points"))
    axes.set_title(text("step", model=row["model"], ms=significant(1e3 * row["time_s"])))
    axes.grid(axis="y", visible=False)


def _draw_bars(axes: Axes, rows: pd.DataFrame, machines: list[str], present: list[str], text: Texts) -> None:
    """A bar a run, the runs of a machine below its name."""
    labels, places, line = [], {}, 0
    for machine in machines:
        axes.text(0, line + 0.1, machine, fontsize=10, fontweight="bold", va="center")
        labels.append("")
        for index, row in rows[rows["machine"] == machine].iterrows():
            line += 1
            places[index] = line
            labels.append(f"{row['model']}  {text('share_of', share=row['useful'])}")
        line += 1
    left = pd.Series(0.0, index=rows.index)
    for part in reversed(present):
        width = rows[part].clip(lower=0).astype(float)
        bars = axes.barh([*places.values()], width[[*places]], left=left[[*places]], color=COLORS[part],
                         edgecolor=style.PAPER, linewidth=0.6, height=0.78)  # fmt: skip
        runs.mark(bars, rows.loc[[*places]], f"{part}_ms", part)
        for index, value in width[width >= NAMED].items():
            dark = part in ("matmuls_below_best", "useful", "input_wait", "graph")
            on_bar = "#fefefe" if dark else "#101418"  # whatever the page's theme
            color = style.INK if rows.loc[index, runs.DOUBTFUL] else on_bar
            middle = left[index] + value / 2
            axes.text(middle, places[index], percent(value), ha="center", va="center", fontsize=9, color=color)
        left = left + width
    axes.set_yticks(range(line), labels, fontsize=10)
    axes.set_ylim(line - 0.4, -0.6)
    axes.set_xlim(0, max(100.0, float(left.max())))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
