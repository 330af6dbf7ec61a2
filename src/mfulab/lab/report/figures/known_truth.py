"""Readings of each counter for loads of known utilization: the calibration of all other figures."""

from collections.abc import Sequence

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, percent, specs, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, one_each, with_machine

TOPIC = "ladder"
ORDER = 5
REASONS = selection.TOGETHER
COUNTERS = (
    "mfulab_percent",
    "psutil_process_percent",
    "cgroup_percent",
    "proc_stat_percent",
    "psutil_machine_percent",
    "profiler_percent",
    "nvml_percent",
    "sm_active_percent",
)
PROFILER = "profiler_percent"  # sees operators of torch alone
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


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each load on one machine, with medians over repeated runs."""
    measured = with_machine(tables, ok(tables["readings"], "truth_percent"))
    measured = measured[measured[list(COUNTERS)].notna().any(axis=1)]
    loads = one_each(selection.one_machine(measured), ["load"])
    return loads.sort_values("load", key=lambda load: load.map(WORDS.index))


def errors(rows: DataFrame, columns: Sequence[str] = COUNTERS) -> DataFrame:
    """Deviation in percentage points of each counter with readings, with a row for each load."""
    loads = rows.set_index("load")
    readings = loads[[*columns]].dropna(axis="columns", how="all")
    return readings.sub(loads["truth_percent"], axis=0)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on a reading after the load, on the worst counter, and on the one whose largest
    error is smallest. Other processes are mentioned if they disturbed the loads."""
    sentences = []
    late = rows.dropna(subset=["after_percent", "mfulab_percent"])
    lost = late["mfulab_percent"] - late["after_percent"]
    if (lost > 0).any():
        sentences.append(
            text(
                "after",
                row=late.loc[lost.idxmax()],
                points=lost.max(),
            )
        )
    off = errors(rows).abs()
    furthest = off.max()
    load, worst = off.stack().idxmax()
    row = rows.set_index("load").loc[load]
    key = "finding"
    if worst == PROFILER:
        key = "finding_blind"
    elif len(furthest) == 1:
        key = "finding_one"
    values = {"reading": row[worst], "truth": row["truth_percent"]}
    sentences.append(
        text(
            key,
            counter=text(worst),
            load=text(load),
            **values,
        )
    )
    others = rows["other_processes_percent"].median()
    if others > DISTURBED:  # deviations may be due to disturbed loads, not counters
        sentences.append(text("disturbed", share=percent(others)))
    elif len(furthest) > 1:
        best = text(furthest.idxmin())
        points = percent(furthest.min())
        sentences.append(
            text(
                "best",
                counter=best,
                points=points,
                count=len(off),
            )
        )
    return " ".join(sentences)


def _deviations(rows: DataFrame) -> DataFrame:
    """A row for each load and each tool with readings, with the deviation in points."""
    columns = [*errors(rows, (*COUNTERS, *SINGLE))]
    read = rows.melt([*rows.columns.drop(columns)], columns, "counter", "reading_percent")
    read = read.dropna(subset=["reading_percent"])
    return read.assign(off=read["reading_percent"] - read["truth_percent"])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a line for each tool, the best at the top, with a dot for each load at the deviation of
    its reading. The largest deviation is written at the right."""
    read = _deviations(rows)
    furthest = read["off"].abs().groupby(read["counter"]).max()
    order = list(furthest.sort_values(ascending=False).index)
    style.fit(figure, len(order))
    axes = figure.subplots()
    read = read.assign(height=kinds.lanes(axes, read, "counter", order))
    axes.set_yticks(range(len(order)), [text(counter) for counter in order])
    axes.axvline(0, color=style.MUTED, linewidth=1.6)
    places = ("off", "height", "truth_percent", "reading_percent")
    kinds.points(axes, read, *places, **specs.MANY_DOTS)
    beside = axes.get_yaxis_transform()
    for height, counter in enumerate(order):
        here = read[read["counter"] == counter]
        worst = here.loc[here["off"].abs().idxmax()]
        words = text(
            "most",
            points=worst["off"],
            load=text(worst["load"]),
        )
        axes.text(
            1.02,
            height,
            words,
            transform=beside,
            va="center",
            fontsize=9,
        )
    low = min(-10.0, 1.05 * read["off"].min())
    high = max(10.0, 1.05 * read["off"].max())
    axes.set(
        xlabel=text("deviation"),
        ylabel="",
        xlim=(low, high),
    )
