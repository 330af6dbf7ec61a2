"""Readings of each counter for loads of known utilization: the calibration of all other figures."""

from collections.abc import Sequence
from itertools import cycle

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, percent, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, one_each, with_machine

TOPIC = "ladder"
ORDER = 5
REASONS = selection.TOGETHER
COUNTERS = (
    *(
        "mfulab_percent",
        "psutil_process_percent",
        "cgroup_percent",
        "proc_stat_percent",
        "psutil_machine_percent",
    ),
    *("profiler_percent", "nvml_percent", "sm_active_percent"),
)
SINGLE = ("during_percent", "after_percent")  # single readings, which do not judge a counter
WORDS = (
    "idle",
    "copies",
    "spin_one",
    "duty_25",
    "bursty",
    "duty_50",
    "duty_75",
    "padded",
    "steady",
)
# % of CPU time used by others, above which loads waited and their true utilization is uncertain
DISTURBED = 5.0
APART = 0.1  # of a line, so that tools that agree do not overlap


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each load on one machine, with medians over repeated runs."""
    measured = with_machine(tables, ok(tables["readings"], "truth_percent"))
    measured = measured[measured[list(COUNTERS)].notna().any(axis=1)]
    loads = one_each(selection.one_machine(measured), ["load"])
    return loads.sort_values("load", key=lambda load: load.map(WORDS.index))


def errors(rows: DataFrame, columns: Sequence[str] = COUNTERS) -> DataFrame:
    """Deviation in percentage points of each counter with readings, with a row for each load."""
    loads = rows.set_index("load")
    return loads[[*columns]].dropna(axis="columns", how="all").sub(loads["truth_percent"], axis=0)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on a reading after the load, on the worst counter, and on the one whose largest
    error is smallest. Other processes are mentioned if they disturbed the loads."""
    off = errors(rows)
    load, worst = off.abs().stack().idxmax()
    row = rows.set_index("load").loc[load]
    sentences = []
    late = rows.dropna(subset=["after_percent", "mfulab_percent"])
    lost = late["mfulab_percent"] - late["after_percent"]
    if (lost > 0).any():
        sentences.append(text("after", row=late.loc[lost.idxmax()], points=lost.max()))
    furthest = off.abs().max()
    several = len(furthest) > 1
    sentences.append(
        text(
            "finding" if several else "finding_one",
            counter=text(worst),
            load=text(load),
            reading=row[worst],
            truth=row["truth_percent"],
        )
    )
    others = rows["other_processes_percent"].median()
    if others > DISTURBED:  # deviations may be due to disturbed loads, not counters
        sentences.append(text("disturbed", share=percent(others)))
    elif several:
        sentences.append(
            text(
                "best",
                counter=text(furthest.idxmin()),
                points=percent(furthest.min()),
                count=len(off),
            )
        )
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a line for each load, with a vertical stroke at its true utilization and a point at
    each counter's reading."""
    style.fit(figure, len(rows))
    axes = figure.subplots()
    columns = [*errors(rows, (*COUNTERS, *SINGLE))]
    read = rows.melt([*rows.columns.drop(columns)], columns, "counter", "reading_percent")
    colors = style.colors(columns)
    shapes = dict(zip(columns, cycle(style.MARKERS), strict=False))
    names = [
        f"{text(load)}: {text('share_of', share=share)}"
        for load, share in zip(rows["load"], rows["truth_percent"], strict=True)
    ]
    named = read.assign(named=read["load"].map(dict(zip(rows["load"], names, strict=True))))
    heights = kinds.lanes(axes, named, "named", names[::-1], "counter", columns, APART)
    for height, truth in enumerate(rows["truth_percent"][::-1]):
        axes.plot([truth, truth], [height - 0.5, height + 0.5], color=style.MUTED, linewidth=1.6)
    look: style.Look = {"hue": "counter", "palette": colors, "style": "counter", "markers": shapes}
    places = ("reading_percent", "height", "truth_percent", "reading_percent")
    kinds.points(axes, named.assign(height=heights), *places, **look)
    most = max(100.0, read["reading_percent"].max())
    axes.set(xlabel=text("read"), ylabel="", xlim=(-0.03 * most, 1.03 * most))
    entries = style.dots(colors, text, marker=shapes)
    style.legend(figure, [style.dot(style.MUTED, text("truth"), "|"), *entries])
