"""Section "Why": for each model and workload the verdict, its cost and remedy; then what readers ask of their runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.lab.planning.naming import MEASURE
from mfulab.lab.report import frames, remedies, trust
from mfulab.lab.report.drawing import curves, relative
from mfulab.lab.report.figures import headroom, mfu_versus_utilization
from mfulab.lab.report.figures import input as input_figure
from mfulab.mfu.ladder import number
from mfulab.mfu.models import names
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
CAUSE = VERDICT[0]
# What to try, in section `why`, for a step that was read from a trace: there it is no advice to record one.
OF_TRACES = {"no_mfu": "give_peak_or_model", "busy_not_useful": "see_operators", "not_explained": "see_operators"}
OUT_OF_MEMORY = "out_of_memory"
KNEE = 0.9  # of the most samples per second measured: a larger batch gains less than it costs in memory
CARDS_GB = (16, 24, 40, 80)  # of common cards: T4 and V100, 4090 and L4, A100, H100
USABLE = 0.9  # of a card's memory: context, libraries' workspaces and fragments take the rest
WAITING = 5.0  # % of the time from which a loader is worth a thought
GAIN = 1.05  # speed-up from which another number format is worth its rounding


class Batch(NamedTuple):
    """Recommended batch size of one case, and the largest that fits each card."""

    case: Mapping[str, Any]  # by curves.KEYS
    batch_size: int | None  # None where a single batch size was measured, from which nothing can be recommended
    samples_per_s: float
    share_percent: float
    rising: bool
    too_large: int | None  # the smallest that was out of memory, beyond all that were measured
    fits: tuple[int | None, ...]  # None: not predicted
    at_least: bool  # `fits` are batch sizes that were measured: no line predicts larger ones


def batches(rows: pd.DataFrame) -> Iterator[Batch]:
    """Yields for each case of profile rows the smallest batch size with KNEE of the most samples per second."""
    rows = rows[["status", *curves.KEYS, "batch_size", "samples_per_s", "predicted_memory_bytes"]]
    failed = rows[rows["status"] == OUT_OF_MEMORY]
    lost = failed["batch_size"].groupby([failed[name].map(str) for name in curves.KEYS]).agg(list).to_dict()
    timed = frames.ok(rows, "samples_per_s", "batch_size")
    timed = frames.one_each(timed, [*curves.KEYS, "batch_size"]) if len(timed) else timed
    cases, number = timed[curves.KEYS].to_dict("records"), timed.groupby(curves.KEYS, dropna=False, sort=False).ngroup()
    sizes, speeds, memory = timed[["batch_size", "samples_per_s", "predicted_memory_bytes"]].to_numpy(dtype=float).T
    order = np.lexsort((sizes, number))
    for rising in np.split(order, np.flatnonzero(np.diff(number.iloc[order])) + 1) if len(order) else ():
        best, last = speeds[rising].max(), rising[-1]
        knee = rising[speeds[rising] >= KNEE * best][0]
        beyond = [size for size in lost.get(tuple(map(str, cases[last].values())), ()) if size > sizes[last]]
        predicted = [(sizes[place], memory[place]) for place in rising if memory[place] == memory[place]]
        yield Batch(
            case=cases[last],
            batch_size=int(sizes[knee]) if len(rising) > 1 else None,
            samples_per_s=speeds[knee],
            share_percent=100 * speeds[knee] / best,
            rising=len(rising) > 1 and sizes[knee] == sizes[last] and not beyond,
            too_large=int(min(beyond)) if beyond else None,
            fits=tuple(largest_that_fits(predicted, gigabytes) for gigabytes in CARDS_GB),
            at_least=not bytes_a_sample(predicted),
        )


def largest_that_fits(predicted: Sequence[tuple[float, float]], gigabytes: float) -> int | None:
    """Largest batch size within USABLE of a card's memory, by the line through `predicted`'s ends, batch sizes with
    bytes; 0 if none is, None if unknown."""
    if not predicted:
        return None
    room, (batch_size, memory), slope = USABLE * gigabytes * 1e9, predicted[-1], bytes_a_sample(predicted)
    if not slope:
        return int(batch_size) if memory <= room else None
    return max(0, int(batch_size + (room - memory) // slope))


def bytes_a_sample(predicted: Sequence[tuple[float, float]]) -> float | None:
    """Bytes that memory grows by with a sample; None for one batch size alone, or where memory does not rise."""
    if len(dict(predicted)) < 2:
        return None
    (smallest, least), (largest, most) = predicted[0], predicted[-1]
    return (most - least) / (largest - smallest) if most > least else None


def bf16(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs in bf16 beside the same run in fp32, with `speedup`, and with `worth`, the key of what is said of it."""
    pairs = relative.against(frames.ok(rows, "samples_per_s"), "precision", "fp32")
    pairs = pairs[pairs["precision"].isin(["bf16", "amp_bf16"])]
    once = pairs["speedup_low"].isna()  # of a single process, which has no interval
    worth = pd.Series("bf16_unclear", index=pairs.index).mask(once, "bf16_once")
    worth = worth.mask(pairs["speedup_low"] >= GAIN, "bf16_yes").mask(pairs["speedup_high"] < GAIN, "bf16_no")
    worth = worth.where(frames.comparable(pairs) & frames.comparable(pairs, "_base"), "bf16_faults")
    return pairs.assign(worth=worth, emulated=frames.emulated(pairs))


def section(tables: frames.Tables, lowest: pd.Series | None, figures: set[str], language: str) -> dict[str, Any]:
    """The section's cases, `lowest` first, and answers; `figures` are on the page. Empty without a profiled step."""
    text = Texts(language, "why")
    rows = frames.in_words(frames.own(frames.with_machine(tables, frames.with_traces(tables))), text)
    measured = frames.ok(rows, "time_s")
    if measured.empty:
        return {}
    shown = chosen(measured)
    if lowest is not None and lowest.name in measured.index:  # the run that the page's first sentences are about
        shown = pd.concat([measured.loc[[lowest.name]], shown.drop(index=lowest.name, errors="ignore")])
    cases = [_case(row, figures, text) for row in shown.to_dict("records")]
    causes = shown[CAUSE].value_counts()
    says = text("says", verdict=text.name("cause", causes.index[0]), count=int(causes.iloc[0]), total=len(cases))
    all_read = rows["hardware"].str.endswith(frames.READ).all()  # traces leave these questions open
    answers = [] if all_read else _answers(rows, input_figure.rows(tables), text)
    return {"says": says, "cases": cases[:SHOWN], "rest": cases[SHOWN:], "answers": answers}


def first(lowest: pd.Series, rows: pd.DataFrame, figures: set[str], language: str) -> dict[str, Any]:
    """Case of the lowest run of the page's first figure, with its sentence `because`."""
    text = Texts(language, "mfu_versus_utilization")
    row = frames.in_words(lowest.to_frame().T, text).iloc[0]
    because = mfu_versus_utilization.because(row, rows, text)
    return _case(row.to_dict(), figures, text.within("why")) | {"because": because}


def of_traces(tables: frames.Tables, text: Texts) -> str | None:
    """Sentence on the first trace that was read here: its step and verdict, or why it could not be read."""
    rows = tables["traces"][~tables["traces"]["recorded"]]
    if rows.empty:
        return None
    read = rows[rows["status"] == "ok"]
    if read.empty:
        return str(rows["message"].iloc[0])
    row: dict[str, Any] = read.iloc[0].to_dict()
    words = verdicts.columns(row, language=text.language)
    values = {"verdict": words["verdict"], "because": words["verdict_reason"]}
    return text("of_trace", model=row["model"], time=quantity(row["time_s"], "s"), **values)


def lanes(rows: pd.DataFrame, language: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of the page's first figure by machine, for a screen that is too narrow for a drawing."""
    text = Texts(language, "mfu_versus_utilization")
    by_machine: dict[str, list[dict[str, Any]]] = {}
    rows = rows.assign(doubtful=trust.doubtful)
    for row in mfu_versus_utilization.shown(frames.in_words(rows, text), text).to_dict("records"):
        mfu, busy = row["mfu_percent"], row["utilization_percent"]
        ends = sorted(min(100.0, end) for end in (mfu, busy))
        labels = {"mfu": mfu_versus_utilization.share(mfu, text), "busy": text("share_of", share=busy)}
        place = {"left": f"{ends[0]:.2f}", "width": f"{ends[1] - ends[0]:.2f}", "dot": f"{min(100.0, mfu):.2f}"}
        looks = {key: row[key] for key in ("name", "color", "doubtful")}
        by_machine.setdefault(row["machine"], []).append(looks | labels | place)
    return by_machine


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest run of each machine, model and workload, by MFU; a step without arithmetic to count comes last."""
    keys = ["machine", "model", "workload", "mode"]
    ordered = rows.sort_values("samples_per_s", ascending=False, na_position="last")
    return ordered.drop_duplicates(keys).sort_values("mfu_percent", key=lambda mfu: mfu.where(mfu > 0))


def _case(row: Mapping[str, Any], figures: set[str], text: Texts) -> dict[str, Any]:
    cause, words = row[CAUSE], verdicts.columns(row, language=text.language)
    budget, parts, lost = remedies.budget(row), text.within("trace"), remedies.cost(row, cause)
    step = significant(1e3 * row["time_s"])
    values = {"ms": significant(lost.ms), "step": step, "points": percent(lost.points)} if lost else {}
    remedy = remedies.REMEDIES.get(cause)
    advice = text.within("advice")(cause) if remedy else ""
    if row["hardware"].endswith(frames.READ):  # of another program: no experiment shows what helps it
        advice, remedy = text(OF_TRACES[cause]) if cause in OF_TRACES else advice, None
    shares = {part: text("share_of", share=cost.points) for part, cost in budget.items()}
    named = [f"{parts(part)} {shares[part]}" for part, cost in budget.items() if cost.points >= NAMED]
    drawn = []
    for part, cost in budget.items():
        says = f"{parts(part)}: {significant(cost.ms)} ms, {shares[part]}"
        drawn.append({"width": f"{max(0.0, cost.points):.2f}", "color": headroom.COLORS[part], "says": says})
    return {
        "title": f"{row['model']} · {text.name('mode', row['mode'])}",
        "where": ", ".join(_where(row, text)),
        "verdict": words["verdict"],
        "reason": words["verdict_reason"],
        "cost": text("cost", **values) if values else "",
        "named": " · ".join(named),
        "parts": drawn,
        "phases": _phases(row, text),
        "allocator": " ".join(_allocator(row, text)),
        "advice": verdicts.misaligned(row, text.language) or advice,
        "experiment": f"{MEASURE} --config {_of_run(remedy.config, row)}" if remedy else "",
        "figure": remedy.figure if remedy and remedy.figure in figures else "",
    }


def _of_run(config: str, row: Mapping[str, Any]) -> str:
    """A remedy's config with the run's own model, workload and batch size, where its model is one of config/model/."""
    keys = dict(part.partition("=")[::2] for part in config.split(" "))
    if "model" not in keys or row["model"] not in names():
        return config
    own = {"model": row["model"], "workload": row["workload"]}
    own |= {"batch_size": f"{row['batch_size']:.0f}"} if row["batch_size"] == row["batch_size"] else {}
    swept = {key: value for key, value in keys.items() if key not in own or "," in value}
    return " ".join(f"{key}={value}" for key, value in (own | swept).items())


def _where(row: Mapping[str, Any], text: Texts) -> list[str]:
    batch, share = row["batch_size"], row["mfu_percent"]
    setting = [] if batch != batch else [text("batch", batch_size=int(batch))]
    setting += [text.name("precision", row["precision"])] if row["precision"] else []
    setting += [*curves.variant(row, text), text("step", time=quantity(row["time_s"], "s"))]
    return [*setting, text("mfu", share=percent(share)) if share == share else text("no_mfu"), row["machine"]]


def _phases(row: Mapping[str, Any], text: Texts) -> str:
    times = {name: time for name in PHASES if (time := row.get(f"{name}_ms")) is not None and time == time}
    whole = sum(times.values())
    if len(times) < 2 or not whole:
        return ""
    parts = ", ".join(f"{text(name)} {text('share_of', share=100 * time / whole)}" for name, time in times.items())
    return text("phases", parts=parts)


def _allocator(row: Mapping[str, Any], text: Texts) -> list[str]:
    """The step's time in the allocator's default state, and with memory kept, where either makes a difference."""
    names, words = ("default_state_time_s", "kept_memory_time_s", "default_state_page_faults"), []
    before, kept_s, faults = (number(row.get(name)) for name in names)
    if before and faults and before >= SLOWER * row["time_s"]:
        words.append(text("default_state", time=quantity(before, "s"), faults=f"{faults:,.0f}"))
    slower = kept_s and row["time_s"] >= SLOWER * kept_s
    return [*words, *([text("kept_memory", time=quantity(kept_s, "s"))] if slower else [])]


def _answers(rows: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> list[dict[str, Any]]:
    recommended = list(batches(rows))
    cases, fed = pd.DataFrame([batch.case for batch in recommended]), frames.ok(rows, "input_wait_percent")
    lines = [_line(batch, cases, text) for batch in recommended[:LISTED]]
    head = [*map(text, HEADS), *(text("head_fits", gigabytes=size) for size in CARDS_GB)]
    code = "" if len(fed) else f"{MEASURE} --config {remedies.REMEDIES['input_bound'].config}"
    return [
        {"question": text("batch_question"), "says": _batch_says(recommended, text), "head": head, "lines": lines},
        {"question": text("fits_question"), "says": _fits_says(recommended, text)},
        {"question": text("loader_question"), "says": _loader_says(fed, beside, text), "code": code},
        {"question": text("bf16_question"), "says": _bf16_says(bf16(rows), text)},
    ]


def _line(batch: Batch, cases: pd.DataFrame, text: Texts) -> list[str]:
    size = "–" if batch.batch_size is None else f"{batch.batch_size}{' ↑' if batch.rising else ''}"
    if batch.too_large is not None:
        size += f" ({batch.too_large}: {text.name('status', OUT_OF_MEMORY)})"
    fits = []
    for fit in batch.fits:
        shown = f"{'≥ ' * batch.at_least}{quantity(fit) if (fit or 0) >= 10_000 else f'{fit:,}'}" if fit else ""
        fits.append("–" if fit is None else shown or text("none_fits"))  # no more digits than a prediction has
    speed, case = [significant(batch.samples_per_s), text("share_of", share=batch.share_percent)], batch.case
    named = [_with(case["model"], _apart(case, cases, text)), *(text.name(key, case[key]) for key in curves.TOLD)]
    return [*named, size, *speed, *fits]


def _apart(row: Mapping[str, Any], rows: pd.DataFrame, text: Texts) -> list[str]:
    """Workload and execution that are not plain, and the length and machine where `rows` have several."""
    setting, length = curves.variant(row, text), row["sequence_length"]
    if length > 0 and rows.loc[rows["model"] == row["model"], "sequence_length"].nunique() > 1:
        setting.append(text("tokens", length=int(length)))
    return [*setting, row["machine"]] if rows["machine"].nunique() > 1 else setting


def _with(name: str, setting: list[str]) -> str:
    return f"{name} ({', '.join(setting)})" if setting else name


def _batch_says(recommended: list[Batch], text: Texts) -> str:
    swept = [batch for batch in recommended if batch.batch_size is not None]
    if not swept:
        return text("batch_single")
    counts = {"batch_rising": sum(batch.rising for batch in swept)}
    counts |= {"batch_lost": sum(batch.too_large is not None for batch in swept)}
    more = [text(key, count=count, total=len(swept)) for key, count in counts.items() if count]
    return " ".join([text("batch_says", share=percent(100 * KNEE)), *more])


def _fits_says(recommended: list[Batch], text: Texts) -> str:
    """The card from which each case fits with a single sample, and the one that needs most."""
    with_fits = [batch for batch in recommended if any(fit is not None for fit in batch.fits)]
    if not with_fits:
        return text("fits_unknown")
    never = [batch.case for batch in with_fits if not any(batch.fits)]
    card = {"gigabytes": CARDS_GB[0], "usable": percent(100 * USABLE)}
    says = [text("fits_says", count=sum(bool(batch.fits[0]) for batch in with_fits), total=len(with_fits), **card)]
    for case in never[:1]:
        says.append(text("fits_never", model=case["model"], mode=text.name("mode", case["mode"]), count=len(never)))
    return " ".join(says)


def _loader_says(fed: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> str:
    """The longest wait, and the most that a loader costs: one with many workers takes time from the step unseen."""
    if fed.empty:
        return text("loader_unknown")
    worst, beside = fed.loc[fed["input_wait_percent"].idxmax()], frames.own(beside)
    key = "loader_yes" if worst["input_wait_percent"] >= WAITING else "loader_no"
    words = [text(key, model=worst["model"], share=percent(worst["input_wait_percent"]), count=len(fed))]
    if len(beside) and beside["kept"].min() < 100 - WAITING:
        words.append(text("loader_costs", row=beside.loc[beside["kept"].idxmin()]))
    return " ".join(words)


def _bf16_says(pairs: pd.DataFrame, text: Texts) -> str:
    if pairs.empty:
        return text("bf16_unknown")
    words = []
    for worth in WORTH:
        here = pairs[pairs["worth"] == worth].sort_values("speedup", ascending=False)
        runs = []
        for row in here.head(4).to_dict("records"):
            setting = [] if row["precision"] == "bf16" else [text.name("precision", row["precision"])]
            run = _with(f"{row['model']} {text.name('mode', row['mode'])}", [*setting, *_apart(row, pairs, text)])
            values = {"batch_size": int(row["batch_size"]), "speedup": significant(row["speedup"])}
            runs.append(text("bf16_run", run=run, **values))
        more = text("and_more", count=len(here) - 4) if len(here) > 4 else ""
        words += [text(worth, runs=", ".join(runs) + more)] if runs else []
    if len(slower := 1 / pairs.loc[pairs["emulated"], "speedup"]):
        low, high = significant(slower.min(), 2), significant(slower.max(), 2)
        words.insert(0, text("bf16_emulated" if low != high else "bf16_emulated_one", low=low, high=high))
    return " ".join(words)
