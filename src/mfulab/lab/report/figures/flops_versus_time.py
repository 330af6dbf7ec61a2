"""Fewer FLOPs may not save time: FLOPs and time of models that are alike in all else."""

import pandas as pd

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, specs, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, steps

TOPIC = "flops"
ORDER = 2
ALIKE = ["machine", "workload", "mode", "batch_size", "precision", "execution"]
# Compression in the table `quality` by which each model saves FLOPs.
TRAINED = {
    "pooled_cnn": "pooled",
    "repeatedly_pooled_cnn": "repeatedly_pooled",
    "separable_cnn": "separable",
    "pruned_cnn": "structured",
}
COLORS = style.colors(("flops", "time"))  # of the two bars of a model
MOST_MODELS = 8


def rows(tables: Tables) -> DataFrame:
    """Selects eager runs of one machine that differ only in the model: those of the experiment on
    this, else the largest group. `flops_percent` and `time_percent` are relative to the model with
    most FLOPs. `points` is the change in accuracy of a trained model of this kind, ± `half`."""
    timed = steps(tables, "flops", "time_s", "batch_size", execution="eager")
    timed = timed[timed["flops"] > 0]
    timed = selection.pick(timed, "incomparable")  # without loads that only spin
    timed = _several(timed.drop_duplicates([*ALIKE, "model"]))
    if timed.empty:
        return timed
    timed = selection.pick(timed, "other_experiment")
    timed = _several(selection.one_machine(timed))
    groups = [group for _, group in timed.groupby(ALIKE, dropna=False, sort=False)]
    here = max(groups, key=len)
    here = here.sort_values("flops", ascending=False).head(MOST_MODELS)
    largest = here.iloc[0]
    lost = ok(tables["quality"], "accuracy_change_points").drop_duplicates("compression")
    lost = lost.set_index("compression")
    technique = here["model"].map(TRAINED)
    return here.assign(
        flops_percent=100 * here["flops"] / largest["flops"],
        time_percent=100 * here["time_s"] / largest["time_s"],
        points=technique.map(lost["accuracy_change_points"]),
        half=technique.map(lost["change_half_points"]),
        flops_per_sample=here["flops"] / here["batch_size"],
        time_per_sample=here["time_s"] / here["batch_size"],
        speed=here["flops"] / here["time_s"],
    )


def _several(rows: DataFrame) -> DataFrame:
    """Rows with another model to compare with."""
    if rows.empty:
        return rows
    models = rows.groupby(ALIKE, dropna=False)["model"].transform("nunique")
    return rows[models > 1]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the two models whose FLOPs mislead most about their times; empty if there are
    fewer than two."""
    if len(rows) < 2:
        return ""
    by_speed = rows.sort_values(["speed", "flops_per_sample"])
    ends = by_speed.iloc[[0, -1]].sort_values("flops_per_sample")
    small = ends.iloc[0]
    large = ends.iloc[1]
    flops = large["flops_per_sample"] / small["flops_per_sample"]
    time = large["time_per_sample"] / small["time_per_sample"]
    is_slower = claims.differs(small, large, "time_per_sample")
    is_faster = claims.differs(large, small, "time_per_sample")
    key = "finding_alike"
    if is_slower or is_faster:
        key = "finding"
    sentences = [
        text(
            key,
            large=large,
            small=small,
            flops=flops,
            time=time,
        )
    ]
    sentences.append(_accuracy(rows, text))
    return " ".join(filter(None, sentences))


def _accuracy(rows: DataFrame, text: Texts) -> str:
    """Sentence on the largest change in accuracy that is beyond its interval; empty if no model of
    these kinds was trained."""
    trained = rows.dropna(subset=["points"])
    if trained.empty:
        return ""
    change = trained["points"].abs()
    beyond = trained[change > trained["half"]]
    if beyond.empty:
        return text("accuracy_alike")
    return text("accuracy", row=beyond.loc[change[beyond.index].idxmax()])


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Returns two rows for each model, for FLOPs and time. The accuracy is added to its name."""
    names = []
    for _, row in rows.iterrows():
        name = row["model"]
        if row["half"] >= 0:
            name = text("named", row=row)
        names.append(name)
    parts = []
    for part in COLORS:
        share = rows[f"{part}_percent"]
        words = specs.shares(share, text)
        parts.append(
            rows.assign(
                named=names,
                part=part,
                share=share,
                words=words,
            )
        )
    return pd.concat(parts)


def _titled(here: DataFrame, text: Texts) -> str:
    """Mode, format and batch of a panel's rows."""
    first = here.iloc[0]
    mode = text.name("mode", first["mode"])
    precision = text.name("precision", first["precision"])
    return " · ".join([mode, precision, text("batch", row=first)])


draw = specs.Bars(
    x="share",
    y="named",
    told=("flops", "time_s", "mfu_percent"),
    words="words",
    x_label="share",
    hue="part",
    colors=specs.present(COLORS),
    height=2,
    room=1.12,
    dressed=_dressed,
    titled=_titled,
    look={"fontsize": 10, "labelsize": 10},
)
