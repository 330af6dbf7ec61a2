"""Roofline: speed of every run over arithmetic intensity. Steps read from traces have only computed
roofs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import (
    Figure,
    Legend,
    Texts,
    kinds,
    labels,
    quantity,
    style,
    ticks,
)
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    highest,
    ok,
    preferred,
    spread,
    those,
    with_machine,
    with_traces,
)

TOPIC = "roofline"
ORDER = 0
MOST_TICKS = 4  # in a panel of half of the width
MACHINES = 2  # panels, side by side
MOST = 8  # runs of a machine, each with its name
CLAIM = claims.side_of("roof_percent", 100.0)
FEWEST = 1  # a run is compared with its roofs


ABOVE: style.Look = {"va": "bottom", "fontsize": 10}  # of names above lines


def rows(tables: Tables) -> DataFrame:
    """Selects plain steps with intensity, speed and measured ceilings, and steps of traces with
    computed peaks: the fastest of each model and mode. Synthetic loads are included only if there
    is nothing else."""
    both = ok(with_traces(tables), "tflop_s", "arithmetic_intensity")
    steps = ok(those(both, ~both["is_read"]), "ceiling_tflop_s", "ceiling_gb_s")
    steps = selection.pick(steps, "variant")
    read = ok(those(both, both["is_read"]), "peak_tflop_s", "peak_gb_s", "mfu_percent")
    if len(read):
        steps = pd.concat([steps, read], ignore_index=True)
    roof_tflop_s = steps["ceiling_tflop_s"].fillna(steps["peak_tflop_s"])
    roof_gb_s = steps["ceiling_gb_s"].fillna(steps["peak_gb_s"])
    steps = steps.assign(roof_tflop_s=roof_tflop_s, roof_gb_s=roof_gb_s)
    steps = with_machine(tables, steps)
    memory = steps["arithmetic_intensity"] * steps["roof_gb_s"] / 1e3  # speed that memory allows
    roof = np.minimum(steps["roof_tflop_s"], memory)
    steps = steps.assign(
        memory_tflop_s=memory,
        roof_percent=100 * steps["tflop_s"] / roof,
        bandwidth_reach=steps["hardware"].map(_reach_of_bandwidth(tables["ceilings"])).fillna(1.0),
    )
    return _few(selection.pick(steps, "recorded_trace", "synthetic"))


def _few(steps: DataFrame) -> DataFrame:
    """Keeps the fastest run of each machine, model and mode, at most MOST of a machine, evenly spread
    over their shares of the roof. Runs without doubts are preferred. `undrawn` is the number of the
    machine's others."""
    if steps.empty:
        return steps
    ranked = steps.assign(unsure=trust.unsure(steps)).sort_values(
        ["unsure", "tflop_s"],
        ascending=[True, False],
        kind="stable",
    )
    fastest = ranked.drop_duplicates(["machine", "model", "mode"])
    totals = steps["machine"].value_counts()
    kept = []
    for machine, here in fastest.groupby("machine", sort=False):
        drawn = spread(here.sort_values("roof_percent"), MOST)
        kept.append(drawn.assign(undrawn=totals[machine] - len(drawn)))
    return pd.concat(kept)


def _reach_of_bandwidth(ceilings: DataFrame) -> Series:
    """Factor by which the measured bandwidth may be off, by hardware: the end of its widest
    interval."""
    of_memory = ceilings[ceilings["ceiling"] == "memory"]
    percents = of_memory["precision_percent"].groupby(of_memory["hardware"]).max()
    return 1 + percents.astype(float) / 100


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the number of runs surely limited by memory, the run closest to its roof, and the one
    furthest above memory's."""
    is_limited = rows["memory_tflop_s"] < rows["roof_tflop_s"]
    is_near = (rows["memory_tflop_s"] / rows["roof_tflop_s"]).between(
        1 / rows["bandwidth_reach"], rows["bandwidth_reach"]
    )
    near = int(is_near.sum())
    limited = int((is_limited & ~is_near).sum())
    key = "finding"
    if near:
        key = "finding_near" if limited else "finding_open"
    is_above = is_limited & (rows["roof_percent"] > trust.ABOVE)
    under = preferred(rows, ~is_above)
    best = highest(under, "roof_percent")
    finding = text(
        key,
        limited=limited,
        near=near,
        total=len(rows),
        run=_named(best, text),
        share=best["roof_percent"],
        median=rows["roof_percent"].median(),
        measured=int(pd.notna(best["ceiling_tflop_s"])),
    )
    if is_above.all() or not is_above.any():
        return finding
    furthest = highest(rows[is_above], "roof_percent")
    run = _named(furthest, text)
    above = text(
        "above",
        count=int(is_above.sum()),
        run=run,
        share=furthest["roof_percent"],
    )
    return f"{finding} {above}"


def _named(row: Series, text: Texts) -> str:
    """Name of a run; a step read from a trace has no batch size."""
    if pd.isna(row["batch_size"]):
        return text("run_of_trace", best=row)
    return text("run", best=row)


def selected(rows: DataFrame, text: Texts) -> str:
    """Sentence on why a measured roof of a CPU lies above the computed peak; empty if none
    does."""
    above = (rows["device"] == "cpu") & (rows["ceiling_tflop_s"] > rows["peak_tflop_s"])
    if above.any():
        return text.within("ceilings")("boosted")
    return ""


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and counts the runs that it leaves out."""
    return selection.reading_of_few(rows, text, MOST)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine, with measured roofs solid and computed ones dashed. Colour
    shows the precision, and each run is named."""
    colors = style.usual_colors(rows["precision"])
    look = style.hued("precision", colors) | {"s": 64}
    place = ("arithmetic_intensity", "tflop_s")
    rows = rows.assign(name=_names(rows, text))
    for axes, here in style.by_machine(figure, rows, x=text("intensity")):
        bandwidth = here["roof_gb_s"].iloc[0] / 1e3
        intensity = here["arithmetic_intensity"]
        roof = here["roof_tflop_s"]
        low = min(intensity.min() / 3, 0.3 * roof.min() / bandwidth)
        high = max(intensity.max() * 12, 12 * roof.max() / bandwidth)
        roofs = _draw_roofs(
            axes,
            here,
            np.geomspace(low, high, 200),
            colors,
            text,
        )
        kinds.points(axes, here, *place, *place, "roof_percent", **look)
        axes.set(xscale="log", yscale="log", xlim=(low, high))
        bottom = here["tflop_s"].min() / 3
        top = axes.get_ylim()[1]
        room = (top / bottom) ** (0.08 + 0.06 * len(roofs))  # for the names of roofs
        axes.set_ylim(bottom, top * room)
        ticks.decades(axes.xaxis, MOST_TICKS)
        ticks.speeds(axes)
        top_roof = here[["peak_tflop_s", "roof_tflop_s"]].max(axis=None)
        _name_roofs(axes, roofs, (low, high), top_roof)
        _name_bandwidth(axes, bandwidth, (low, high))
        named = list(here[[*place, "name"]].itertuples(index=False, name=None))
        labels.later(labels.beside_points, axes, named)
    entries = style.dots(colors, text, "precision")
    if rows["ceiling_tflop_s"].notna().any():
        entries.append(style.line(style.MUTED, text("measured")))
    return [*entries, style.line(style.MUTED, text("computed"), (4, 2))]


def _names(rows: DataFrame, text: Texts) -> list[str]:
    """Names of runs: the model, with its mode if the model has several on its machine."""
    modes = rows.groupby(["machine", "model"])["mode"].transform("nunique")
    names = []
    for model, mode, count in zip(rows["model"], rows["mode"], modes, strict=True):
        name = model
        if count > 1:
            name = f"{model}, {text.name('mode', mode)}"
        names.append(name)
    return names


def _name_roofs(
    axes: Axes, roofs: Mapping[str, float], limits: tuple[float, float], top: float
) -> None:
    """Names the roofs, the highest first, above their right ends, where no run can be."""
    low, high = limits
    ordered = sorted(roofs, key=roofs.__getitem__, reverse=True)
    axes.annotate(
        "\n".join(ordered),
        (high / (high / low) ** 0.02, top),
        (0, 3),
        textcoords="offset points",
        ha="right",
        **ABOVE,
    )


def _name_bandwidth(axes: Axes, bandwidth: float, limits: tuple[float, float]) -> None:
    """Writes the bandwidth in TB/s along memory's slope, above its start, where no run can be."""
    low, high = limits
    start = low * (high / low) ** 0.06
    axes.text(
        start,
        1.12 * start * bandwidth,
        quantity(bandwidth * 1e12, "B/s"),
        rotation=np.degrees(np.arctan2(start * bandwidth, start)),
        transform_rotates_text=True,
        rotation_mode="anchor",
        **ABOVE,
    )


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
        axes.plot(
            x,
            computed,
            color=colors[precision],
            linewidth=1,
            linestyle="--",
        )
    return roofs
