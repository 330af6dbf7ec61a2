"""Speed by source and workers of a DataLoader, and MFU over the time that the loop does not wait
for it."""

from collections.abc import Mapping

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    against,
    apart,
    highest,
    one_each,
    preferred,
    steps,
)

TOPIC = "training"
ORDER = 8
CLAIM = claims.side_of("kept", 100.0)
ALIKE = ["machine", "model", "mode", "batch_size", "sequence_length", "precision", "execution"]
VARIED = ["loader_prefetch", "loader_epoch", "loader_persistent", "loader_pinned"]
VARIED_MARK = "D"
CLOSE = 3.0  # points: waiting explains what a loader costs
HIGH = 22  # letters beside an axis
LOADER = ["loader_source", "loader_workers", *VARIED]


def rows(tables: Tables) -> DataFrame:
    """Selects runs fed by a DataLoader, paired with the same step on a batch that stays on the
    device. `kept` is MFU in percent of that step's."""
    timed = steps(tables, "samples_per_s", "time_s").fillna({"sequence_length": 0})
    here = one_each(timed[timed["input"] == "device"], [*ALIKE, "workload"])
    here = here[here["workload"].isin(["training", "inference"])]
    fed = timed[(timed["input"] == "host") & (timed["loader_source"] != "")]
    fed = one_each(fed[fed["input_wait_percent"].notna()], [*ALIKE, *LOADER])
    fed = against(fed, here, ALIKE, "_device", "samples_per_s", "mfu_percent")
    varied = fed[["loader_prefetch", "loader_epoch", "loader_pinned"]]
    return fed.assign(
        kept=100 * fed["samples_per_s"] / fed["samples_per_s_device"],
        not_waiting=100 - fed["input_wait_percent"],
        usual=varied.isna().all(axis=1),
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the longest wait, the number of workers that helps, and the number that is too
    many."""
    usual = preferred(rows, rows["usual"])
    itself = usual[usual["loader_workers"] == usual["loader_workers"].min()]
    worst = highest(itself, "input_wait_percent")
    key = "finding_alike"
    if apart(worst, suffix="_device"):
        key = "finding"
    sentences = [text(key, worst=worst), *_of_workers(usual, worst, text)]
    below = (rows["not_waiting"] - rows["kept"]).median()
    key = "tracks_close"
    if below > CLOSE:
        key = "tracks"
    sentences.append(
        text(
            key,
            deviation=percent(abs(below)),
            count=len(rows),
        )
    )
    return " ".join(sentences)


def _of_workers(usual: DataFrame, worst: Series, text: Texts) -> list[str]:
    """Sentences on the runs that differ from the worst in the number of workers: the best, and the
    one with most; empty if there are none."""
    keys = [*ALIKE, "loader_source"]
    alike = usual[(usual[keys] == worst[keys]).all(axis=1)]
    if len(alike) < 2:
        return []
    better = alike[(alike["kept"] > worst["kept"]) & apart(alike, worst)]
    if better.empty:
        others = alike[alike["loader_workers"] != worst["loader_workers"]]
        is_worse = (others["kept"] < worst["kept"]) & apart(others, worst)
        if len(others) and is_worse.all():
            return [text("only_worse")]
        return [text("no_better")]
    best = highest(better, "kept")
    most = highest(alike, "loader_workers")
    sentences = [text("best", row=best)]
    if most["kept"] < best["kept"]:
        key = "beyond_alike"
        if apart(most, best):
            key = "beyond"
        sentences.append(text(key, row=most))
    return sentences


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws for each machine the speed over workers, with a line for each source, and MFU over the
    time not spent waiting."""
    sources = style.colors(sorted(set(rows["loader_source"])))
    counts = sorted(set(rows["loader_workers"]))
    rows = rows.assign(place=rows["loader_workers"].map(counts.index))
    rows = rows.sort_values("loader_workers", kind="stable")
    titles = [text("speed"), text("explained")]
    across = [text("workers"), text("not_waiting")]
    for (left, right), here in style.in_rows(figure, rows, titles, x=across):
        _draw_speeds(left, here, sources)
        left.set_xticks(range(len(counts)), [f"{count:g}" for count in counts])
        left.set(
            xlim=(-0.3, len(counts) - 0.7),
            ylim=(0, None),
            ylabel=text("samples"),
        )
        _draw_kept(right, here, sources)
        right.set_ylabel(style.wrapped(text("kept"), HIGH))
    entries = style.dots(sources, text, "loader_source")
    if not rows["usual"].all():
        entries.append(style.dot(style.MUTED, text("varied"), VARIED_MARK))
    return entries


def _draw_speeds(axes: Axes, here: DataFrame, sources: Mapping[str, str]) -> None:
    """Draws the speed over workers in one case, as the speeds of several would need different
    axes."""
    alike = selection.largest(here, ALIKE)
    usual = alike[alike["usual"]]
    varied = alike[~alike["usual"]]
    places = ("place", "samples_per_s", "samples_per_s", "input_wait_percent")
    look = style.hued("loader_source", sources)
    kinds.lines(axes, usual, *places, **look)
    kinds.points(axes, varied, *places, marker=VARIED_MARK, **look)
    axes.axhline(alike["samples_per_s_device"].iloc[0], **style.LIMIT)


def _draw_kept(axes: Axes, here: DataFrame, sources: Mapping[str, str]) -> None:
    """Draws MFU over the time not spent waiting, with a line where both are equal."""
    look = style.hued("loader_source", sources)
    look |= {"style": "usual", "markers": {True: "o", False: VARIED_MARK}}
    places = ("not_waiting", "kept", "not_waiting", "kept", "mfu_percent")
    kinds.points(axes, here, *places, **look)
    axes.axline((0, 0), (100, 100), **style.LIMIT)
    axes.set(xlim=(0, 105), ylim=(0, max(105, 1.05 * here["kept"].max())))
