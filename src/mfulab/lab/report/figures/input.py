"""Speed by source and workers of a DataLoader, and MFU over the time that the loop does not wait
for it."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style
from mfulab.lab.report.frames import (
    DataFrame,
    Tables,
    against,
    apart,
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
    fed = timed[
        (timed["input"] == "host")
        & timed["input_wait_percent"].notna()
        & (timed["loader_source"] != "")
    ]
    fed = against(
        one_each(fed, [*ALIKE, *LOADER]), here, ALIKE, "_device", "samples_per_s", "mfu_percent"
    )
    return fed.assign(
        kept=100 * fed["samples_per_s"] / fed["samples_per_s_device"],
        not_waiting=100 - fed["input_wait_percent"],
        usual=fed[["loader_prefetch", "loader_epoch", "loader_pinned"]].isna().all(axis=1),
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the longest wait, the number of workers that helps, and the number that is too
    many."""
    usual = preferred(rows, rows["usual"])
    itself = usual[usual["loader_workers"] == usual["loader_workers"].min()]
    worst = itself.loc[itself["input_wait_percent"].idxmax()]
    key = "finding_alike"
    if apart(worst, suffix="_device"):
        key = "finding"
    sentences = [text(key, worst=worst)]
    keys = [*ALIKE, "loader_source"]
    alike = usual[(usual[keys] == worst[keys]).all(axis=1)]
    better = alike[(alike["kept"] > worst["kept"]) & apart(alike, worst)]
    others = alike[alike["loader_workers"] != worst["loader_workers"]]
    is_worse = (others["kept"] < worst["kept"]) & apart(others, worst)
    if len(alike) > 1 and better.empty:
        only_worse = len(others) > 0 and is_worse.all()
        sentences.append(text("only_worse" if only_worse else "no_better"))
    elif len(alike) > 1:
        best = better.loc[better["kept"].idxmax()]
        most = alike.loc[alike["loader_workers"].idxmax()]
        key = "beyond" if apart(most, best) else "beyond_alike"
        sentences.append(text("best", row=best))
        if most["kept"] < best["kept"]:
            sentences.append(text(key, row=most))
    below = (rows["not_waiting"] - rows["kept"]).median()
    key = "tracks" if below > CLOSE else "tracks_close"
    return " ".join([*sentences, text(key, deviation=percent(abs(below)), count=len(rows))])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws for each machine the speed over workers, with a line for each source, and MFU over the
    time not spent waiting."""
    sources = style.colors(sorted(set(rows["loader_source"])))
    kept = style.wrapped(text("kept"), HIGH)
    counts = sorted(set(rows["loader_workers"]))
    rows = rows.assign(place=rows["loader_workers"].map(counts.index)).sort_values(
        "loader_workers", kind="stable"
    )
    look: style.Look = {"hue": "loader_source", "palette": sources}
    marked: style.Look = look | {"style": "usual", "markers": {True: "o", False: VARIED_MARK}}
    tooltip = ("samples_per_s", "input_wait_percent")
    titles, across = (
        [*map(text, names)] for names in (("speed", "explained"), ("workers", "not_waiting"))
    )
    for (left, right), here in style.in_rows(figure, rows, titles, x=across):
        # Only one case, as the speeds of several would need different axes.
        alike = selection.largest(here, ALIKE)
        kinds.lines(left, alike[alike["usual"]], "place", "samples_per_s", *tooltip, **look)
        kinds.points(
            left,
            alike[~alike["usual"]],
            "place",
            "samples_per_s",
            *tooltip,
            marker=VARIED_MARK,
            **look,
        )
        left.axhline(alike["samples_per_s_device"].iloc[0], **style.LIMIT)
        left.set_xticks(range(len(counts)), [f"{count:g}" for count in counts])
        left.set(xlim=(-0.3, len(counts) - 0.7), ylim=(0, None), ylabel=text("samples"))
        kinds.points(
            right, here, "not_waiting", "kept", "not_waiting", "kept", "mfu_percent", **marked
        )
        right.axline((0, 0), (100, 100), **style.LIMIT)
        right.set(xlim=(0, 105), ylim=(0, max(105, 1.05 * here["kept"].max())), ylabel=kept)
    varied = []
    if not rows["usual"].all():
        varied = [style.dot(style.MUTED, text("varied"), VARIED_MARK)]
    return style.dots(sources, text, "loader_source") + varied
