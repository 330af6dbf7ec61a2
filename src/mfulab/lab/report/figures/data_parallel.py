"""Scaling over several processes, and their communication that is not hidden by compute."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    against,
    apart,
    ok,
    one_each,
    preferred,
    with_machine,
)

TOPIC = "training"
ORDER = 10
CLAIM = claims.side_of("efficiency", 100.0)
REASONS = selection.BESIDE_ONE
# Columns in which a job and its single process are equal. A ceiling's name has a CPU's threads.
ALIKE = ["machine", "model", "workload", "batch_size", "sequence_length", "precision", "ceiling"]
OWN = ["processes", "wrapper", "bucket_mb", "slowed_rank"]
PARTS = {"computes": style.PALETTE[0], "not_hidden": style.PALETTE[1]}
MOST = 12  # jobs of a series
SERIES = 3  # panels
WAITS = 1.1  # ratio of a rank's exposed time to the job's from which it is told


def rows(tables: Tables) -> DataFrame:
    """Selects jobs of several processes with the same step in one process. `efficiency` is their
    speed ÷ (processes × its speed), in percent. As each process has a batch of its own, this is
    weak scaling."""
    timed = with_machine(tables, ok(tables["profile"], "samples_per_s", "time_s"))
    timed = timed[(timed["mode"] == "training") & (timed["execution"] == "eager")]
    timed = one_each(timed, [*ALIKE, *OWN])
    alone = timed[timed["processes"].fillna(1) == 1].drop_duplicates(ALIKE)
    jobs = timed[(timed["processes"] > 1) & timed["ranks"].ne("")]
    jobs = jobs.merge(alone[[*ALIKE, "samples_per_s"]], on=ALIKE, suffixes=("", "_alone"))
    own = jobs.reindex(columns=["communication_ms"])["communication_ms"].astype(float)
    return jobs.assign(
        efficiency=100 * jobs["samples_per_s"] / jobs["processes"] / jobs["samples_per_s_alone"],
        # As in the row's budget; a rank that waits for others exposes more.
        not_hidden=own.fillna(jobs["exposed_communication_ms"]),
    )


def series(rows: DataFrame) -> list[DataFrame]:
    """Jobs by their baseline, the most jobs first. Only jobs with one batch on each process are
    compared: this is weak scaling, in which the work grows with the processes."""
    groups = [here for _, here in rows.groupby(ALIKE, dropna=False, sort=False)]
    return sorted(groups, key=len, reverse=True)


def job(row: Series, text: Texts) -> str:
    """Name of a job: model, batch on each process, and its `setup`."""
    return f"{text('series', job=row)}, {setup(row, text)}"


def setup(row: Series, text: Texts) -> str:
    """Name of a job within its series: processes and wrapper, with its bucket or slowed rank."""
    name = text("setup", job=row)
    if row["wrapper"] == "ddp":
        name += text("bucket", job=row)
    if row["slowed_rank"] >= 0:
        name += text("slowed", job=row)
    return name


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest series: best and worst scaling, exposed communication, and FSDP2
    relative to DDP. Then sent bytes relative to the formula, and the slow rank."""
    plain = series(preferred(rows, rows["slowed_rank"].isna()))[0]
    best = plain.loc[plain["efficiency"].idxmax()]
    worst = plain.loc[plain["efficiency"].idxmin()]
    # Times of equal work have the inverse ratio of efficiencies.
    within = ~apart(plain, best, ratio=best["efficiency"] / plain["efficiency"])
    is_alone = len(plain) == 1
    alike = not is_alone and within[worst.name]
    tied = 1 + int(within.drop(best.name).sum())
    if is_alone:
        key = "one"
    elif alike:
        key = "alike"
    elif best["mfu_percent"] >= 0:
        key = "finding"
    else:
        key = "finding_without"
    values = {
        "series": text("series", job=best),
        "best": best,
        "worst": worst,
        "best_job": setup(best, text),
        "worst_job": setup(worst, text),
        "tied": tied,
    }
    sentences = [text(key, **values)]
    if not is_alone and not alike:
        sentences.append(text("worst", **values))
    if worst["not_hidden"] >= 0:
        sentences.append(text("exposed", worst=worst, step=1e3 * worst["time_s"]))
    if worst["exposed_communication_ms"] > WAITS * worst["not_hidden"]:
        sentences.append(text("exposed_most", worst=worst))
    largest_bucket = plain[plain["wrapper"] == "ddp"].sort_values("bucket_mb", ascending=False)
    sharded = against(
        plain[plain["wrapper"] == "fsdp2"], largest_bucket, [*ALIKE, "processes"], "_ddp"
    )
    sharded = sharded[sharded["apart"]]
    if len(sharded):
        furthest = sharded.loc[sharded["factor"].sub(1).abs().idxmax()]
        key = "sharded" if furthest["factor"] > 1 else "sharded_faster"
        ratio = max(furthest["factor"], 1 / furthest["factor"])
        sentences.append(text(key, job=job(furthest, text), ratio=ratio))
    predicted = rows["predicted_sent_bytes"].where(rows["predicted_sent_bytes"] > 0)
    off = (100 * (rows["sent_bytes"] / predicted - 1)).abs()
    if off.notna().any():
        furthest = rows.loc[off.idxmax()]
        sentences.append(
            text("sent", job=job(furthest, text), sent=furthest["sent_bytes"], deviation=off.max())
        )
    slowed = rows[rows["slowed_rank"].notna() & rows["slowest_rank"].notna()].head(1)
    return " ".join([*sentences, *(text("named", job=row) for _, row in slowed.iterrows())])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws panels for each series: the efficiency of its jobs, and their step divided into compute
    and exposed communication."""
    shown = [_dressed(here, text) for here in _drawn_series(rows)]
    names = []
    for here in shown:
        parts = [text("series", job=here.iloc[0])]
        if rows["machine"].nunique() > 1:
            parts.insert(0, here["machine"].iloc[0])
        names.append(" · ".join(parts))
    titles, units = (
        [*map(text, keys)] for keys in (("efficiency", "step"), ("percent", "milliseconds"))
    )
    lines = [max(2, len(here)) for here in shown]
    panels = style.panels(figure, names, titles, x=units, height_ratios=lines)
    style.resize(figure, 1.4 * len(shown) + 0.42 * sum(lines) + 0.8)
    for (left, right), here in zip(panels, shown, strict=True):
        left.axvline(100, **style.LIMIT)
        tooltip = ("efficiency", "samples_per_s", "communication_ms")
        kinds.bars(
            left,
            here,
            tooltip[0],
            "job",
            *tooltip,
            words="words",
            beyond=100,
            fontsize=8,
            labelsize=8,
            color=style.MUTED,
            width=0.6,
        )
        left.set(xlim=(0, 1.7 * max(100, here["efficiency"].max())), xticks=[0, 50, 100])
        kinds.stacks(right, here, PARTS, "job", "time_s", "communication_ms", width=0.6)
        right.set_yticks([])
    return style.dots(PARTS, text, marker="s")


def _drawn_series(rows: DataFrame) -> list[DataFrame]:
    """Series of the first two machines, machine by machine."""
    drawn = []
    for machine in style.machines(rows, 2):
        drawn += series(rows[rows["machine"] == machine])
    return drawn[:SERIES]


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Jobs of a series as they are drawn, the most efficient first, with their labels."""
    rows = rows.sort_values("efficiency", ascending=False, kind="stable").head(MOST)
    labels = []
    for shares in rows[["efficiency", "mfu_percent"]].to_numpy():
        known = [text("share_of", share=share) for share in shares if share == share]
        labels.append(", MFU ".join(known))
    return rows.assign(
        job=[setup(row, text) for _, row in rows.iterrows()],
        computes=1e3 * rows["time_s"] - rows["not_hidden"].fillna(0),
        words=labels,
    )
