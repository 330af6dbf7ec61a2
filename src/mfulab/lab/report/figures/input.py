"""Speed by source and workers of a DataLoader."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, labels, percent, style
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
LOADER = ["loader_source", "loader_workers", *VARIED]


def rows(tables: Tables) -> DataFrame:
    """Selects runs of one step fed by a DataLoader, paired with that step on a batch that stays on
    the device. `kept` is MFU in percent of the latter's."""
    timed = steps(tables, "samples_per_s", "time_s").fillna({"sequence_length": 0})
    here = one_each(timed[timed["input"] == "device"], [*ALIKE, "workload"])
    here = here[here["workload"].isin(["training", "inference"])]
    fed = timed[(timed["input"] == "host") & (timed["loader_source"] != "")]
    fed = one_each(fed[fed["input_wait_percent"].notna()], [*ALIKE, *LOADER])
    fed = against(fed, here, ALIKE, "_device", "samples_per_s", "mfu_percent")
    fed = selection.largest(selection.one_machine(fed), ALIKE)
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
    """Draws the speed over workers, with a line for each source, and the speed of the batch on the
    device."""
    counts = sorted(set(rows["loader_workers"]))
    rows = rows.assign(place=rows["loader_workers"].map(counts.index))
    rows = rows.sort_values("loader_workers", kind="stable")
    sources = style.colors(sorted(set(rows["loader_source"])))
    [(axes, _)] = style.by_machine(figure, rows, x=text("workers"), y=text("samples"))
    places = ("place", "samples_per_s", "samples_per_s", "input_wait_percent")
    look = style.hued("loader_source", sources)
    usual = rows[rows["usual"]]
    kinds.lines(axes, usual, *places, **look)
    kinds.points(axes, rows[~rows["usual"]], *places, marker=VARIED_MARK, **look)
    on_device = rows["samples_per_s_device"].iloc[0]
    axes.axhline(on_device, **style.LIMIT)
    axes.set_xticks(range(len(counts)), [f"{count:g}" for count in counts])
    axes.set(xlim=(-0.3, len(counts) - 0.7), ylim=(0, None))
    last = usual.drop_duplicates("loader_source", keep="last")
    names = [text.name("loader_source", source) for source in last["loader_source"]]
    labels.later(
        labels.at_line_ends,
        axes,
        [*last["place"], len(counts) - 1],
        [*last["samples_per_s"], on_device],
        [*names, text("on_device")],
        [*last["loader_source"].map(sources), style.MUTED],
    )
    if rows["usual"].all():
        return []
    return [style.dot(style.MUTED, text("varied"), VARIED_MARK)]
