"""Memory of a step: the predicted peak against the measured one."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mfulab.language import Texts
from mfulab.language.quantities import percent, quantity
from mfulab.report import labels, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "memory"


def rows(tables: Tables) -> pd.DataFrame:
    """Runs with a measured peak and a prediction."""
    return with_machine(tables, ok(tables["profile"], "memory_bytes", "predicted_memory_bytes"))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The median deviation and the largest."""
    deviation = 100 * (rows["predicted_memory_bytes"] / rows["memory_bytes"] - 1)
    worst = rows.loc[deviation.abs().idxmax()]
    return text(
        "finding",
        count=len(rows),
        median=percent(deviation.abs().median()),
        model=worst["model"],
        batch_size=int(worst["batch_size"]),
        predicted=quantity(worst["predicted_memory_bytes"], "B"),
        measured=quantity(worst["memory_bytes"], "B"),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; on the dashed line prediction and measurement agree."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines)
    colors = style.precision_colors(rows["precision"])
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        axes.axline((1, 1), (10, 10), color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.scatter(
            here["predicted_memory_bytes"] / 2**30,
            here["memory_bytes"] / 2**30,
            s=style.batch_area(here["batch_size"]),
            color=here["precision"].map(colors),
            alpha=0.85,
            edgecolor=style.PAPER,
            linewidth=0.5,
            zorder=3,
            rasterized=len(here) > style.MANY,
        )
        both = here[["predicted_memory_bytes", "memory_bytes"]] / 2**30
        low, high = both.min(axis=None) / 2, both.max(axis=None) * 3
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=text("predicted"))
        ticks.decades(axes.xaxis)
        ticks.decades(axes.yaxis)
    grid["", machines[0]].set_ylabel(text("measured_peak"))
    entries = [style.dot(color, text.name("precision", name)) for name, color in colors.items()]
    style.legend(figure, entries + style.dot_size(rows["batch_size"], text))
    labels.settle(figure)
    for machine in machines:
        here = (
            rows[rows["machine"] == machine].sort_values("memory_bytes").drop_duplicates("model", keep="last").tail(24)
        )
        points = [
            (predicted / 2**30, measured / 2**30, model)
            for predicted, measured, model in here[["predicted_memory_bytes", "memory_bytes", "model"]].itertuples(
                index=False
            )
        ]
        whole = rows.loc[rows["machine"] == machine, ["predicted_memory_bytes", "memory_bytes"]].head(400) / 2**30
        low, high = grid["", machine].get_xlim()
        diagonal = np.geomspace(low, high, 80)
        obstacles = list(whole.itertuples(index=False, name=None))
        labels.beside_points(grid["", machine], points, obstacles, list(zip(diagonal, diagonal, strict=True)))
