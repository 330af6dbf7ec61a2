"""Section "Why": for each model and workload the verdict, its cost and remedy; then what readers ask of their runs."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.mfu.ladder import number
from mfulab.report import answers, frames
from mfulab.report.drawing import curves
from mfulab.report.figures import headroom, mfu_versus_utilization
from mfulab.tables import remedies
from mfulab.tables.verdict import COLUMNS as VERDICT

NAMED = 5.0  # points from which a part of the step is named below its bar
SLOWER = 1.1  # times as slow as measured: from there on the allocator's other state is worth a sentence
SHOWN = 6  # cases in view; the others unfold
LISTED = 30  # lines of the table of batch sizes
WORDS = (
    *("forward", "backward", "optimiser", "other"),
    *("head_model", "head_mode", "head_precision", "head_batch", "head_speed", "head_share"),
)
PHASES, HEADS = WORDS[:4], WORDS[4:]
TOLD = ("mode", "precision")  # columns of the table of batch sizes, beside the model
CAUSE, REASON = VERDICT[:2]


def section(tables: frames.Tables, figures: set[str], language: str) -> dict[str, Any]:
    """The section's cases and answers; `figures` are those that the page shows. Empty without a profiled step."""
    text = Texts(language, "why")
    rows = frames.own(frames.with_machine(tables, frames.with_traces(tables)))
    rows = frames.in_words(rows, text)
    measured = frames.ok(rows, "time_s")
    if measured.empty:
        return {}
    cases = [_case(row, figures, text) for row in chosen(measured).to_dict("records")]
    verdicts_here = pd.Series([case["verdict"] for case in cases]).value_counts()
    says = text("says", verdict=verdicts_here.index[0], count=int(verdicts_here.iloc[0]), total=len(cases))
    return {"says": says, "cases": cases[:SHOWN], "rest": cases[SHOWN:], "answers": _answers(rows, text)}


def first(tables: frames.Tables, figures: set[str], language: str) -> dict[str, Any]:
    """Case of the lowest run of the page's first figure, with its sentence `because`; empty where it draws nothing."""
    text = Texts(language, "mfu_versus_utilization")
    rows = mfu_versus_utilization.rows(tables)
    if rows.empty:
        return {}
    row = mfu_versus_utilization.lowest(frames.in_words(rows, text))
    return _case(row.to_dict(), figures, text.within("why")) | {"because": mfu_versus_utilization.because(row, text)}


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each machine, model and workload the run with most samples per second: what no setting measured here cured.

    The lowest MFU comes first.
    """
    keys = ["machine", "model", "workload", "mode"]
    ordered = rows.sort_values("samples_per_s", ascending=False, na_position="last")
    return ordered.drop_duplicates(keys).sort_values("mfu_percent", na_position="last")


def _case(row: Mapping[str, Any], figures: set[str], text: Texts) -> dict[str, Any]:
    cause, words = row[CAUSE], verdicts.columns(row, language=text.language)
    budget = remedies.budget(row)
    parts = text.within("trace")
    lost = remedies.cost(row, cause)
    remedy = remedies.REMEDIES.get(cause)
    experiment = f"snakemake --cores 1 report --config {remedy.config}" if remedy else ""
    mode = text.name("mode", row["mode"])
    return {
        "title": f"{row['model']} · {mode}",
        "where": ", ".join(_where(row, text)),
        "verdict": words["verdict"],
        "reason": words["verdict_reason"],
        "cost": text(
            "cost", ms=significant(lost.ms), step=significant(1e3 * row["time_s"]), points=percent(lost.points)
        )
        if lost
        else "",
        "named": " · ".join(
            f"{parts(part)} {percent(each.points)} %" for part, each in budget.items() if each.points >= NAMED
        ),
        "parts": [
            {
                "name": parts(part),
                "width": f"{max(0.0, each.points):.2f}",
                "color": headroom.COLORS[part],
                "says": f"{parts(part)}: {significant(each.ms)} ms, {percent(each.points)} %",
            }
            for part, each in budget.items()
        ],
        "allocator": " ".join(_allocator(row, text)),
        "advice": text.within("advice")(cause) if remedy else "",
        "experiment": experiment,
        "figure": remedy.figure if remedy and remedy.figure in figures else "",
    }


def _where(row: Mapping[str, Any], text: Texts) -> list[str]:
    """The setting of a run as far as it is known, its step time and its MFU."""
    known = [] if row["batch_size"] != row["batch_size"] else [text("batch", batch_size=int(row["batch_size"]))]
    known += [text.name("precision", row["precision"])] if row["precision"] else []
    known += curves.variant(row, text)
    share = row["mfu_percent"]
    known += [text("step", time=quantity(row["time_s"], "s"))]
    return [*known, text("mfu", share=percent(share)) if share == share else text("no_mfu"), row["machine"]]


def _allocator(row: Mapping[str, Any], text: Texts) -> list[str]:
    """The step's time in the allocator's default state, and with memory kept, where either makes a difference."""
    before, kept, faults = (
        number(row.get(name)) for name in ("default_state_time_s", "kept_memory_time_s", "default_state_page_faults")
    )
    said = []
    if before and faults and before >= SLOWER * row["time_s"]:
        said.append(text("default_state", time=quantity(before, "s"), faults=f"{faults:,.0f}"))
    if kept and row["time_s"] >= SLOWER * kept:
        said.append(text("kept_memory", time=quantity(kept, "s")))
    return said


def _answers(rows: pd.DataFrame, text: Texts) -> list[dict[str, Any]]:
    recommended = answers.batches(rows)
    cases = pd.DataFrame([each.case for each in recommended])
    lines = [_line(each, cases, text) for each in recommended[:LISTED]]
    swept = any(each.batch_size is not None for each in recommended)
    known = [each for each in recommended if any(batch is not None for batch in each.fits)]
    fit = {"count": sum(bool(each.fits[0]) for each in known), "total": len(known), "gigabytes": answers.CARDS_GB[0]}
    usable = percent(100 * answers.USABLE)
    return [
        {
            "question": text("batch_question"),
            "says": text("batch_says", share=percent(100 * answers.KNEE)) if swept else text("batch_single"),
            "head": [*map(text, HEADS), *(text("head_fits", gigabytes=size) for size in answers.CARDS_GB)],
            "lines": lines,
        },
        {
            "question": text("fits_question"),
            "says": text("fits_says", usable=usable, **fit) if known else text("fits_unknown"),
        },
    ]


def _line(each: answers.Batch, cases: pd.DataFrame, text: Texts) -> list[str]:
    size = "–" if each.batch_size is None else f"{each.batch_size}{' ↑' if each.rising else ''}"
    if each.too_large is not None:
        size += f" ({each.too_large}: {text.name('status', answers.OUT_OF_MEMORY)})"
    sign = "≥ " if each.at_least else ""
    fits = ["–" if batch is None else text("none_fits") if batch == 0 else f"{sign}{batch:,}" for batch in each.fits]
    speed = [quantity(each.samples_per_s, ""), f"{percent(each.share_percent)} %"]
    case = each.case
    known, length = curves.variant(case, text), case["sequence_length"]
    if length > 0 and cases.loc[cases["model"] == case["model"], "sequence_length"].nunique() > 1:
        known.append(text("tokens", length=int(length)))
    known += [case["machine"]] if cases["machine"].nunique() > 1 else []
    name = f"{case['model']} ({', '.join(known)})" if known else case["model"]
    named = [name, *(text.name(key, case[key]) for key in TOLD)]
    return [*named, size, *speed, *fits]
