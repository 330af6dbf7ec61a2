"""Section "Why": for each model and workload the verdict, its cost and remedy; then what readers ask of their runs."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.lab.planning.naming import MEASURE
from mfulab.lab.report import answers, frames
from mfulab.lab.report.drawing import curves
from mfulab.lab.report.figures import headroom, mfu_versus_utilization
from mfulab.lab.report.figures import input as input_figure
from mfulab.mfu import remedies
from mfulab.mfu.ladder import number
from mfulab.mfu.models import FOLDERS
from mfulab.mfu.verdict import COLUMNS as VERDICT

NAMED = 5.0  # points from which a part of the step is named below its bar
SLOWER = 1.1  # times as slow as measured: from there on the allocator's other state is worth a sentence
SHOWN = 6  # cases in view; the others unfold
LISTED = 30  # lines of the table of batch sizes
WORDS = (
    *("forward", "backward", "optimiser", "other", "bf16_yes", "bf16_no", "bf16_unclear", "bf16_once", "bf16_faults"),
    *("head_model", "head_mode", "head_precision", "head_batch", "head_speed", "head_share"),
)
PHASES, WORTH, HEADS = WORDS[:4], WORDS[4:9], WORDS[9:]
TOLD = ("mode", "precision")  # columns of the table of batch sizes, beside the model
CAUSE = VERDICT[0]


def section(tables: frames.Tables, figures: set[str], language: str) -> dict[str, Any]:
    """The section's cases and answers; `figures` are those that the page shows. Empty without a profiled step."""
    text = Texts(language, "why")
    rows = frames.own(frames.with_machine(tables, frames.with_traces(tables)))
    rows = frames.in_words(rows, text)
    measured = frames.ok(rows, "time_s")
    if measured.empty:
        return {}
    shown = chosen(measured)
    lowest = _lowest(tables)
    if lowest is not None and lowest.name in measured.index:  # the run that the page's first sentences are about
        shown = pd.concat([measured.loc[[lowest.name]], shown.drop(index=lowest.name, errors="ignore")])
    cases = [_case(row, figures, text) for row in shown.to_dict("records")]
    verdicts_here = pd.Series([case["verdict"] for case in cases]).value_counts()
    says = text("says", verdict=verdicts_here.index[0], count=int(verdicts_here.iloc[0]), total=len(cases))
    return {
        "says": says,
        "cases": cases[:SHOWN],
        "rest": cases[SHOWN:],
        "answers": _answers(rows, input_figure.rows(tables), text),
    }


def first(tables: frames.Tables, figures: set[str], language: str) -> dict[str, Any]:
    """Case of the lowest run of the page's first figure, with its sentence `because`; empty where it draws nothing."""
    text = Texts(language, "mfu_versus_utilization")
    lowest = _lowest(tables)
    if lowest is None:
        return {}
    row = frames.in_words(lowest.to_frame().T, text).iloc[0]
    return _case(row.to_dict(), figures, text.within("why")) | {"because": mfu_versus_utilization.because(row, text)}


def of_traces(tables: frames.Tables, text: Texts) -> str | None:
    """Sentence on the first trace that was read here: its step and verdict, or why it could not be read."""
    rows = tables["traces"]
    rows = rows[~rows["recorded"]]
    if rows.empty:
        return None
    told = rows[rows["status"] == "ok"]
    if told.empty:
        return str(rows["message"].iloc[0])
    row: dict[str, Any] = told.iloc[0].to_dict()
    words = verdicts.columns(row, language=text.language)
    said = {"verdict": words["verdict"], "because": words["verdict_reason"]}
    return text("of_trace", model=row["model"], time=quantity(row["time_s"], "s"), **said)


def lanes(tables: frames.Tables, language: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of the page's first figure by machine, for a screen that is too narrow for a drawing."""
    text = Texts(language, "mfu_versus_utilization")
    rows = mfu_versus_utilization.rows(tables)
    found: dict[str, list[dict[str, Any]]] = {}
    if rows.empty:
        return found
    for row in mfu_versus_utilization.shown(frames.in_words(rows, text), text).to_dict("records"):
        mfu, busy = row["mfu_percent"], row["utilization_percent"]
        ends = sorted(min(100.0, end) for end in (mfu, busy))
        said = {"mfu": mfu_versus_utilization.share(mfu, text), "busy": text("share_of", share=busy)}
        place = {"left": f"{ends[0]:.2f}", "width": f"{ends[1] - ends[0]:.2f}", "dot": f"{min(100.0, mfu):.2f}"}
        found.setdefault(row["machine"], []).append({"name": row["name"], "color": row["color"]} | said | place)
    return found


def _lowest(tables: frames.Tables) -> pd.Series | None:
    rows = mfu_versus_utilization.rows(tables)
    return None if rows.empty else mfu_versus_utilization.lowest(rows)


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest run of each machine, model and workload, by MFU; a step without arithmetic to count comes last."""
    keys = ["machine", "model", "workload", "mode"]
    ordered = rows.sort_values("samples_per_s", ascending=False, na_position="last")
    return ordered.drop_duplicates(keys).sort_values("mfu_percent", key=lambda mfu: mfu.where(mfu > 0))


def _case(row: Mapping[str, Any], figures: set[str], text: Texts) -> dict[str, Any]:
    cause, words = row[CAUSE], verdicts.columns(row, language=text.language)
    budget = remedies.budget(row)
    parts = text.within("trace")
    lost = remedies.cost(row, cause)
    step = significant(1e3 * row["time_s"])
    cost = {"ms": significant(lost.ms), "step": step, "points": percent(lost.points)} if lost else {}
    remedy = remedies.REMEDIES.get(cause)
    experiment = f"{MEASURE} --config {_of_run(remedy.config, row)}" if remedy else ""
    return {
        "title": f"{row['model']} · {text.name('mode', row['mode'])}",
        "where": ", ".join(_where(row, text)),
        "verdict": words["verdict"],
        "reason": words["verdict_reason"],
        "cost": text("cost", **cost) if cost else "",
        "named": " · ".join(
            f"{parts(part)} {percent(each.points)} %" for part, each in budget.items() if each.points >= NAMED
        ),
        "parts": [
            {
                "width": f"{max(0.0, each.points):.2f}",
                "color": headroom.COLORS[part],
                "says": f"{parts(part)}: {significant(each.ms)} ms, {percent(each.points)} %",
            }
            for part, each in budget.items()
        ],
        "phases": _phases(row, text),
        "allocator": " ".join(_allocator(row, text)),
        "advice": verdicts.misaligned(row, text.language) or (text.within("advice")(cause) if remedy else ""),
        "experiment": experiment,
        "figure": remedy.figure if remedy and remedy.figure in figures else "",
    }


def _of_run(config: str, row: Mapping[str, Any]) -> str:
    """A remedy's config with the run's own model, workload and batch size, where its model is one of config/model/."""
    keys = dict(part.partition("=")[::2] for part in config.split(" "))
    if "model" not in keys or not any((folder / f"{row['model']}.yaml").exists() for folder in FOLDERS):
        return config
    own = {"model": row["model"], "workload": row["workload"]}
    own |= {"batch_size": f"{row['batch_size']:.0f}"} if row["batch_size"] == row["batch_size"] else {}
    swept = {key: value for key, value in keys.items() if key not in own or "," in value}
    return " ".join(f"{key}={value}" for key, value in (own | swept).items())


def _where(row: Mapping[str, Any], text: Texts) -> list[str]:
    """The setting of a run as far as it is known, its step time and its MFU."""
    known = [] if row["batch_size"] != row["batch_size"] else [text("batch", batch_size=int(row["batch_size"]))]
    known += [text.name("precision", row["precision"])] if row["precision"] else []
    known += curves.variant(row, text)
    share = row["mfu_percent"]
    known += [text("step", time=quantity(row["time_s"], "s"))]
    return [*known, text("mfu", share=percent(share)) if share == share else text("no_mfu"), row["machine"]]


def _phases(row: Mapping[str, Any], text: Texts) -> str:
    """The step's split into forward, backward and optimiser, where it was measured."""
    times = {name: row.get(f"{name}_ms") for name in PHASES}
    known = {name: time for name, time in times.items() if time is not None and time == time}
    whole = sum(known.values())
    if len(known) < 2 or not whole:
        return ""
    parts = ", ".join(f"{text(name)} {percent(100 * time / whole)} %" for name, time in known.items())
    return text("phases", parts=parts)


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


def _answers(rows: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> list[dict[str, Any]]:
    recommended = answers.batches(rows)
    cases, fed = pd.DataFrame([each.case for each in recommended]), frames.ok(rows, "input_wait_percent")
    lines = [_line(each, cases, text) for each in recommended[:LISTED]]
    head = [*map(text, HEADS), *(text("head_fits", gigabytes=size) for size in answers.CARDS_GB)]
    code = "" if len(fed) else f"{MEASURE} --config {remedies.REMEDIES['input_bound'].config}"
    return [
        {"question": text("batch_question"), "says": _batch_says(recommended, text), "head": head, "lines": lines},
        {"question": text("fits_question"), "says": _fits_says(recommended, text)},
        {"question": text("loader_question"), "says": _loader_says(fed, beside, text), "code": code},
        {"question": text("bf16_question"), "says": _bf16_says(answers.bf16(rows), text)},
    ]


def _size(batch: int) -> str:
    """A predicted batch size with the digits that a prediction has."""
    return f"{batch:,}" if batch < 10_000 else quantity(batch)


def _line(each: answers.Batch, cases: pd.DataFrame, text: Texts) -> list[str]:
    size = "–" if each.batch_size is None else f"{each.batch_size}{' ↑' if each.rising else ''}"
    if each.too_large is not None:
        size += f" ({each.too_large}: {text.name('status', answers.OUT_OF_MEMORY)})"
    sign = "≥ " if each.at_least else ""
    fits = [
        "–" if batch is None else text("none_fits") if batch == 0 else f"{sign}{_size(batch)}" for batch in each.fits
    ]
    speed = [significant(each.samples_per_s), f"{percent(each.share_percent)} %"]
    case = each.case
    named = [_with(case["model"], _apart(case, cases, text)), *(text.name(key, case[key]) for key in TOLD)]
    return [*named, size, *speed, *fits]


def _apart(row: Mapping[str, Any], rows: pd.DataFrame, text: Texts) -> list[str]:
    """Workload and execution that are not plain, and the length and machine where `rows` have several."""
    known, length = curves.variant(row, text), row["sequence_length"]
    if length > 0 and rows.loc[rows["model"] == row["model"], "sequence_length"].nunique() > 1:
        known.append(text("tokens", length=int(length)))
    return [*known, row["machine"]] if rows["machine"].nunique() > 1 else known


def _with(name: str, known: list[str]) -> str:
    return f"{name} ({', '.join(known)})" if known else name


def _batch_says(recommended: list[answers.Batch], text: Texts) -> str:
    known = [each for each in recommended if each.batch_size is not None]
    if not known:
        return text("batch_single")
    rising = sum(each.rising for each in known)
    lost = sum(each.too_large is not None for each in known)
    says = [text("batch_says", share=percent(100 * answers.KNEE))]
    says += [text("batch_rising", count=rising, total=len(known))] if rising else []
    says += [text("batch_lost", count=lost, total=len(known))] if lost else []
    return " ".join(says)


def _fits_says(recommended: list[answers.Batch], text: Texts) -> str:
    """The card from which each case fits with a single sample, and the one that needs most."""
    known = [each for each in recommended if any(batch is not None for batch in each.fits)]
    if not known:
        return text("fits_unknown")
    small = sum(bool(each.fits[0]) for each in known)
    never = [each for each in known if not any(each.fits)]
    card = {"gigabytes": answers.CARDS_GB[0], "usable": percent(100 * answers.USABLE)}
    says = text("fits_says", count=small, total=len(known), **card)
    if never:
        case = never[0].case
        says += " " + text("fits_never", model=case["model"], mode=text.name("mode", case["mode"]), count=len(never))
    return says


def _loader_says(fed: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> str:
    """The longest wait, and the most that a loader costs: one with many workers takes time from the step unseen."""
    if fed.empty:
        return text("loader_unknown")
    share = fed["input_wait_percent"].max()
    model = fed.loc[fed["input_wait_percent"] == share, "model"].iloc[0]
    said = [
        text(
            "loader_yes" if share >= answers.WAITING else "loader_no", model=model, share=percent(share), count=len(fed)
        )
    ]
    beside = frames.own(beside)
    if len(beside) and beside["kept"].min() < 100 - answers.WAITING:
        said.append(text("loader_costs", row=beside.loc[beside["kept"].idxmin()]))
    return " ".join(said)


def _bf16_says(pairs: pd.DataFrame, text: Texts) -> str:
    if pairs.empty:
        return text("bf16_unknown")
    said = []
    for worth in WORTH:
        here = pairs[pairs["worth"] == worth].sort_values("speedup", ascending=False)
        runs = []
        for row in here.head(4).to_dict("records"):
            known = [] if row["precision"] == "bf16" else [text.name("precision", row["precision"])]
            run = _with(f"{row['model']} {text.name('mode', row['mode'])}", [*known, *_apart(row, pairs, text)])
            values = {"batch_size": int(row["batch_size"]), "speedup": significant(row["speedup"])}
            runs.append(text("bf16_run", run=run, **values))
        if runs:
            more = text("and_more", count=len(here) - 4) if len(here) > 4 else ""
            said.append(text(worth, runs=", ".join(runs) + more))
    if len(slower := 1 / pairs.loc[pairs["emulated"], "speedup"]):
        low, high = significant(slower.min(), 2), significant(slower.max(), 2)
        many = text("bf16_emulated", low=low, high=high)
        said.insert(0, many if low != high else text("bf16_emulated_one", low=low))
    return " ".join(said)
