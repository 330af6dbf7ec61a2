"""Readings of each counter of loads whose utilization is known, and of one moment: the calibration
of all else."""

from collections.abc import Sequence

from matplotlib.colors import LinearSegmentedColormap

from mfulab.core.language.quantities import with_minus
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
SINGLE = ("during_percent", "after_percent")  # readings at one time, which judge no counter
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
# percent of the CPUs: beyond it the load itself waited, and its truth is what it wanted
DISTURBED = 5.0
WORST = 50  # points of error that have the full colour


def rows(tables: Tables) -> DataFrame:
    """One row a load of one machine, the one with the most loads; medians where one was run more
    than once."""
    measured = with_machine(tables, ok(tables["readings"], "truth_percent"))
    measured = measured[measured[list(COUNTERS)].notna().any(axis=1)]
    loads = one_each(selection.one_machine(measured), ["load"])
    return loads.sort_values("load", key=lambda load: load.map(WORDS.index))


def errors(rows: DataFrame, columns: Sequence[str] = COUNTERS) -> DataFrame:
    """Points by which each counter that read anything is off, a row a load."""
    loads = rows.set_index("load")
    return loads[[*columns]].dropna(axis="columns", how="all").sub(loads["truth_percent"], axis=0)


def finding(rows: DataFrame, text: Texts) -> str:
    """A reading after the load; of counters that read during it, the worst and the one whose worst
    is the least. What else ran meanwhile is told, too."""
    load, worst = (off := errors(rows)).abs().stack().idxmax()
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
    if others > DISTURBED:  # a counter may be right of a load that was disturbed
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
    """A table: loads down, counters across; each cell the reading and its error, by which it is
    coloured."""
    off = errors(rows, (*COUNTERS, *SINGLE))
    style.resize(figure, min(figure.get_figheight(), 2.2 + 0.42 * max(3, len(rows))))
    axes = figure.subplots()
    words = rows.set_index("load")[list(off.columns)].map(
        lambda value: "–" if value != value else percent(value)
    )
    words += off.map(
        lambda error: "" if error != error else f" ({with_minus(f'{round(error):+d}')})"
    )
    colors = LinearSegmentedColormap.from_list("error", [style.PAPER, style.PALETTE[3]])
    cells = rows.melt(
        [*rows.columns.drop([*off.columns])], [*off.columns], "counter", "reading_percent"
    )
    look = {"cmap": colors, "vmin": 0, "vmax": 1.6 * WORST, "cbar": False}
    places = ("counter", "load", "truth_percent", "reading_percent")
    kinds.cells(axes, off.abs().clip(upper=WORST).fillna(0), words, cells, *places, **look)
    for label in axes.texts:
        label.set_color(style.ON_PALE)
    truths = [text("share_of", share=share) for share in rows["truth_percent"]]
    axes.set_yticklabels(
        [f"{text(load)}: {truth}" for load, truth in zip(rows["load"], truths, strict=True)]
    )
    axes.set_xticklabels([text(name).replace(" ", "\n", 1) for name in off.columns], fontsize=10)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel(text("cell"))
