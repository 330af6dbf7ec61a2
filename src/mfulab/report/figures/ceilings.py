"""Ceilings of each device by precision: measured beside computed."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity
from mfulab.planning.naming import short
from mfulab.report.drawing import runs, style
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("ceilings", "environment")
TOPIC = "roofline"
ORDER = 1


def rows(tables: Tables) -> pd.DataFrame:
    """Ceilings with a measured matmul."""
    return with_machine(tables, ok(tables["ceilings"], "measured_tflop_s"))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The fastest format, and what share of the computed peak was reached; on a CPU why that may be over 100 %."""
    best = rows.loc[rows["measured_tflop_s"].idxmax()]
    known = best["computed_tflop_s"] == best["computed_tflop_s"]
    words = text(
        "finding" if known else "finding_unknown",
        machine=best["machine"],
        precision=text.name("precision", best["ceiling"]),
        measured=quantity(best["measured_tflop_s"] * 1e12, "FLOP/s"),
        computed=quantity(best["computed_tflop_s"] * 1e12, "FLOP/s"),
        share=percent(100 * best["measured_tflop_s"] / best["computed_tflop_s"]) if known else "",
    )
    boosted = best["measured_tflop_s"] > best["computed_tflop_s"] and best["device"] == "cpu"
    return f"{words} {text('boosted')}" if boosted else words


def _named(row: Any, text: Texts) -> str:
    """A ceiling's format, with what its run has besides, such as fewer threads."""
    rest = row.run.removeprefix(f"ceiling={row.ceiling}").removeprefix(",")
    return "\n".join(filter(None, [text.name("precision", row.ceiling), short(rest)]))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """One panel a machine: a bar to the measured ceiling, a ring at the computed peak."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines)
    style.fit(figure, int(rows.groupby("machine").size().max()))
    for machine in machines:
        axes = grid["", machine]
        here = rows[rows["machine"] == machine].sort_values("measured_tflop_s")
        names = [_named(row, text) for row in here.itertuples()]
        heights = range(len(here))
        bars = axes.barh(heights, here["measured_tflop_s"], color=style.PALETTE[0], height=0.55)
        runs.mark(bars, here, "measured_tflop_s", "computed_tflop_s")
        axes.plot(
            here["computed_tflop_s"],
            heights,
            "o",
            color=style.PALETTE[1],
            fillstyle="none",
            markersize=10,
            markeredgewidth=2,
        )
        for index, (_, row) in enumerate(here.iterrows()):
            far = max(value for value in (row["measured_tflop_s"], row["computed_tflop_s"]) if value == value)
            label = quantity(row["measured_tflop_s"] * 1e12, "FLOP/s")
            share = 100 * row["measured_tflop_s"] / row["computed_tflop_s"]
            label += "\n" + text("share", share=f"{share:.0f}") if share == share else ""
            axes.annotate(label, (far, index), (10, 0), textcoords="offset points", va="center", fontsize=10)
        axes.set_yticks(heights, names)
        axes.set_xlim(0, 1.5 * max(here["measured_tflop_s"].max(), here["computed_tflop_s"].max(skipna=True) or 0))
        room = max(0.0, (3 - len(here)) / 2)  # a single bar is no wall
        axes.set_ylim(-0.6 - room, len(here) - 0.4 + room)
        axes.set_xlabel("TFLOP/s")
        axes.grid(axis="y", visible=False)
    style.legend(
        figure,
        [
            style.dot(style.PALETTE[0], text("measured"), "s"),
            style.dot(style.PALETTE[1], text("computed"), fill="none"),
            *runs.key(rows, text),
        ],
    )
