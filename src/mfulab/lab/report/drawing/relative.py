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
FEWEST = 2  # pairs of a machine
MOST = 8  # pairs of a machine, each with a line and a number
# Ticks; those between doublings are for panels in which all speedups are small.
FACTORS = (*(2.0**power for power in range(-10, 11)), 1 / 1.5, 1 / 1.25, 1.25, 1.5)
TITLE, LINE = 0.8, 0.3  # inches for a panel's title and axis, and for each of its pairs
SMALL = 9  # font size
LONGEST = 24  # letters of a model in a name
COLORS = {True: style.PALETTE[0], False: style.MUTED}  # of pairs by whether they differ
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
    return paired.assign(possible=_possible(paired))


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


def few(paired: pd.DataFrame) -> pd.DataFrame:
    """Returns at most MOST pairs of each machine, evenly spread over their speedups. `undrawn` is
    the number of the others."""
    kept = [paired.head(0).assign(undrawn=0)]
    for _, here in paired.sort_values("speedup").groupby("machine", sort=False):
        drawn = frames.spread(here, MOST)
        kept.append(drawn.assign(undrawn=len(here) - len(drawn)))
    return pd.concat(kept[1:] or kept).sort_index()


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


def reading(rows: pd.DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and counts the pairs that it leaves out."""
    return selection.reading_of_few(rows, text, MOST)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts, axis: str) -> Legend:
    """Draws a panel for each machine, with a line for each pair, the fastest at the top: its
    interval, and its speedup at the right. Pairs that do not differ measurably are grey."""
    is_alike = (rows["speedup_low"] < 1) & (rows["speedup_high"] > 1)
    rows = rows.assign(name=_lines(rows, axis, text), differs=~is_alike)
    machines = style.machines(rows)
    counts = rows["machine"].value_counts()[machines]
    grid = style.panels(
        figure,
        machines,
        [""],
        x=text("speedup"),
        sharex=True,
        height_ratios=list(counts + 1),
    )
    style.resize(figure, TITLE * (1 + len(machines)) + LINE * max(3, counts.sum()))
    look = style.hued("differs", COLORS) | {"x_interval": ["speedup_low", "speedup_high"]}
    for axes, machine in zip(grid.flat, machines, strict=True):
        here = rows[rows["machine"] == machine].sort_values("speedup")
        here = here.assign(place=np.arange(len(here)))
        axes.axvline(1, color=style.MUTED, linewidth=1.2)
        axes.set_yticks(here["place"], here["name"], fontsize=SMALL)
        axes.set_ylim(-0.6, len(here) - 0.4)
        kinds.points(axes, here, "speedup", "place", "speedup", "samples_per_s", **look)
        _write_speedups(axes, here)
        ticks.doublings(axes, FACTORS, "×")
        axes.set_xlim(min(1, rows["speedup"].min()) / 1.4, max(1, rows["speedup"].max()) * 1.4)
    if is_alike.any():
        return [style.dot(style.MUTED, text("grey"))]
    return []


def _write_speedups(axes: Axes, here: pd.DataFrame) -> None:
    """Writes each speedup at the right of its line, or ≈ if none is measurable."""
    for row in here.itertuples():
        words = "≈"
        if row.differs:
            words = f"{significant(row.speedup)}×"
        axes.text(
            1.02,
            row.place,
            words,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL,
        )


def _lines(rows: pd.DataFrame, axis: str, text: Texts) -> list[str]:
    """Names of pairs: the model, and of mode and `axis` those in which pairs differ. Batch and
    tokens are added to names that several pairs of a machine have."""
    told = [key for key in ("mode", axis) if rows[key].nunique() > 1]
    names = []
    for _, row in rows.iterrows():
        words = [text.name(key, row[key]) for key in told]
        words += curves.variant(row, text)
        model = row["model"]
        if len(model) > LONGEST:
            model = f"{model[: LONGEST - 1]}…"
        names.append(", ".join([model, *dict.fromkeys(words)]))
    named = rows.assign(name=names)
    is_double = named.duplicated(["machine", "name"], keep=False)
    lines = []
    for (_, row), double in zip(named.iterrows(), is_double, strict=True):
        sizes = _sizes(row, text) if double else []
        lines.append(", ".join([row["name"], *sizes]))
    return lines
