"""Runs relative to the same run at a baseline of one axis: which pairs there are, and how they are
drawn."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.formats import FORMATS
from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.lab.report import frames, selection
from mfulab.lab.report.drawing import Legend, curves, kinds, style, ticks
from mfulab.mfu.utilization import quotient_interval

KEYS = (*curves.KEYS, "batch_size")
READ = (
    *("samples_per_s", "mfu_percent", "ceiling_tflop_s", "effective_precision"),
    *(
        "page_faults_per_s",
        "page_fault_s",
        "kept_memory_time_s",
        "matmul_percent",
    ),  # of `frames.comparable`
)
MOST = 24  # models a panel
TITLE, LINE = 0.8, 0.24  # inches: a panel's title and axis, and each of its models
SMALL = 9  # points
MARGIN = 1.1  # by which two measured ceilings may err


def against(rows: pd.DataFrame, axis: str, baseline: str) -> pd.DataFrame:
    """Each run that has a partner at `axis == baseline`, at its largest such batch, with `speedup`
    and its interval."""
    keys = []
    for key in KEYS:
        if key != axis:
            keys.append(key)
    filled = frames.one_each(
        frames.alone(rows).assign(sequence_length=rows["sequence_length"].fillna(0)), KEYS
    )
    filled = filled.reindex(columns=dict.fromkeys([*filled, *READ, *frames.INTERVAL]))
    judged = []
    for name in frames.JUDGED:
        if name in filled:
            judged.append(name)
    partners = filled[filled[axis] == baseline].drop_duplicates(keys)[
        [*keys, *READ, *frames.INTERVAL, *judged]
    ]
    paired = filled[filled[axis] != baseline].merge(partners, on=keys, suffixes=("", "_base"))
    paired = frames.with_doubts_of_both(paired, judged, "_base")
    largest = paired.groupby([key for key in KEYS if key != "batch_size"])["batch_size"].transform(
        "max"
    )
    paired = paired[paired["batch_size"] == largest]
    paired = paired.assign(speedup=paired["samples_per_s"] / paired["samples_per_s_base"])
    pairs = paired[
        ["speedup", *(f"{name}_base" for name in frames.INTERVAL), *frames.INTERVAL]
    ].itertuples(index=False)
    own = [
        quotient_interval(speedup, [measured[:3]], [measured[3:]]) for speedup, *measured in pairs
    ]
    ends = ["speedup_low", "speedup_high"]
    paired[ends] = pd.DataFrame(own, paired.index, ends, dtype=float)
    # A format saves time by faster arithmetic or by fewer bytes: beyond both it cannot be faster.
    faster = paired["ceiling_tflop_s"] / paired["ceiling_tflop_s_base"]
    wide = {name: float(form.bytes) for name, form in FORMATS.items()}
    before = paired["effective_precision_base"].map(wide).astype(float)
    fewer = before / paired["effective_precision"].map(wide).astype(float)
    paired = paired.assign(possible=np.maximum(faster, fewer))
    best = paired.groupby(["machine", "model"])["speedup"].transform("max")
    return paired[best.groupby(paired["machine"]).rank(method="dense", ascending=False) <= MOST]


def finding(rows: pd.DataFrame, text: Texts, axis: str) -> str:
    """Tells the largest and the least gain of comparable pairs, how many others there are, and
    gains that cannot be."""
    sound = frames.comparable(rows) & frames.comparable(rows, "_base")
    rows = frames.preferred(rows, sound)
    best = rows.loc[rows["speedup"].idxmax()]
    worst = rows.loc[rows["speedup"].idxmin()]
    named = {
        "best_run": _named(best, rows, axis, text),
        "worst_run": _named(worst, rows, axis, text),
    }
    key = "finding_one" if best["speedup"] == worst["speedup"] else "finding"
    sentences = [text(key, **named, best=_gain(best, text), worst=_gain(worst, text))]
    sentences += selection.unranked_words(sound, text)
    least = rows["speedup_low"].fillna(rows["speedup"])
    beyond = (least / rows["possible"]).where(rows["speedup"] / rows["possible"] > MARGIN)
    if axis == "precision" and (beyond > 1).any():
        row = rows.loc[beyond.idxmax()]
        key = "further" if row["mfu_percent"] > row["mfu_percent_base"] else "beyond"
        sentences.append(text(key, run=_named(row, rows, axis, text), row=row))
    return " ".join(sentences)


def _gain(row: pd.Series, text: Texts) -> str:
    """A pair's speed-up in words, without a number where the two intervals allow either order."""
    if row["speedup_low"] < 1 < row["speedup_high"]:
        return text("unsure")
    return times(row["speedup"], text)


def times(speedup: float, text: Texts) -> str:
    """A speed-up in words: how many times as fast, or how many times as long."""
    key = "as_long"
    if speedup >= 1:
        key = "as_fast"
    return text(key, times=significant(max(speedup, 1 / speedup)))


def _named(row: pd.Series, rows: pd.DataFrame, axis: str, text: Texts) -> str:
    """A run in words, with its machine if there are several."""
    words = [text.name("mode", row["mode"]), text.name(axis, row[axis])]
    if rows["machine"].nunique() > 1:
        words.append(row["machine"])
    return f"{row['model']} ({', '.join(words)})"


def draw(rows: pd.DataFrame, figure: Figure, text: Texts, axis: str) -> Legend:
    """A panel a machine and mode, dots of each model on a line, by its best gain; phases of
    inference apart."""
    phase = ~rows["mode"].isin(("training", "inference"))
    pairs = rows[["machine", "mode"]][~phase].drop_duplicates()
    if len(pairs) < pairs["machine"].nunique() * pairs["mode"].nunique():  # a panel would be empty
        phase = pd.Series(True, rows.index)
    named = rows["model"] + ", " + rows["mode"].map(lambda mode: text.name("mode", mode))
    rows = rows.assign(
        model=rows["model"].mask(phase, named), mode=rows["mode"].mask(phase, "inference")
    )
    titles = style.modes(rows, text)
    machines = style.machines(rows)
    if phase.all():
        titles = dict.fromkeys(titles, "")
    name = style.wrapped(text("speedup"), 78 // len(titles))
    lines = None
    if len(machines) == 1:
        lines = min(MOST, rows["model"].nunique())
    counts = [rows.loc[rows["machine"] == machine, "model"].nunique() for machine in machines]
    shared: style.Look = {"sharey": "row", "sharex": True, "lines": lines}
    shared["height_ratios"] = [count + 1 for count in counts]
    panels = style.facets(figure, rows, text, "mode", titles, x=name, **shared)
    if len(machines) > 1:
        style.resize(figure, TITLE * (1 + len(machines)) + LINE * sum(counts))
    colors = (
        style.usual_colors(rows[axis])
        if axis == "precision"
        else style.colors(sorted(rows[axis].unique()))
    )
    shapes = style.shapes(colors)
    for number, (axes, here) in enumerate(panels):
        on_it = rows[rows["machine"] == machines[number // len(titles)]]
        order = _order(on_it)
        size = min(11, 240 / len(order)) if len(machines) == 1 else SMALL
        here = here[here["model"].isin(order)]
        axes.axvline(1, color=style.MUTED, linewidth=1.2)
        apart = 0.4 / max(1, len(colors) - 1)
        heights = kinds.lanes(
            axes, here, "model", order, axis, [*colors][::-1], apart, fontsize=size
        )
        look: style.Look = {
            "hue": axis,
            "palette": colors,
            "interval": ("speedup_low", "speedup_high"),
        }
        look |= {"style": axis, "markers": shapes}
        kinds.points(
            axes, here.assign(place=heights), "speedup", "place", "speedup", "samples_per_s", **look
        )
        ticks.doublings(axes, (2.0**power for power in range(-10, 11)), "×")
        axes.set_xlim(min(1.0, rows["speedup"].min()) / 1.4, max(1.0, rows["speedup"].max()) * 1.4)
    return style.dots(colors, text, axis, shapes)


def _order(rows: pd.DataFrame) -> list[str]:
    """Models by their best gain, the first below; those without a pair that is ranked are lowest."""
    is_ranked = frames.comparable(rows) & frames.comparable(rows, "_base")
    models = rows.assign(is_ranked=is_ranked).groupby("model")[["is_ranked", "speedup"]].max()
    return list(models.sort_values(["is_ranked", "speedup"]).index)
