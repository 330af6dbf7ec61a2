"""Runs relative to the same run at a baseline of one axis: how they are paired, described and
drawn."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.formats import FORMATS
from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.lab.report import frames, selection
from mfulab.lab.report.drawing import Legend, curves, kinds, style, ticks
from mfulab.mfu.utilization import quotient_interval

KEYS = (*curves.KEYS, "batch_size")
# Columns that a pair has of both runs; the second line is what `frames.comparable` needs.
READ = (
    *("samples_per_s", "mfu_percent", "ceiling_tflop_s", "effective_precision"),
    *("page_faults_per_s", "page_fault_s", "kept_memory_time_s", "matmul_percent"),
)
MOST = 24  # models in a panel
FEWEST = 2  # marks in a panel
# Ticks; those between doublings are for panels in which all speedups are small.
FACTORS = (*(2.0**power for power in range(-10, 11)), 1 / 1.5, 1 / 1.25, 1.25, 1.5)
MOST_LABELLED = 12  # marks that have their numbers beside them
TITLE, LINE = 0.8, 0.24  # inches for a panel's title and axis, and for each of its models
SMALL = 9  # font size
DRAWN = ("drawn_low", "drawn_high")  # columns of the interval that is drawn
MARGIN = 1.1  # factor by which the ratio of two measured ceilings may be off


def against(rows: pd.DataFrame, axis: str, baseline: str) -> pd.DataFrame:
    """Pairs each run with the same run at `axis == baseline`, for each at the largest batch that
    has a pair. Adds `speedup` and its interval."""
    keys = []
    for key in KEYS:
        if key != axis:
            keys.append(key)
    lengths = rows["sequence_length"].fillna(0)
    filled = frames.one_each(frames.alone(rows).assign(sequence_length=lengths), KEYS)
    filled = filled.reindex(columns=dict.fromkeys([*filled, *READ, *frames.INTERVAL]))
    judged = []
    for name in frames.JUDGED:
        if name in filled:
            judged.append(name)
    partners = filled[filled[axis] == baseline].drop_duplicates(keys)
    partners = partners[[*keys, *READ, *frames.INTERVAL, *judged]]
    paired = filled[filled[axis] != baseline].merge(partners, on=keys, suffixes=("", "_base"))
    paired = frames.with_doubts_of_both(paired, judged, "_base")
    largest = paired.groupby(curves.KEYS)["batch_size"].transform("max")
    paired = paired[paired["batch_size"] == largest]
    paired = paired.assign(speedup=paired["samples_per_s"] / paired["samples_per_s_base"])
    paired = _with_intervals(paired)
    # A format saves time by faster arithmetic or by fewer bytes, so neither bound can be exceeded.
    faster = paired["ceiling_tflop_s"] / paired["ceiling_tflop_s_base"]
    sizes = {name: float(form.bytes) for name, form in FORMATS.items()}
    bytes_before = paired["effective_precision_base"].map(sizes).astype(float)
    fewer_bytes = bytes_before / paired["effective_precision"].map(sizes).astype(float)
    paired = paired.assign(possible=np.maximum(faster, fewer_bytes))
    best = paired.groupby(["machine", "model"])["speedup"].transform("max")
    return paired[best.groupby(paired["machine"]).rank(method="dense", ascending=False) <= MOST]


def _with_intervals(paired: pd.DataFrame) -> pd.DataFrame:
    """Adds the interval of each pair's speedup, and whether both runs had one. A run without has
    the usual one of its machine."""
    is_known = pd.Series(True, paired.index)
    measures = []
    for suffix in ("_base", ""):
        ends = frames.relative_ends(paired, suffix)
        measures.append([(1.0, low, high) for low, high in zip(*ends, strict=True)])
        is_known &= paired[f"time_ci_low_s{suffix}"].notna()
    intervals = []
    for speedup, before, after in zip(paired["speedup"], *measures, strict=True):
        intervals.append(quotient_interval(speedup, [before], [after]))
    columns = ["speedup_low", "speedup_high"]
    paired[columns] = pd.DataFrame(intervals, paired.index, columns, dtype=float)
    return paired.assign(has_interval=is_known)


def ranked(paired: pd.DataFrame) -> pd.DataFrame:
    """Returns the pairs whose two runs may be ranked, or all pairs if there are none. Machines with
    a single one are left out if others have more."""
    sound = frames.preferred(paired, _is_sound(paired))
    return frames.preferred(sound, sound.groupby("machine")["machine"].transform("size") >= FEWEST)


def _is_sound(paired: pd.DataFrame) -> pd.Series:
    return frames.comparable(paired) & frames.comparable(paired, "_base")


def finding(rows: pd.DataFrame, text: Texts, axis: str) -> str:
    """Sentences on the largest and smallest speedup, on pairs that may not be ranked, and on
    impossible speedups."""
    best = rows.loc[rows["speedup"].idxmax()]
    worst = rows.loc[rows["speedup"].idxmin()]
    named = {
        "best_run": _named(best, rows, axis, text),
        "worst_run": _named(worst, rows, axis, text),
    }
    key = "finding_one" if best["speedup"] == worst["speedup"] else "finding"
    sentences = [text(key, **named, best=_gain(best, text), worst=_gain(worst, text))]
    sentences += _at_other_lengths(best, rows, axis, text)
    sentences += selection.unranked_words(_is_sound(rows), text)
    least = rows["speedup_low"]
    beyond = (least / rows["possible"]).where(rows["speedup"] / rows["possible"] > MARGIN)
    if axis == "precision" and (beyond > 1).any():
        row = rows.loc[beyond.idxmax()]
        key = "further" if row["mfu_percent"] > row["mfu_percent_base"] else "beyond"
        sentences.append(text(key, run=_named(row, rows, axis, text), row=row))
    return " ".join(sentences)


def _gain(row: pd.Series, text: Texts) -> str:
    """Text on a pair's speedup, without a number if its interval contains 1."""
    if row["speedup_low"] < 1 < row["speedup_high"]:
        return text("unsure")
    return times(row["speedup"], text)


def times(speedup: float, text: Texts) -> str:
    """Text on a speedup: how many times as fast, or how many times as long."""
    key = "as_long"
    if speedup >= 1:
        key = "as_fast"
    return text(key, times=significant(max(speedup, 1 / speedup)))


def _named(row: pd.Series, rows: pd.DataFrame, axis: str, text: Texts) -> str:
    """Name of a run, with its batch and tokens, and its machine if there are several."""
    words = [text.name("mode", row["mode"]), text.name(axis, row[axis]), *_sizes(row, text)]
    if rows["machine"].nunique() > 1:
        words.append(row["machine"])
    return text("with_setting", name=row["model"], setting=", ".join(words))


def _sizes(row: pd.Series, text: Texts) -> list[str]:
    """Batch and, of a language model, tokens of a run, in words."""
    words = text.within("why")
    sizes = [words("batch", batch_size=int(row["batch_size"]))]
    if row["sequence_length"] > 0:
        sizes.append(words("tokens", length=int(row["sequence_length"])))
    return sizes


def _at_other_lengths(best: pd.Series, rows: pd.DataFrame, axis: str, text: Texts) -> list[str]:
    """Sentence on the speedups of the best run's model with other numbers of tokens; empty if there
    are none."""
    keys = ["machine", "model", "workload", "mode", "precision", "execution"]
    same = (rows[[*keys, axis]] == best[[*keys, axis]]).all(axis=1)
    others = []
    for _, row in rows[same].drop(best.name).sort_values("speedup").iterrows():
        setting = ", ".join(_sizes(row, text))
        others.append(text("at_length", times=significant(row["speedup"]), setting=setting))
    if not others:
        return []
    return [text("at_other_lengths", model=best["model"], others="; ".join(others))]


def draw(rows: pd.DataFrame, figure: Figure, text: Texts, axis: str) -> Legend:
    """Draws a panel for each machine and mode, with a line for each model, sorted by its best
    speedup. Phases of inference get lines of their own."""
    # The interval of a single process is assumed, and so not drawn.
    measured = rows[["speedup_low", "speedup_high"]].where(rows["has_interval"])
    rows = rows.assign(**dict(zip(DRAWN, measured.to_numpy().T, strict=True)))
    phase = ~rows["mode"].isin(("training", "inference"))
    marks = rows[~phase].groupby(["machine", "mode"]).size().unstack(fill_value=0)
    if (marks < FEWEST).any(axis=None):
        phase = pd.Series(True, rows.index)  # all modes share a panel
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
    colors = style.colors(sorted(rows[axis].unique()))
    if axis == "precision":
        colors = style.usual_colors(rows[axis])
    shapes = style.shapes(colors)
    for number, (axes, here) in enumerate(panels):
        order = _order(rows[rows["machine"] == machines[number // len(titles)]])
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
            "x_interval": DRAWN,
        }
        look |= {"style": axis, "markers": shapes}
        kinds.points(
            axes, here.assign(place=heights), "speedup", "place", "speedup", "samples_per_s", **look
        )
        if len(rows) <= MOST_LABELLED:
            _write_factors(axes, here.assign(place=heights))
        ticks.doublings(axes, FACTORS, "×")
        axes.set_xlim(min(1.0, rows["speedup"].min()) / 1.4, max(1.0, rows["speedup"].max()) * 1.4)
    return style.dots(colors, text, axis, shapes)


def _write_factors(axes: Axes, here: pd.DataFrame) -> None:
    """Writes each speedup beside its mark, on the side away from the nearest mark of its line."""
    paper = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6}
    anchor = {"textcoords": "offset points", "va": "center", "fontsize": SMALL, "bbox": paper}
    for _, line in here.groupby("model"):
        line = line.sort_values("speedup")
        logs = np.log(line["speedup"])
        before = logs.diff().fillna(np.inf)
        after = -logs.diff(-1).fillna(-np.inf)
        for (_, row), is_left in zip(line.iterrows(), after < before, strict=True):
            offset, side, drawn = (6, "left", "drawn_high")
            if is_left:
                offset, side, drawn = (-6, "right", "drawn_low")
            end = row["speedup"] if pd.isna(row[drawn]) else row[drawn]
            words = f"{significant(row['speedup'])}×"
            axes.annotate(words, (end, row["place"]), (offset, 0), ha=side, **anchor)


def _order(rows: pd.DataFrame) -> list[str]:
    """Models by their best speedup, the first at the bottom."""
    return list(rows.groupby("model")["speedup"].max().sort_values().index)
