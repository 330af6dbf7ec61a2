"""Time of a training step by technique: forward, backward, optimiser and other."""

import pandas as pd

from mfulab.core.parts import Row
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    against,
    apart,
    one_each,
    preferred,
    steps,
)
from mfulab.mfu.three_lines import PHASES_MS

TOPIC = "training"
ORDER = 0
CLAIM = claims.side_of("relative", 100.0)
# Synthetic loads are included: a single layer can be trained too.
REASONS = ("contradict", "doubtful", "unsure", "recorded", "elsewhere")
PLAIN = "training"  # workload that others are compared with, in fp32 if measured
COLORS = dict(
    zip(PHASES_MS, (style.PALETTE[0], style.PALETTE[5], style.PALETTE[1], "#b3bac4"), strict=True)
)
CASE = ["machine", "model", "batch_size"]
MOST = 2  # cases, each with a panel
MOST_BARS = 14
SUM = "Σ"  # the sum of a step's phases ÷ the step, where they differ
OFF = 5.0  # percentage points by which they may differ without a word
ALIKE = "≈"  # after a bar that is not known to differ from the plain step's
WIDEST = 260.0  # % at which bars are cut off


def rows(tables: Tables) -> DataFrame:
    """Selects eager training steps with phases. `relative` is the time per sample in percent of the
    same model's plain step."""
    timed = steps(
        tables, *PHASES_MS, "samples_per_s", "mfu_percent", mode="training", execution="eager"
    )
    # Without data loaders, which are in the figure `input`.
    timed = timed[~(timed["loader_workers"] > 0) & timed["loader_source"].isin(["", "random"])]
    plain = timed[timed["workload"] == PLAIN]
    if plain.empty:
        return plain
    usual = "fp32"
    if not (plain["precision"] == "fp32").any():
        usual = plain["precision"].mode()[0]
    keys = [*CASE, "sequence_length"]
    alike = [*keys, "workload", "precision"]
    timed["medians_of"] = timed.groupby(alike, dropna=False)["time_s"].transform("size")
    timed = one_each(timed, alike)
    timed["is_plain"] = (timed["workload"] == PLAIN) & (timed["precision"] == usual)
    timed = against(
        timed, timed[timed["is_plain"]], keys, "_plain", "samples_per_s", "memory_bytes"
    )
    relative = 100 * timed["samples_per_s_plain"] / timed["samples_per_s"]
    timed = timed.assign(
        relative=relative,
        apart=apart(timed, suffix="_plain", ratio=relative / 100),
        share=100 * timed["optimiser_ms"] / timed[list(PHASES_MS)].sum(axis=1),
        precision_differs=timed["precision"] != usual,
    )
    return _of_few_cases(timed)


def _of_few_cases(rows: DataFrame) -> DataFrame:
    """Keeps one machine's cases with the most techniques, and techniques that get a bar. Keeps all
    of its rows if no case has two techniques."""
    rows = selection.one_machine(rows)
    names = rows["workload"] + " " + rows["precision"]
    cases = list(map(tuple, rows[CASE].itertuples(index=False, name=None)))
    cases = pd.Series(cases, rows.index)
    counts = names.groupby(cases, sort=False).nunique().sort_values(ascending=False, kind="stable")
    enough = counts[counts >= max(2, counts.max() / 2)].index[:MOST]
    if enough.empty:
        return rows
    first = rows[cases == enough[0]].sort_values(["is_plain", "relative"], ascending=[False, True])
    shown = names[first.index].drop_duplicates()[:MOST_BARS]
    return rows[cases.isin(enough) & names.isin(shown)]


def technique(row: Row | Series, text: Texts) -> str:
    """Name of a technique: the workload, with the precision if it differs from the plain step's."""
    word = text.name("workload", row["workload"])
    parts = []
    if row["precision_differs"]:
        parts = [text.name("precision", row["precision"])]
    if not parts or row["workload"] != PLAIN:
        parts.insert(0, word)
    return ", ".join(parts)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the plain step with the heaviest optimiser, the fastest technique there, and
    what checkpointing costs and saves."""
    plain = rows[rows["is_plain"]]
    if plain.empty:  # all are doubtful, so there is nothing to compare with
        return ""
    worst = plain.loc[plain["share"].idxmax()]
    sentences = [text("finding", row=worst)]
    if _differs(worst):
        sentences.append(text("differ", row=worst))
    if worst["utilization_percent"] >= 0:
        sentences.append(text("busy", row=worst))
    others = rows[
        (rows[CASE] == worst[CASE]).all(axis=1) & ~rows["is_plain"] & rows["mfu_percent"].notna()
    ]
    if not others.empty:
        faster = others["apart"] & (others["relative"] < 100)
        best = others.loc[preferred(others, faster)["relative"].idxmin()]
        beside = ~apart(others, best, ratio=others["relative"] / best["relative"]).drop(best.name)
        values = {
            "technique": technique(best, text),
            "factor": 100 / best["relative"],
            "tied": 1 + int(beside.sum()),
        }
        key = "no_faster"
        if faster.any():
            key = "faster"
        sentences.append(text(key, row=best, **values))
        alike = int((~others["apart"]).sum())
        if alike:
            sentences.append(text("overlaps", count=alike, total=len(others)))
    most = int(rows["medians_of"].max())
    if most > 1:
        sentences.append(text("medians", count=most))
    again = rows[rows["checkpointing"].fillna(False).astype(bool)]
    more = again["hfu_percent"] / again["mfu_percent"]
    if more.notna().any():
        sentences.append(text("checkpointed", row=again.loc[more.idxmax()]))
    left = again["memory_bytes"] / again["memory_bytes_plain"].where(~again["precision_differs"])
    if left.notna().any():
        case = again.loc[left.idxmin()]
        key = "traded" if case["apart"] else "traded_alike"
        fast_s, slow_s = (1 / case[f"samples_per_s{suffix}"] for suffix in ("_plain", ""))
        sentences.append(text(key, row=case, fast=fast_s, slow=slow_s))
    return " ".join(sentences)


def _shown(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of cases and techniques; the plain step and then the fastest come first. If no
    case has two techniques, there is a bar for each case."""
    techniques = rows[["workload", "precision", "precision_differs"]].to_dict("records")
    cases = rows[["model", "batch_size"]].itertuples(index=False)
    rows = rows.assign(
        name=[technique(row, text) for row in techniques],
        case=[text("case", model=model, batch=int(batch)) for model, batch in cases],
    )
    rows = rows.sort_values(["is_plain", "relative"], ascending=[False, True])
    if rows.groupby("case")["name"].nunique().max() < 2:
        return rows.assign(name=rows["case"], case="")
    return rows


def _parts(here: DataFrame, longest: float) -> DataFrame:
    """Phases as parts of bars as long as the relative time, cut off at `longest`."""
    phases = here[[*PHASES_MS]]
    ends = phases.cumsum(axis=1).mul(here["relative"] / phases.sum(axis=1), axis=0)
    ends = ends.clip(upper=longest)
    return ends.sub(ends.shift(axis=1).fillna(0)).add_suffix(" %")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each case with a bar for each technique. If no case has two techniques,
    draws one panel with a bar for each case."""
    shown = _shown(rows, text)
    cases = list(shown["case"].value_counts(sort=True).index[:MOST])
    names = list(dict.fromkeys(shown.loc[shown["case"] == cases[0], "name"]))[:MOST_BARS]
    shared: style.Look = {"sharex": True, "sharey": True, "lines": len(names)}
    grid = style.panels(figure, [""], cases, x=text("relative"), **shared)
    parts = {f"{phase} %": color for phase, color in COLORS.items()}
    longest = min(WIDEST, max(100.0, shown["relative"].max()))
    for axes, case in zip(grid.flat, cases, strict=True):
        here = shown[(shown["case"] == case) & shown["name"].isin(names)]
        here = here.join(_parts(here, longest))
        look: style.Look = {"order": names, "width": 0.8, "labelsize": 9}
        kinds.stacks(axes, here, parts, "name", *PHASES_MS, "relative", "mfu_percent", **look)
        ticks = []
        for tick in (0, 100, 200):
            if tick <= longest:
                ticks.append(tick)
        axes.set(xlim=(0, 1.25 * longest), xticks=ticks)
        for _, row in here.iterrows():
            end = min(row["relative"], 1.02 * longest) + 0.01 * longest
            axes.text(end, names.index(row["name"]), _label(row, text), va="center", fontsize=8)
    entries = [*style.dots(COLORS, text, marker="s"), style.dot("none", text("behind"))]
    if any(_differs(row) for _, row in shown.iterrows()):
        entries.append(style.dot("none", f"{SUM} {text('sum')}"))
    if not (shown["apart"] | shown["is_plain"]).all():
        entries.append(style.dot("none", f"{ALIKE} {text('as_plain')}"))
    return entries


def _differs(row: Series) -> bool:
    """True if a bar shows shares of phases whose sum, timed in steps of their own, is not the
    step."""
    return bool(abs(row["phases_percent"] - 100) > OFF)


def _label(row: Series, text: Texts) -> str:
    """Label after a bar: its length if cut off, MFU, and HFU if more is executed. Then the phases' sum
    if it is not the step, and a sign if no difference can be measured."""
    parts = []
    if row["relative"] > WIDEST:
        parts.append(f"→ {text('share_of', share=row['relative'])}")
    if row["mfu_percent"] >= 0:
        shares = [row["mfu_percent"]]
        if row["checkpointing"] is True or row["teacher"] == "online":
            shares.append(row["hfu_percent"])
        *first, last = shares
        parts.append(" / ".join([*map(percent, first), text("share_of", share=last)]))
    words = "; ".join(parts)
    if _differs(row):
        words = f"{words} ({SUM} {text('share_of', share=row['phases_percent'])})".lstrip()
    if row["apart"] or row["is_plain"]:
        return words
    return f"{words} {ALIKE}".lstrip()
