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
    highest,
    lowest,
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
MOST_CASES = 2  # each with a panel
MOST_BARS = 14
SUM = "Σ"  # the sum of a step's phases ÷ the step, where they differ
OFF = 5.0  # percentage points by which they may differ without a word
ALIKE = "≈"  # after a bar that is not known to differ from the plain step's
WIDEST = 260.0  # % at which bars are cut off


def rows(tables: Tables) -> DataFrame:
    """Selects eager training steps with phases. `relative` is the time per sample in percent of the
    same model's plain step."""
    needed = (*PHASES_MS, "samples_per_s", "mfu_percent")
    timed = steps(tables, *needed, mode="training", execution="eager")
    # Without data loaders, which are in the figure `input`.
    is_fed = (timed["loader_workers"] > 0) | ~timed["loader_source"].isin(["", "random"])
    timed = timed[~is_fed]
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
    plain = timed[timed["is_plain"]]
    timed = against(timed, plain, keys, "_plain", "samples_per_s", "memory_bytes")
    relative = 100 * timed["samples_per_s_plain"] / timed["samples_per_s"]
    phases_ms = timed[list(PHASES_MS)].sum(axis=1)
    timed = timed.assign(
        relative=relative,
        apart=apart(timed, suffix="_plain", ratio=relative / 100),
        share=100 * timed["optimiser_ms"] / phases_ms,
        precision_differs=timed["precision"] != usual,
    )
    return _of_few_cases(timed)


def _of_few_cases(rows: DataFrame) -> DataFrame:
    """Keeps one machine's cases with the most techniques, and techniques that get a bar. Keeps all
    of its rows if no case has two techniques."""
    rows = selection.one_machine(rows)
    names = rows["workload"] + " " + rows["precision"]
    case = pd.Series(list(rows[CASE].itertuples(index=False, name=None)), rows.index)
    counts = names.groupby(case, sort=False).nunique()
    counts = counts.sort_values(ascending=False, kind="stable")
    enough = counts[counts >= max(2, counts.max() / 2)].index[:MOST_CASES]
    if enough.empty:
        return rows
    first = rows[case == enough[0]].sort_values(["is_plain", "relative"], ascending=[False, True])
    shown = names[first.index].drop_duplicates()[:MOST_BARS]
    return rows[case.isin(enough) & names.isin(shown)]


def technique(row: Row | Series, text: Texts) -> str:
    """Name of a technique: the workload, with the precision if it differs from the plain step's."""
    workload = text.name("workload", row["workload"])
    if not row["precision_differs"]:
        return workload
    precision = text.name("precision", row["precision"])
    if row["workload"] == PLAIN:
        return precision
    return f"{workload}, {precision}"


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the plain step with the heaviest optimiser, the fastest technique there, and
    what checkpointing costs and saves."""
    plain = rows[rows["is_plain"]]
    if plain.empty:  # all are doubtful, so there is nothing to compare with
        return ""
    worst = highest(plain, "share")
    sentences = [text("finding", row=worst)]
    if _differs(worst):
        sentences.append(text("differ", row=worst))
    if worst["utilization_percent"] >= 0:
        sentences.append(text("busy", row=worst))
    is_there = (rows[CASE] == worst[CASE]).all(axis=1)
    others = rows[is_there & ~rows["is_plain"] & rows["mfu_percent"].notna()]
    if len(others):
        sentences += _beside_plain(others, text)
    most = int(rows["medians_of"].max())
    if most > 1:
        sentences.append(text("medians", count=most))
    is_checkpointed = rows["checkpointing"].fillna(False).astype(bool)
    sentences += _checkpointed(rows[is_checkpointed], text)
    return " ".join(sentences)


def _beside_plain(others: DataFrame, text: Texts) -> list[str]:
    """Sentences on the fastest of techniques, and on how many are as fast as the plain step."""
    is_faster = others["apart"] & (others["relative"] < 100)
    best = lowest(preferred(others, is_faster), "relative")
    is_slower = apart(others, best, ratio=others["relative"] / best["relative"])
    beside = (~is_slower).drop(best.name)
    key = "no_faster"
    if is_faster.any():
        key = "faster"
    finding = text(
        key,
        row=best,
        technique=technique(best, text),
        factor=100 / best["relative"],
        tied=1 + int(beside.sum()),
    )
    alike = int((~others["apart"]).sum())
    if alike:
        return [finding, text("overlaps", count=alike, total=len(others))]
    return [finding]


def _checkpointed(again: DataFrame, text: Texts) -> list[str]:
    """Sentences on what checkpointing costs in FLOPs and time, and saves in memory; empty if
    unknown."""
    sentences = []
    more = again["hfu_percent"] / again["mfu_percent"]
    if more.notna().any():
        sentences.append(text("checkpointed", row=again.loc[more.idxmax()]))
    plain_bytes = again["memory_bytes_plain"].where(~again["precision_differs"])
    left = again["memory_bytes"] / plain_bytes
    if left.notna().any():
        case = again.loc[left.idxmin()]
        key = "traded_alike"
        if case["apart"]:
            key = "traded"
        fast_s = 1 / case["samples_per_s_plain"]
        slow_s = 1 / case["samples_per_s"]
        sentences.append(
            text(
                key,
                row=case,
                fast=fast_s,
                slow=slow_s,
            )
        )
    return sentences


def _shown(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of cases and techniques; the plain step and then the fastest come first. If no
    case has two techniques, there is a bar for each case."""
    names = []
    cases = []
    for row in rows.to_dict("records"):
        names.append(technique(row, text))
        cases.append(
            text(
                "case",
                model=row["model"],
                batch=int(row["batch_size"]),
            )
        )
    rows = rows.assign(name=names, case=cases)
    rows = rows.sort_values(["is_plain", "relative"], ascending=[False, True])
    if rows.groupby("case")["name"].nunique().max() < 2:
        return rows.assign(name=rows["case"], case="")
    return rows


def _parts(here: DataFrame, longest: float) -> DataFrame:
    """Phases as parts of bars as long as the relative time, cut off at `longest`."""
    phases = here[[*PHASES_MS]]
    percent_a_ms = here["relative"] / phases.sum(axis=1)
    ends = phases.cumsum(axis=1).mul(percent_a_ms, axis=0).clip(upper=longest)
    starts = ends.shift(axis=1).fillna(0)
    return ends.sub(starts).add_suffix(" %")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each case with a bar for each technique. If no case has two techniques,
    draws one panel with a bar for each case."""
    shown = _shown(rows, text)
    cases = list(shown["case"].value_counts(sort=True).index[:MOST_CASES])
    names = list(dict.fromkeys(shown.loc[shown["case"] == cases[0], "name"]))[:MOST_BARS]
    grid = style.panels(
        figure,
        [""],
        cases,
        x=text("relative"),
        sharex=True,
        sharey=True,
        lines=len(names),
    )
    parts = {f"{phase} %": color for phase, color in COLORS.items()}
    longest = min(WIDEST, max(100.0, shown["relative"].max()))
    shown_ticks = [tick for tick in (0, 100, 200) if tick <= longest]
    look: style.Look = {"order": names, "width": 0.8, "labelsize": 9}
    tooltip = (*PHASES_MS, "relative", "mfu_percent")
    for axes, case in zip(grid.flat, cases, strict=True):
        here = shown[(shown["case"] == case) & shown["name"].isin(names)]
        here = here.join(_parts(here, longest))
        kinds.stacks(axes, here, parts, "name", *tooltip, **look)
        axes.set(xlim=(0, 1.25 * longest), xticks=shown_ticks)
        for row in here.to_dict("records"):
            end = min(row["relative"], 1.02 * longest) + 0.01 * longest
            axes.text(
                end,
                names.index(row["name"]),
                _label(row, text),
                va="center",
                fontsize=8,
            )
    entries = [*style.dots(COLORS, text, marker="s"), style.dot("none", text("behind"))]
    if any(map(_differs, shown.to_dict("records"))):
        entries.append(style.dot("none", f"{SUM} {text('sum')}"))
    if not (shown["apart"] | shown["is_plain"]).all():
        entries.append(style.dot("none", f"{ALIKE} {text('as_plain')}"))
    return entries


def _differs(row: Row | Series) -> bool:
    """True if a bar shows shares of phases whose sum, timed in steps of their own, is not the
    step."""
    return bool(abs(row["phases_percent"] - 100) > OFF)


def _label(row: Row, text: Texts) -> str:
    """Label after a bar: its length if cut off, MFU, and HFU if more is executed. Then the phases' sum
    if it is not the step, and a sign if no difference can be measured."""
    parts = []
    if row["relative"] > WIDEST:
        parts.append(f"→ {text('share_of', share=row['relative'])}")
    if row["mfu_percent"] >= 0:
        parts.append(_mfu(row, text))
    words = ["; ".join(parts)]
    if _differs(row):
        words.append(f"({SUM} {text('share_of', share=row['phases_percent'])})")
    if not row["apart"] and not row["is_plain"]:
        words.append(ALIKE)
    return " ".join(filter(None, words))


def _mfu(row: Row, text: Texts) -> str:
    """MFU of a step, and its HFU if it executes more than the model needs."""
    if row["checkpointing"] is True or row["teacher"] == "online":
        hfu = text("share_of", share=row["hfu_percent"])
        return f"{percent(row['mfu_percent'])} / {hfu}"
    return text("share_of", share=row["mfu_percent"])
