"""Runs relative to the same run at a baseline of one axis: how they are paired, described and
drawn."""

from collections.abc import Mapping

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
MOST_MODELS = 24  # in a panel
FEWEST = 2  # marks in a panel
# Ticks; those between doublings are for panels in which all speedups are small.
FACTORS = (*(2.0**power for power in range(-10, 11)), 1 / 1.5, 1 / 1.25, 1.25, 1.5)
MOST_LABELLED = 12  # marks that have their numbers beside them
TITLE, LINE = 0.8, 0.24  # inches for a panel's title and axis, and for each of its models
SMALL = 9  # font size
INTERVAL_ENDS = ["drawn_low", "drawn_high"]  # columns of the interval that is drawn
WIDTH = 78  # letters of axis labels below all panels in a row
NAMES_HEIGHT = 240  # points for the names of all models of a single machine
MARGIN = 1.1  # factor by which the ratio of two measured ceilings may be off


def against(rows: pd.DataFrame, axis: str, baseline: str | float) -> pd.DataFrame:
    """Pairs each run with the same run at `axis == baseline`, for each at the largest batch that
    has a pair; at every batch if `axis` is the batch. Adds `speedup` and its interval."""
    paired = _paired(rows, axis, baseline)
    if axis != "batch_size":
        largest = paired.groupby(curves.KEYS)["batch_size"].transform("max")
        paired = paired[paired["batch_size"] == largest]
    speedup = paired["samples_per_s"] / paired["samples_per_s_base"]
    paired = _with_intervals(paired.assign(speedup=speedup))
    paired = paired.assign(possible=_possible(paired))
    best = paired.groupby(["machine", "model"])["speedup"].transform("max")
    rank = best.groupby(paired["machine"]).rank(method="dense", ascending=False)
    return paired[rank <= MOST_MODELS]


def _paired(rows: pd.DataFrame, axis: str, baseline: str | float) -> pd.DataFrame:
    """Pairs each run with the same run at `axis == baseline`, whose columns end in `_base`."""
    keys = []
    for key in KEYS:
        if key != axis:
            keys.append(key)
    runs = frames.alone(rows)
    lengths = runs["sequence_length"].fillna(0)
    runs = frames.one_each(runs.assign(sequence_length=lengths), KEYS)
    known = [*READ, *frames.INTERVAL]
    runs = runs.reindex(columns=dict.fromkeys([*runs, *known]))
    judged = []
    for name in frames.JUDGED:
        if name in runs:
            judged.append(name)
    is_base = runs[axis] == baseline
    partners = runs[is_base].drop_duplicates(keys)
    partners = partners[[*keys, *known, *judged]]
    paired = runs[~is_base].merge(
        partners,
        on=keys,
        suffixes=("", "_base"),
    )
    return frames.with_doubts_of_both(paired, judged, "_base")


def _possible(paired: pd.DataFrame) -> pd.Series:
    """Largest speedup that a format makes possible, by faster arithmetic or by fewer bytes."""
    faster = paired["ceiling_tflop_s"] / paired["ceiling_tflop_s_base"]
    sizes = {name: float(form.bytes) for name, form in FORMATS.items()}
    bytes_after = paired["effective_precision"].map(sizes).astype(float)
    bytes_before = paired["effective_precision_base"].map(sizes).astype(float)
    return np.maximum(faster, bytes_before / bytes_after)


def _with_intervals(paired: pd.DataFrame) -> pd.DataFrame:
    """Adds the interval of each pair's speedup, and whether both runs had one. A run without has
    the usual one of its machine."""
    before_low, before_high = frames.relative_ends(paired, "_base")
    after_low, after_high = frames.relative_ends(paired)
    ends = pd.DataFrame(
        {
            "speedup": paired["speedup"],
            "before_low": before_low,
            "before_high": before_high,
            "after_low": after_low,
            "after_high": after_high,
        }
    )
    intervals = []
    for pair in ends.itertuples():
        before = (1.0, pair.before_low, pair.before_high)
        after = (1.0, pair.after_low, pair.after_high)
        intervals.append(quotient_interval(pair.speedup, [before], [after]))
    columns = ["speedup_low", "speedup_high"]
    paired[columns] = pd.DataFrame(intervals, paired.index, columns, dtype=float)
    known = paired[["time_ci_low_s", "time_ci_low_s_base"]].notna()
    return paired.assign(has_interval=known.all(axis=1))


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
    best = frames.highest(rows, "speedup")
    worst = frames.lowest(rows, "speedup")
    key = "finding"
    if best["speedup"] == worst["speedup"]:
        key = "finding_one"
    extremes = text(
        key,
        best_run=_named(best, rows, axis, text),
        worst_run=_named(worst, rows, axis, text),
        best=_gain(best, text),
        worst=_gain(worst, text),
    )
    sentences = [
        extremes,
        *_at_other_lengths(best, rows, axis, text),
        *selection.unranked_words(_is_sound(rows), text),
    ]
    if axis == "precision":
        sentences += _beyond_possible(rows, text)
    return " ".join(sentences)


def _beyond_possible(rows: pd.DataFrame, text: Texts) -> list[str]:
    """Sentence on the speedup that is furthest beyond what its format makes possible; empty if
    there is none."""
    is_beyond = rows["speedup"] / rows["possible"] > MARGIN
    beyond = (rows["speedup_low"] / rows["possible"]).where(is_beyond)
    if not (beyond > 1).any():
        return []
    row = rows.loc[beyond.idxmax()]
    return [
        text(
            "beyond",
            run=_named(row, rows, "precision", text),
            row=row,
        )
    ]


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
    keys = ["machine", "model", "workload", "mode", "precision", "execution", axis]
    is_same = (rows[keys] == best[keys]).all(axis=1)
    same = rows[is_same].drop(best.name)
    others = []
    for _, row in same.sort_values("speedup").iterrows():
        setting = ", ".join(_sizes(row, text))
        others.append(
            text(
                "at_length",
                times=significant(row["speedup"]),
                setting=setting,
            )
        )
    if not others:
        return []
    return [
        text(
            "at_other_lengths",
            model=best["model"],
            others="; ".join(others),
        )
    ]


def draw(rows: pd.DataFrame, figure: Figure, text: Texts, axis: str) -> Legend:
    """Draws a panel for each machine and mode, with a line for each model, sorted by its best
    speedup. Phases of inference get lines of their own."""
    # The interval of a single process is assumed, and so not drawn.
    measured = rows[["speedup_low", "speedup_high"]].where(rows["has_interval"])
    rows = rows.assign(drawn_low=measured["speedup_low"], drawn_high=measured["speedup_high"])
    is_phase = _is_phase(rows)
    rows = _with_phases(rows, is_phase, text)
    titles = style.modes(rows, text)
    if is_phase.all():
        titles = dict.fromkeys(titles, "")
    panels = _panels(rows, figure, titles, text)
    colors = style.colors(sorted(rows[axis].unique()))
    if axis == "precision":
        colors = style.usual_colors(rows[axis])
    shapes = style.shapes(colors)
    look = style.hued(axis, colors, shapes) | {"x_interval": INTERVAL_ENDS}
    hues = list(reversed(colors))
    apart = 0.4 / max(1, len(colors) - 1)
    machines = style.machines(rows)
    left = min(1.0, rows["speedup"].min()) / 1.4
    right = max(1.0, rows["speedup"].max()) * 1.4
    for number, (axes, here) in enumerate(panels):
        machine = machines[number // len(titles)]
        order = _order(rows[rows["machine"] == machine])
        size: float = SMALL
        if len(machines) == 1:
            size = min(11, NAMES_HEIGHT / len(order))
        axes.axvline(1, color=style.MUTED, linewidth=1.2)
        heights = kinds.lanes(
            axes,
            here,
            "model",
            order,
            axis,
            hues,
            apart,
            fontsize=size,
        )
        here = here.assign(place=heights)
        kinds.points(axes, here, "speedup", "place", "speedup", "samples_per_s", **look)
        if len(rows) <= MOST_LABELLED:
            _write_factors(axes, here)
        ticks.doublings(axes, FACTORS, "×")
        axes.set_xlim(left, right)
    return style.dots(colors, text, axis, shapes)


def _is_phase(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose mode is written beside the model: phases of inference, or all rows if a
    panel of a mode would have too few marks."""
    is_phase = ~rows["mode"].isin(("training", "inference"))
    marks = rows[~is_phase].groupby(["machine", "mode"]).size().unstack(fill_value=0)
    if (marks < FEWEST).any(axis=None):
        return pd.Series(True, rows.index)
    return is_phase


def _with_phases(rows: pd.DataFrame, is_phase: pd.Series, text: Texts) -> pd.DataFrame:
    """Writes the mode of each phase beside its model, and puts phases into the panel of
    inference."""
    modes = rows["mode"].map(lambda mode: text.name("mode", mode))
    named = rows["model"] + ", " + modes
    model = rows["model"].mask(is_phase, named)
    mode = rows["mode"].mask(is_phase, "inference")
    return rows.assign(model=model, mode=mode)


def _panels(
    rows: pd.DataFrame, figure: Figure, titles: Mapping[str, str], text: Texts
) -> list[tuple[Axes, pd.DataFrame]]:
    """Panels of each machine and mode, each as high as its machine has models."""
    machines = style.machines(rows)
    counts = rows.groupby("machine")["model"].nunique()[machines]
    lines = None
    if len(machines) == 1:
        lines = min(MOST_MODELS, counts[machines[0]])
    panels = style.facets(
        figure,
        rows,
        "mode",
        titles,
        x=style.wrapped(text("speedup"), WIDTH // len(titles)),
        sharex=True,
        sharey="row",
        lines=lines,
        height_ratios=list(counts + 1),
    )
    if len(machines) > 1:
        style.resize(figure, TITLE * (1 + len(machines)) + LINE * counts.sum())
    return panels


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
    best = rows.groupby("model")["speedup"].max()
    return list(best.sort_values().index)
