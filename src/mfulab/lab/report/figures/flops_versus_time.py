"""Fewer FLOPs need not be less time: each model's FLOPs a sample against its time a sample."""

import numpy as np

from mfulab.lab.report.drawing import Figure, Legend, Texts, points, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, comparable, steps

TOPIC, ORDER = "flops", 2
PLACE = ("flops_per_sample", "time_per_sample")
ALIKE = ["machine", "workload", "mode", "batch_size", "precision", "execution"]


def rows(tables: Tables) -> DataFrame:
    """Eager runs that other models' runs can be held against: alike in all but the model."""
    timed = steps(tables, "flops", "time_s", "batch_size", execution="eager").query("flops > 0")
    timed = timed.drop_duplicates([*ALIKE, "model"])
    timed = timed.assign(models=timed.groupby(ALIKE)["model"].transform("nunique")).query("models > 1")
    timed = timed.sort_values(["models", "batch_size"])
    # One point a model and precision: of its batch sizes, the one that most models share.
    keys = [key for key in ALIKE if key != "batch_size"]
    timed = timed.drop_duplicates([*keys, "model"], keep="last").sort_index()
    flops, time_s, size = (timed[name] for name in ("flops", "time_s", "batch_size"))
    return timed.assign(flops_per_sample=flops / size, time_per_sample=time_s / size, speed=flops / time_s)


def finding(rows: DataFrame, text: Texts) -> str:
    """The two comparable runs, alike in all but the model, whose FLOPs mislead most about their times."""
    sound = rows[comparable(rows)]  # not what spins by design
    sound = sound[sound.groupby(ALIKE)["model"].transform("nunique") > 1]
    rows = rows if sound.empty else sound
    groups = rows.groupby(ALIKE)["speed"]
    widest = (groups.transform("max") / groups.transform("min")).idxmax()
    alike = rows[(rows[ALIKE] == rows.loc[widest, ALIKE]).all(axis=1)]
    ends = alike.sort_values(["speed", "flops_per_sample"]).iloc[[0, -1]].sort_values("flops_per_sample")
    small, large = (row for _, row in ends.iterrows())
    ratios = {name: large[f"{name}_per_sample"] / small[f"{name}_per_sample"] for name in ("flops", "time")}
    return text("finding", large=large, small=small, **ratios)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a machine and mode, both axes logarithmic; along a dashed line FLOP/s are the same."""
    colors = style.usual_colors(rows["precision"])
    modes = style.modes(rows, text)
    panels = style.facets(figure, rows, text, "mode", modes, x=text("flops"), y=text("time"), sharex=True)
    for axes, here in panels:
        points.scatter(axes, here, *PLACE, colors)
        axes.set(xscale="log", yscale="log", ymargin=0.1)
        ticks.decades(axes.yaxis)
    for axes, here in panels:
        # Dashed lines of equal FLOP/s, a power of ten each, behind the points and without moving the limits.
        (left, right), limits, speeds = axes.get_xlim(), axes.get_ylim(), np.log10(here["speed"])
        across = np.geomspace(left, right, 60)
        for power in range(int(np.floor(speeds.min())), int(np.ceil(speeds.max())) + 1) if len(here) else ():
            axes.plot(across, across / 10.0**power, color=style.MUTED, linestyle="--", linewidth=0.8, zorder=0)
        axes.set(xlim=(left, right), ylim=limits)
        points.name_highest(axes, here, *PLACE, every=1)
    return [*style.dots(colors, text, "precision"), style.line(style.MUTED, text("speed"), (4, 2))]
