"""Roofline: speed of every run over arithmetic intensity. Steps read from traces have only computed
roofs."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, points, quantity, style, ticks
from mfulab.lab.report.frames import (
    DataFrame,
    Tables,
    ok,
    those,
    with_machine,
    with_traces,
)

TOPIC = "roofline"
ORDER = 0
MOST_TICKS = 4  # in a panel of a third of the width
CLAIM = claims.side_of("roof_percent", 100.0)
FEWEST = 1  # a run is compared with its roofs


def rows(tables: Tables) -> DataFrame:
    """Selects plain steps with intensity, speed and measured ceilings, and steps of traces with
    computed peaks. Synthetic loads are included only if there is nothing else."""
    needed = ("tflop_s", "arithmetic_intensity")
    both = ok(with_traces(tables), *needed)
    steps = ok(those(both, ~both["is_read"]), "ceiling_tflop_s", "ceiling_gb_s")
    steps = selection.pick(steps, "variant")
    read = ok(those(both, both["is_read"]), "peak_tflop_s", "peak_gb_s", "mfu_percent")
    if len(read):
        steps = pd.concat([steps, read], ignore_index=True)
    roofs = {
        f"roof_{unit}": steps[f"ceiling_{unit}"].fillna(steps[f"peak_{unit}"])
        for unit in ("tflop_s", "gb_s")
    }
    steps = with_machine(tables, steps.assign(**roofs))
    memory = steps["arithmetic_intensity"] * steps["roof_gb_s"] / 1e3  # speed that memory allows
    roof = np.minimum(steps["roof_tflop_s"], memory)
    steps = steps.assign(memory_tflop_s=memory, roof_percent=100 * steps["tflop_s"] / roof)
    return selection.pick(steps, "recorded_trace", "synthetic")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the number of runs limited by memory, the run closest to its roof, and the one
    furthest above memory's."""
    limited = rows["memory_tflop_s"] < rows["roof_tflop_s"]
    share = rows["roof_percent"]
    above = limited & (share > trust.ABOVE)
    under = share if above.all() else share[~above]
    keys = rows["batch_size"].notna().map({True: "run", False: "run_of_trace"})
    best = rows.loc[under.idxmax()]
    named = text(keys[under.idxmax()], best=rows.loc[under.idxmax()])
    values = {
        "share": under.max(),
        "median": share.median(),
        "measured": int(pd.notna(best["ceiling_tflop_s"])),
    }
    sentences = [text("finding", limited=int(limited.sum()), total=len(rows), run=named, **values)]
    if above.any() and not above.all():
        furthest = share[above].idxmax()
        named = text(keys[furthest], best=rows.loc[furthest])
        sentences.append(text("above", count=int(above.sum()), run=named, share=share[furthest]))
    return " ".join(sentences)


def selected(rows: DataFrame, text: Texts) -> str:
    """Sentence on why a measured roof of a CPU lies above the computed peak; empty if none
    does."""
    above = (rows["device"] == "cpu") & (rows["ceiling_tflop_s"] > rows["peak_tflop_s"])
    if above.any():
        return text.within("ceilings")("boosted")
    return ""


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each machine, with measured roofs solid and computed ones dashed. Colour
    shows the precision, and each model's highest point is named."""
    colors = style.usual_colors(rows["precision"])
    place = ("arithmetic_intensity", "tflop_s")
    for axes, here in points.panels(figure, rows, place, x=text("intensity")):
        bandwidth = here["roof_gb_s"].iloc[0] / 1e3
        intensity = here["arithmetic_intensity"]
        roof = here["roof_tflop_s"]
        low = min(intensity.min() / 3, 0.3 * roof.min() / bandwidth)
        high = max(intensity.max() * 12, 12 * roof.max() / bandwidth)
        roofs = _draw_roofs(axes, here, np.geomspace(low, high, 200), colors, text)
        axes.set(xscale="log", yscale="log", xlim=(low, high))
        lowest = here["tflop_s"].min() / 3
        highest = axes.get_ylim()[1]
        room = (highest / lowest) ** (0.08 + 0.06 * len(roofs))  # for the names of roofs
        axes.set_ylim(lowest, highest * room)
        ticks.decades(axes.xaxis, MOST_TICKS)
        ticks.speeds(axes)
        # Roofs are named above their right ends, the memory's slope above its start: no run can be
        # there.
        above = {"va": "bottom", "fontsize": 10}
        ordered = sorted(roofs, key=roofs.__getitem__, reverse=True)
        end = (high / (high / low) ** 0.02, here[["peak_tflop_s", "roof_tflop_s"]].max(axis=None))
        right = {"textcoords": "offset points", "ha": "right"}
        axes.annotate("\n".join(ordered), end, (0, 3), **right, **above)
        start = low * (high / low) ** 0.06
        angle = np.degrees(np.arctan2(start * bandwidth, start))
        along = {"rotation": angle, "transform_rotates_text": True, "rotation_mode": "anchor"}
        name = quantity(bandwidth * 1e12, "B/s")
        axes.text(start, 1.12 * start * bandwidth, name, **along, **above)
    entries = []
    if rows["ceiling_tflop_s"].notna().any():
        entries = [style.line(style.MUTED, text("measured"))]
    entries += [style.line(style.MUTED, text("computed"), (4, 2))]
    points.legend(figure, rows, text, entries)


def _draw_roofs(
    axes: Axes, here: DataFrame, x: np.ndarray, colors: dict[str, str], text: Texts
) -> dict[str, float]:
    """Draws the roofs of each precision at intensities `x`. Returns their names and heights."""
    bandwidth = here["roof_gb_s"].iloc[0] / 1e3
    peak_bandwidth = here["peak_gb_s"].iloc[0] / 1e3
    roofs = {}
    for precision, group in here.groupby("precision", sort=False):
        ceiling = group["ceiling_tflop_s"].iloc[0]
        peak = group["peak_tflop_s"].iloc[0]
        height = ceiling if ceiling == ceiling else peak
        name = f"{text.name('precision', precision)} {quantity(height * 1e12, 'FLOP/s')}"
        roofs[name] = height
        measured = np.minimum(ceiling, x * bandwidth)
        computed = np.minimum(peak, x * peak_bandwidth)
        if peak_bandwidth != peak_bandwidth:
            # Without a peak bandwidth, only the part above the measured roof is known.
            computed = np.where(x > ceiling / bandwidth, peak, np.nan)
        axes.plot(x, measured, color=colors[precision], linewidth=1.6)
        axes.plot(x, computed, color=colors[precision], linewidth=1, linestyle="--")
    return roofs
