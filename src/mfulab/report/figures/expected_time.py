"""Time of a step: what the roofline allows, operator by operator, beside what was measured."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report.drawing import labels, points, runs, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "roofline"
ORDER = 1
PLACE = ("expected_ms", "measured_ms")


def rows(tables: Tables) -> pd.DataFrame:
    """Runs with a measured time and a roofline of their matmuls; milliseconds."""
    known = with_machine(tables, ok(tables["profile"], "time_s", "roofline_time_s", "unfused_roofline_time_s"))
    known = known[known["roofline_time_s"] > 0]  # without a matmul there is no roof of matmuls
    return known.assign(
        expected_ms=1e3 * known["roofline_time_s"],
        unfused_ms=1e3 * known["unfused_roofline_time_s"],
        measured_ms=1e3 * known["time_s"],
    )


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The median of measured over allowed time, and the runs nearest to and furthest from it."""
    times = rows["measured_ms"] / rows["expected_ms"]
    near, far = rows.loc[times.idxmin()], rows.loc[times.idxmax()]
    words = text(
        "finding",
        count=len(rows),
        median=significant(times.median()),
        unfused=significant((rows["measured_ms"] / rows["unfused_ms"]).median()),
        model=near["model"],
        batch_size=int(near["batch_size"]),
        nearest=significant(times.min()),
    )
    if times.max() == times.min():
        return words
    return f"{words} " + text(
        "furthest", model=far["model"], batch_size=int(far["batch_size"]), times=significant(times.max())
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A dot a run, from which a line leads to the time with nothing fused; on the dashed line both are equal."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines)
    colors = style.precision_colors(rows["precision"])
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        axes.axline((1, 1), (10, 10), color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.hlines(
            here["measured_ms"],
            here["expected_ms"],
            here["unfused_ms"],
            color=here["precision"].map(colors),
            linewidth=1,
            alpha=0.6,
            rasterized=len(here) > style.MANY,
        )
        points.scatter(axes, here, *PLACE, colors)
        low, high = here["expected_ms"].min() / 2, 3 * here["unfused_ms"].max()
        axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel=text("allowed"))
        axes.set_ylim(min(here["measured_ms"].min(), low), 3 * max(here["measured_ms"].max(), high))
        ticks.decades(axes.xaxis)
        ticks.decades(axes.yaxis)
    grid["", machines[0]].set_ylabel(text("measured"))
    entries = [style.dot(color, text.name("precision", name)) for name, color in colors.items()]
    entries += [style.line(style.MUTED, text("unfused")), *runs.key(rows, text)]
    style.legend(figure, entries + style.dot_size(rows["batch_size"], text))
    labels.settle(figure)
    for machine in machines:
        points.name_highest(grid["", machine], rows[rows["machine"] == machine], *PLACE, [])
