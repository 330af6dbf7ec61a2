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
MOST = 12  # jobs of a machine


def rows(tables: Tables) -> DataFrame:
    """Selects jobs of several processes with the same step in one process. `efficiency` is their
    speed ÷ (processes × its speed), in percent."""
    timed = with_machine(tables, ok(tables["profile"], "samples_per_s", "time_s"))
    timed = timed[(timed["mode"] == "training") & (timed["execution"] == "eager")]
    timed = one_each(timed, [*ALIKE, *OWN])
    alone = timed[timed["processes"].fillna(1) == 1].drop_duplicates(ALIKE)
    jobs = timed[(timed["processes"] > 1) & timed["ranks"].ne("")]
    jobs = jobs.merge(alone[[*ALIKE, "samples_per_s"]], on=ALIKE, suffixes=("", "_alone"))
    return jobs.assign(
        efficiency=100 * jobs["samples_per_s"] / jobs["processes"] / jobs["samples_per_s_alone"]
    )


def job(row: Series, text: Texts) -> str:
    """Name of a job: wrapper, processes and batch, with its bucket or slowed rank."""
    name = text("job", job=row)
    if row["wrapper"] == "ddp":
        name += text("bucket", job=row)
    if row["slowed_rank"] >= 0:
        name += text("slowed", job=row)
    return name


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on best and worst scaling, exposed communication, FSDP2 relative to DDP, sent bytes
    relative to the formula, and the slow rank."""
    plain = preferred(rows, rows["slowed_rank"].isna())
    best = plain.loc[plain["efficiency"].idxmax()]
    worst = plain.loc[plain["efficiency"].idxmin()]
    # Times of equal work have the inverse ratio of efficiencies.
    within = ~apart(plain, best, ratio=best["efficiency"] / plain["efficiency"])
    alike = len(plain) > 1 and within[worst.name]
    tied = 1 + int(within.drop(best.name).sum())
    if alike:
        key = "alike"
    elif best["mfu_percent"] >= 0:
        key = "finding"
    else:
        key = "finding_without"
    values = {
        "best": best,
        "worst": worst,
        "best_job": job(best, text),
        "worst_job": job(worst, text),
        "tied": tied,
    }
    sentences = [text(key, **values)]
    if len(plain) > 1 and not alike:
        sentences.append(text("worst", **values))
    if worst["exposed_communication_ms"] >= 0:
        sentences.append(text("exposed", worst=worst, step=1e3 * worst["time_s"]))
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
    """Draws for each machine the efficiency of jobs, and their step divided into compute and
    exposed communication."""
    rows = (
        rows.sort_values("efficiency", ascending=False, kind="stable")
        .groupby("machine", sort=False)
        .head(MOST)
    )
    shares = rows[["efficiency", "mfu_percent"]].to_numpy()
    rows = rows.assign(
        job=[job(row, text) for _, row in rows.iterrows()],
        computes=1e3 * rows["time_s"] - rows["exposed_communication_ms"].fillna(0),
        not_hidden=rows["exposed_communication_ms"],
        words=[
            ", MFU ".join(text("share_of", share=share) for share in both if share == share)
            for both in shares
        ],
    )
    titles, units = (
        [*map(text, names)] for names in (("efficiency", "step"), ("percent", "milliseconds"))
    )
    panels = style.in_rows(figure, rows, titles, x=units)
    style.resize(
        figure, len(panels) * (1.2 + 0.42 * max(3, rows["machine"].value_counts().max())) + 0.8
    )
    for (left, right), here in panels:
        left.axvline(100, **style.LIMIT)
        tooltip = ("efficiency", "samples_per_s", "exposed_communication_ms")
        kinds.bars(
            left,
            here,
            tooltip[0],
            "job",
            *tooltip,
            words="words",
            fontsize=8,
            labelsize=8,
            color=style.MUTED,
            width=0.6,
        )
        left.set(xlim=(0, 1.7 * max(100, here["efficiency"].max())), xticks=[0, 50, 100])
        kinds.stacks(right, here, PARTS, "job", "time_s", "exposed_communication_ms", width=0.6)
        right.set_yticks([])
    return style.dots(PARTS, text, marker="s")
