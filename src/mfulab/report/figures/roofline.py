"""Every run under its roofs: arithmetic intensity against speed, with measured and computed ceilings.

A step read from a trace has computed ones alone; it is here where it has an MFU and all bytes of its matmuls are known.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity
from mfulab.report.drawing import labels, points, runs, style, ticks
from mfulab.report.frames import Tables, ok, with_machine, with_traces

TABLES = ("profile", "traces", "environment")
TOPIC = "roofline"
ORDER = 0
PLACE = ("arithmetic_intensity", "tflop_s")


def rows(tables: Tables) -> pd.DataFrame:
    """Runs with an intensity, a speed and both measured ceilings, and steps of traces with both computed ones."""
    needed = ("tflop_s", "arithmetic_intensity")
    measured = ok(tables["profile"], *needed, "ceiling_tflop_s", "ceiling_gb_s")
    read = ok(
        with_traces({**tables, "profile": tables["profile"].head(0)}),
        *needed,
        "peak_tflop_s",
        "peak_gb_s",
        "mfu_percent",
    )
    known = pd.concat([measured, read], ignore_index=True) if len(read) else measured
    roofs = {f"roof_{unit}": known[f"ceiling_{unit}"].fillna(known[f"peak_{unit}"]) for unit in ("tflop_s", "gb_s")}
    return with_machine(tables, known.assign(**roofs))


def roof(rows: pd.DataFrame) -> pd.Series:
    """The roof over each run, TFLOP/s: the lower of the compute ceiling and intensity × bandwidth."""
    return np.minimum(rows["roof_tflop_s"], rows["arithmetic_intensity"] * rows["roof_gb_s"] / 1e3)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Number of runs that memory limits, and the run that comes closest to its roof."""
    limited = rows["arithmetic_intensity"] * rows["roof_gb_s"] / 1e3 < rows["roof_tflop_s"]
    share = 100 * rows["tflop_s"] / roof(rows)
    best = rows.loc[share.idxmax()]
    return text(
        "finding",
        limited=int(limited.sum()),
        total=len(rows),
        run=_named(best, text),
        measured=int(best["ceiling_tflop_s"] == best["ceiling_tflop_s"]),
        share=percent(share.max()),
        median=percent(share.median()),
    )


def _named(row: pd.Series, text: Texts) -> str:
    if row["batch_size"] != row["batch_size"]:  # a trace does not tell it
        return text("run_of_trace", model=row["model"])
    return text("run", model=row["model"], batch_size=int(row["batch_size"]))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """One panel a machine: solid roofs are measured, dashed computed; colour is the precision, a label the height."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines)
    colors = style.precision_colors(rows["precision"])
    roofs: dict[str, list[tuple[float, float, str]]] = {machine: [] for machine in machines}
    slopes = {}
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        bandwidth, peak_bandwidth = here["roof_gb_s"].iloc[0], here["peak_gb_s"].iloc[0]
        low = min(here["arithmetic_intensity"].min() / 3, 0.3 * here["roof_tflop_s"].min() * 1e3 / bandwidth)
        high = max(here["arithmetic_intensity"].max() * 12, 12 * here["roof_tflop_s"].max() * 1e3 / bandwidth)
        x = np.geomspace(low, high, 200)
        end, start = high / (high / low) ** 0.02, low * (high / low) ** 0.06
        slopes[machine] = (start, start * bandwidth / 1e3, quantity(bandwidth * 1e9, "B/s"))
        for precision, group in here.groupby("precision", sort=False):
            ceiling, peak = group["ceiling_tflop_s"].iloc[0], group["peak_tflop_s"].iloc[0]
            height = ceiling if ceiling == ceiling else peak
            name = f"{text.name('precision', precision)} {quantity(height * 1e12, 'FLOP/s')}"
            roofs[machine].append((end, height, name))
            if ceiling == ceiling:
                axes.plot(x, np.minimum(ceiling, x * bandwidth / 1e3), color=colors[precision], linewidth=1.6)
            if peak == peak and peak_bandwidth == peak_bandwidth:
                axes.plot(
                    x, np.minimum(peak, x * peak_bandwidth / 1e3), color=colors[precision], linewidth=1, linestyle="--"
                )
            elif peak == peak:
                axes.plot(
                    x[x > ceiling * 1e3 / bandwidth],
                    [peak] * int((x > ceiling * 1e3 / bandwidth).sum()),
                    color=colors[precision],
                    linewidth=1,
                    linestyle="--",
                )
        points.scatter(axes, here, *PLACE, colors)
        axes.set(xscale="log", yscale="log", xlabel=text("intensity"))
        axes.set_xlim(low, high)
        lowest, highest = here["tflop_s"].min() / 3, axes.get_ylim()[1]
        axes.set_ylim(
            lowest, highest * (highest / lowest) ** (0.06 + 0.04 * len(roofs[machine]))
        )  # room for the names of roofs
        ticks.decades(axes.xaxis)
        ticks.speeds(axes)
        if machine != machines[0]:
            axes.set_ylabel("")
    entries = [style.dot(color, text.name("precision", name)) for name, color in colors.items()]
    solid = [style.line(style.MUTED, text("measured"))] if rows["ceiling_tflop_s"].notna().any() else []
    entries += [*solid, style.line(style.MUTED, text("computed"), "--")]
    style.legend(figure, entries + runs.key(rows, text) + style.dot_size(rows["batch_size"], text))
    labels.settle(figure)
    for machine in machines:
        _name_above(grid["", machine], roofs[machine], slopes[machine])
        here = rows[rows["machine"] == machine]
        crossed = [place for line in grid["", machine].lines for place in line.get_xydata()[::3].tolist()]
        points.name_highest(grid["", machine], here, *PLACE, crossed)


def _name_above(axes: Axes, roofs: list[tuple[float, float, str]], slope: tuple[float, float, str]) -> None:
    """Names roofs and the slope of memory on the upper side, where no run can be. Call it after `settle`."""
    above = {"textcoords": "offset points", "va": "bottom", "fontsize": 10}
    ordered = sorted(roofs, key=lambda roof: roof[1])
    names = "\n".join(name for *_, name in reversed(ordered))
    axes.annotate(names, ordered[-1][:2], (0, 3), ha="right", **above)
    (x, y, name), (x0, y0) = slope, axes.transData.transform(slope[:2])
    x1, y1 = axes.transData.transform((2 * x, 2 * y))
    angle = float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))
    axes.annotate(name, (x, y), (-3, 4), ha="left", rotation=angle, rotation_mode="anchor", **above)
