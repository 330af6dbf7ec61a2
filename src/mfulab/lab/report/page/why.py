"""Section "Why": for each model and workload the verdict, its cost and remedy; then what readers
ask of their runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.core.parts import Record, Row, pick_all
from mfulab.lab.planning.naming import MEASURE, in_language
from mfulab.lab.report import frames, selection, trust
from mfulab.lab.report.drawing import curves, relative
from mfulab.lab.report.figures import headroom, mfu_versus_utilization
from mfulab.lab.report.figures import input as input_figure
from mfulab.mfu import account, three_lines
from mfulab.mfu.causes import BY_KEY
from mfulab.mfu.step import number

OFF = 5.0  # points by which a step's phases may miss it, unsaid
NAMED = 5.0  # points from which a part of the step is named below its bar
# times as slow as measured: from there on the allocator's other state is worth a sentence
SLOWER = 1.1
SHOWN = 6  # cases in view
MORE = 24  # cases that unfold; the others stand in the table of rows
CASE = ["machine", "model", "mode"]
LISTED = 30  # lines of the table of batch sizes
WORDS = (
    *(
        "forward",
        "backward",
        "optimiser",
        "other",
        "bf16_yes",
        "bf16_no",
        "bf16_unclear",
        "bf16_once",
        "bf16_faults",
    ),
    *("head_model", "head_mode", "head_precision", "head_batch", "head_speed", "head_share"),
)
MANY_SAMPLES = 10_000  # from which on a batch size is told in three digits
PHASES = WORDS[:4]
WORTH = WORDS[4:9]
HEADS = WORDS[9:]
CAUSE = "verdict"
KEEPING_MEMORY = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296"  # of glibc
OUT_OF_MEMORY = "out_of_memory"
# of the most samples per second measured: a larger batch gains less than it costs in memory
KNEE = 0.9
CARDS_GB = (16, 24, 40, 80)  # of common cards: T4 and V100, 4090 and L4, A100, H100
USABLE = 0.9  # of a card's memory: context, libraries' workspaces and fragments take the rest
WAITING = 5.0  # % of the time from which a loader is worth a thought
MEASURABLE = ("bf16_yes", "bf16_no", "bf16_once")  # answers with a number
GAIN = 1.05  # speed-up from which another number format is worth its rounding


class Batch(NamedTuple):
    """Recommended batch size of one case, and the largest that fits each card."""

    case: Row  # by curves.KEYS
    batch_size: (
        int | None
    )  # None where a single batch size was measured, from which nothing can be recommended
    samples_per_s: float
    share_percent: float
    rising: bool
    too_large: int | None  # the smallest that was out of memory, beyond all that were measured
    fits: tuple[int | None, ...]  # None: not predicted
    at_least: bool  # `fits` are batch sizes that were measured: no line predicts larger ones


def batches(rows: pd.DataFrame) -> Iterator[Batch]:
    """Yields for each case of profile rows the smallest batch size with KNEE of the most samples
    per second."""
    rows = rows[["status", *curves.KEYS, "batch_size", "samples_per_s", "predicted_memory_bytes"]]
    failed = rows[rows["status"] == OUT_OF_MEMORY]
    lost = (
        failed["batch_size"]
        .groupby([failed[name].map(str) for name in curves.KEYS])
        .agg(list)
        .to_dict()
    )
    timed = frames.ok(rows, "samples_per_s", "batch_size")
    if len(timed):
        timed = frames.one_each(timed, [*curves.KEYS, "batch_size"])
    cases = timed[curves.KEYS].to_dict("records")
    number = timed.groupby(curves.KEYS, dropna=False, sort=False).ngroup()
    sizes, speeds, memory = (
        timed[["batch_size", "samples_per_s", "predicted_memory_bytes"]].to_numpy(dtype=float).T
    )
    order = np.lexsort((sizes, number))
    for rising in (
        np.split(order, np.flatnonzero(np.diff(number.iloc[order])) + 1) if len(order) else ()
    ):
        best = speeds[rising].max()
        last = rising[-1]
        knee = rising[speeds[rising] >= KNEE * best][0]
        beyond = []
        for size in lost.get(tuple(map(str, cases[last].values())), ()):
            if size > sizes[last]:
                beyond.append(size)
        predicted = []
        for index in rising:
            if memory[index] == memory[index]:
                predicted.append((sizes[index], memory[index]))
        too_large = None
        if beyond:
            too_large = int(min(beyond))
        batch_size = None
        if len(rising) > 1:
            batch_size = int(sizes[knee])
        yield Batch(
            case=cases[last],
            batch_size=batch_size,
            samples_per_s=speeds[knee],
            share_percent=100 * speeds[knee] / best,
            rising=len(rising) > 1 and sizes[knee] == sizes[last] and not beyond,
            too_large=too_large,
            fits=tuple(largest_that_fits(predicted, gigabytes) for gigabytes in CARDS_GB),
            at_least=not bytes_a_sample(predicted),
        )


def largest_that_fits(predicted: Sequence[tuple[float, float]], gigabytes: float) -> int | None:
    """Largest batch size within USABLE of a card's memory, by the line through `predicted`'s ends,
    batch sizes with bytes; 0 if none is, None if unknown."""
    if not predicted:
        return None
    room, (batch_size, memory), slope = (
        USABLE * gigabytes * 1e9,
        predicted[-1],
        bytes_a_sample(predicted),
    )
    if not slope:
        if memory <= room:
            return int(batch_size)
        return None
    return max(0, int(batch_size + (room - memory) // slope))


def bytes_a_sample(predicted: Sequence[tuple[float, float]]) -> float | None:
    """Bytes that memory grows by with a sample; None for one batch size alone, or where memory does
    not rise."""
    if len(dict(predicted)) < 2:
        return None
    (smallest, least), (largest, most) = predicted[0], predicted[-1]
    if most > least:
        return (most - least) / (largest - smallest)
    return None


def bf16(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs in bf16 beside the same run in fp32, with `speedup`, and with `worth`, the key of what
    is said of it."""
    pairs = relative.against(frames.ok(rows, "samples_per_s"), "precision", "fp32")
    pairs = pairs[pairs["precision"].isin(["bf16", "amp_bf16"])]
    once = pairs["speedup_low"].isna()  # of a single process, which has no interval
    worth = pd.Series("bf16_unclear", index=pairs.index).mask(once, "bf16_once")
    worth = worth.mask(pairs["speedup_low"] >= GAIN, "bf16_yes").mask(
        pairs["speedup_high"] < GAIN, "bf16_no"
    )
    worth = worth.where(frames.comparable(pairs) & frames.comparable(pairs, "_base"), "bf16_faults")
    return pairs.assign(worth=worth, emulated=frames.emulated(pairs))


def section(
    tables: frames.Tables, lowest: pd.Series | None, figures: set[str], language: str
) -> Record:
    """The section's cases, `lowest` first, and answers; `figures` are on the page. Empty without a
    profiled step."""
    text = Texts(language, "why")
    rows = frames.in_words(
        frames.own(frames.with_machine(tables, frames.with_traces(tables))), text
    )
    measured = frames.ok(rows, "time_s")
    if measured.empty:
        return {}
    shown = chosen(measured)
    # the run that the page's first sentences are about
    if lowest is not None and lowest.name in measured.index:
        told = measured.loc[[lowest.name]]
        is_same = (shown[CASE] == told[CASE].iloc[0]).all(axis=1)
        shown = pd.concat([told, shown[~is_same]])
    drawn = shown.head(SHOWN + MORE)
    cases = [_case(row, figures, text) for row in drawn.to_dict("records")]
    causes = drawn[CAUSE].value_counts()
    says = text(
        "says",
        verdict=text.name("cause", causes.index[0]),
        count=int(causes.iloc[0]),
        total=len(cases),
    )
    untold = len(measured[CASE].drop_duplicates()) - len(drawn)
    in_rows = [text("cases_in_rows", count=untold)] if untold else []
    says = " ".join([says, *in_rows, *of_jobs(tables, language)])
    all_read = rows["hardware"].str.endswith(frames.READ).all()  # traces leave these questions open
    answers = []
    if not all_read:
        answers = _answers(rows, input_figure.rows(tables), text)
    return {"says": says, "cases": cases[:SHOWN], "rest": cases[SHOWN:], "answers": answers}


def first(lowest: pd.Series, figures: set[str], language: str) -> Record:
    """Case of the lowest run of the page's first figure, with its sentence `because`."""
    text = Texts(language, "mfu_versus_utilization")
    row = frames.in_words(lowest.to_frame().T, text).iloc[0]
    because = mfu_versus_utilization.because(row, text)
    return _case(row.to_dict(), figures, text.within("why")) | {"because": because}


def of_traces(tables: frames.Tables, text: Texts) -> str | None:
    """Sentence on the first trace that was read here: how busy it was and what it used, or why it
    could not be read."""
    rows = tables["traces"][~tables["traces"]["recorded"]]
    if rows.empty:
        return None
    read = rows[rows["status"] == "ok"]
    if read.empty:
        return verdicts.message(str(rows["message"].iloc[0]), text.language)
    row: Record = read.iloc[0].to_dict()
    found = three_lines.finding(row, row["model"], three_lines.device_of(row), text.language)
    return " ".join([found, *of_jobs(tables, text.language)])


def of_jobs(tables: frames.Tables, language: str) -> list[str]:
    """Sentences on the ranks of jobs whose traces were read here: which the others wait for."""
    rows = tables["traces"][~tables["traces"]["recorded"]]
    if "job_verdict" not in rows:
        return []
    sentences = []
    for cell in rows["job_verdict"].replace("", None).dropna().unique():
        for key, numbers in parse_json(cell).items():
            sentences.append(verdicts.sentence(key, numbers, language))
    return sentences


def lanes(rows: pd.DataFrame, language: str) -> dict[str, list[Record]]:
    """The lines of the page's first figure by machine, each with what its colour means, for a screen
    that is too narrow for a drawing."""
    text = Texts(language, "mfu_versus_utilization")
    by_machine: dict[str, list[Record]] = {}
    rows = rows.assign(doubtful=trust.doubtful)
    for row in mfu_versus_utilization.shown(frames.in_words(rows, text), text).to_dict("records"):
        mfu = row["mfu_percent"]
        busy = row["utilization_percent"]
        ends = sorted(min(100.0, end) for end in (mfu, busy))
        labels = {
            "mfu": mfu_versus_utilization.share(mfu, text),
            "busy": text("share_of", share=busy),
            "cause": mfu_versus_utilization.name_of(row["cause"], text),
        }
        place = {
            "left": f"{ends[0]:.2f}",
            "width": f"{ends[1] - ends[0]:.2f}",
            "dot": f"{min(100.0, mfu):.2f}",
        }
        looks = pick_all(row, ("name", "color", "doubtful"))
        by_machine.setdefault(row["machine"], []).append(looks | labels | place)
    return by_machine


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest run of each machine, model and mode, by MFU: of its plain workload, where that was
    measured. A step that multiplies nothing, whose MFU is no news, a stranger's recorded trace and
    a synthetic load are left out, where others are left."""
    is_variant = rows["workload"] != rows["mode"]
    ordered = rows.assign(is_variant=is_variant).sort_values(
        ["is_variant", "samples_per_s"], ascending=[True, False], na_position="last"
    )
    fastest = ordered.drop_duplicates(CASE).drop(columns="is_variant")
    fastest = frames.preferred(fastest, fastest["mfu_percent"] != 0)
    fastest = selection.pick(fastest, "recorded_trace", "synthetic")
    return fastest.sort_values("mfu_percent", na_position="last")


def _case(row: Row, figures: set[str], text: Texts) -> Record:
    cause = row[CAUSE]
    columns = verdicts.columns(row, language=text.language)
    budget = account.read(row).losses
    is_read = row["hardware"].endswith(frames.READ)  # of another program: no experiment helps it
    tried = ""
    if not is_read:
        tried = three_lines.tried_config(row)
    figure = ""
    if tried:
        figure = BY_KEY[cause].figure
    return {
        "title": f"{row['model']} · {text.name('mode', row['mode'])}",
        "where": ", ".join(_where(row, text)),
        "verdict": columns["verdict"],
        "reason": columns["verdict_reason"],
        "named": " · ".join(_named(budget, text)),
        "parts": _drawn(budget, text),
        "phases": _phases(row, text),
        "allocator": " ".join(_allocator(row, text)),
        "advice": three_lines.advice(row, text.language, is_read),
        "experiment": _command(cause, tried, text.language),
        "figure": figure if figure in figures else "",
    }


def _named(budget: Mapping[str, account.Loss], text: Texts) -> list[str]:
    """The parts of a step that are large enough to be named below their bar, each with its share."""
    named = []
    for part, cost in budget.items():
        if cost.points >= NAMED:
            named.append(f"{text.within('trace')(part)} {text('share_of', share=cost.points)}")
    return named


def _drawn(budget: Mapping[str, account.Loss], text: Texts) -> list[dict[str, str]]:
    """The parts of a step's bar: width in percent, colour and words."""
    drawn = []
    for part, cost in budget.items():
        share = text("share_of", share=cost.points)
        says = f"{text.within('trace')(part)}: {significant(cost.ms)} ms, {share}"
        width = f"{max(0.0, cost.points):.2f}"
        drawn.append({"width": width, "color": headroom.COLORS[part], "says": says})
    return drawn


def _command(cause: str, config: str, language: str) -> str:
    """The command that measures a verdict's advice by its config; what is no key of one measures
    the run again."""
    if not config:
        return ""
    before = ""
    if cause == "page_faults":
        before = f"{KEEPING_MEMORY} "
    step = "ceilings" if cause == "doubtful_ceiling" else "profile_step"
    again = ""
    if cause in three_lines.AGAIN:
        again = f" --forcerun {step}"
    return in_language(f"{before}{MEASURE}{again} --config {config}", language)


def _where(row: Row, text: Texts) -> list[str]:
    batch = row["batch_size"]
    share = row["mfu_percent"]
    setting = []
    if batch == batch:
        setting = [text("batch", batch_size=int(batch))]
    if row["precision"]:
        setting.append(text.name("precision", row["precision"]))
    setting += [*curves.variant(row, text), text("step", time=quantity(row["time_s"], "s"))]
    mfu = text("no_mfu")
    if share == share:
        mfu = text("mfu", share=three_lines.at_least(row, percent(share)))
    return [*setting, mfu, row["machine"]]


def _phases(row: Row, text: Texts) -> str:
    times = {
        name: time
        for name in PHASES
        if (time := row.get(f"{name}_ms")) is not None and time == time
    }
    whole = sum(times.values())
    if len(times) < 2 or not whole:
        return ""
    parts = ", ".join(
        f"{text(name)} {text('share_of', share=100 * time / whole)}" for name, time in times.items()
    )
    says = text("phases", parts=parts)
    share = number(row.get("phases_percent"))
    if share is None or abs(share - 100) <= OFF:
        return says
    return f"{says} {text('phases_differ', share=share)}"


def _allocator(row: Row, text: Texts) -> list[str]:
    """The step's time in the allocator's default state, and with memory kept, where either makes a
    difference."""
    names = ("default_state_time_s", "kept_memory_time_s", "default_state_page_faults")
    sentences = []
    before, kept_s, faults = (number(row.get(name)) for name in names)
    if before and faults and before >= SLOWER * row["time_s"]:
        sentences.append(text("default_state", time=quantity(before, "s"), faults=f"{faults:,.0f}"))
    slower = kept_s and row["time_s"] >= SLOWER * kept_s
    if slower:
        sentences.append(text("kept_memory", time=quantity(kept_s, "s")))
    return sentences


def _answers(rows: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> list[Record]:
    recommended = list(batches(rows))
    cases = pd.DataFrame([batch.case for batch in recommended])
    fed = frames.ok(rows, "input_wait_percent")
    lines = [_line(batch, cases, text) for batch in recommended[:LISTED]]
    head = [*map(text, HEADS), *(text("head_fits", gigabytes=size) for size in CARDS_GB)]
    code = ""
    if fed.empty:
        code = in_language(f"{MEASURE} --config experiment=input", text.language)
    return [
        {
            "question": text("batch_question"),
            "says": _batch_says(recommended, text),
            "head": head,
            "lines": lines,
        },
        {"question": text("fits_question"), "says": _fits_says(recommended, text)},
        {
            "question": text("loader_question"),
            "says": _loader_says(fed, beside, text),
            "code": code,
        },
        {"question": text("bf16_question"), "says": _bf16_says(bf16(rows), text)},
    ]


def _fit(fit: int | None, at_least: bool, text: Texts) -> str:
    """A batch size that fits in words, with no more digits than a prediction has."""
    if fit is None:
        return "–"
    if not fit:
        return text("none_fits")
    shown = quantity(fit) if fit >= MANY_SAMPLES else f"{fit:,}"
    if at_least:
        return f"≥ {shown}"
    return shown


def _line(batch: Batch, cases: pd.DataFrame, text: Texts) -> list[str]:
    size = "–"
    if batch.batch_size is not None:
        size = str(batch.batch_size)
    if batch.rising and batch.batch_size is not None:
        size += " ↑"
    if batch.too_large is not None:
        size += f" ({batch.too_large}: {text.name('status', OUT_OF_MEMORY)})"
    fits = [_fit(fit, batch.at_least, text) for fit in batch.fits]
    speed = [significant(batch.samples_per_s), text("share_of", share=batch.share_percent)]
    case = batch.case
    named = [
        _with(case["model"], _apart(case, cases, text)),
        *(text.name(key, case[key]) for key in curves.TOLD),
    ]
    return [*named, size, *speed, *fits]


def _apart(row: Row, rows: pd.DataFrame, text: Texts) -> list[str]:
    """Workload and execution that are not plain, and the length and machine where `rows` have
    several."""
    setting = curves.variant(row, text)
    length = row["sequence_length"]
    if length > 0 and rows.loc[rows["model"] == row["model"], "sequence_length"].nunique() > 1:
        setting.append(text("tokens", length=int(length)))
    if rows["machine"].nunique() > 1:
        return [*setting, row["machine"]]
    return setting


def _with(name: str, setting: list[str]) -> str:
    if setting:
        return f"{name} ({', '.join(setting)})"
    return name


def _batch_says(recommended: list[Batch], text: Texts) -> str:
    swept = []
    for batch in recommended:
        if batch.batch_size is not None:
            swept.append(batch)
    if not swept:
        return text("batch_single")
    counts = {"batch_rising": sum(batch.rising for batch in swept)}
    counts |= {"batch_lost": sum(batch.too_large is not None for batch in swept)}
    more = []
    for key, count in counts.items():
        if count:
            more.append(text(key, count=count, total=len(swept)))
    return " ".join([text("batch_says", share=percent(100 * KNEE)), *more])


def _fits_says(recommended: list[Batch], text: Texts) -> str:
    """The card from which each case fits with a single sample, and the one that needs most."""
    with_fits = []
    for batch in recommended:
        if any(fit is not None for fit in batch.fits):
            with_fits.append(batch)
    if not with_fits:
        return text("fits_unknown")
    never = []
    for batch in with_fits:
        if not any(batch.fits):
            never.append(batch.case)
    card = {"gigabytes": CARDS_GB[0], "usable": percent(100 * USABLE)}
    says = [
        text(
            "fits_says",
            count=sum(bool(batch.fits[0]) for batch in with_fits),
            total=len(with_fits),
            **card,
        )
    ]
    for case in never[:1]:
        says.append(
            text(
                "fits_never",
                model=case["model"],
                mode=text.name("mode", case["mode"]),
                count=len(never),
            )
        )
    return " ".join(says)


def _loader_says(fed: pd.DataFrame, beside: pd.DataFrame, text: Texts) -> str:
    """The longest wait, and the most that a loader costs: one with many workers takes time from the
    step unseen."""
    if fed.empty:
        return text("loader_unknown")
    worst = fed.loc[fed["input_wait_percent"].idxmax()]
    beside = frames.own(beside)
    key = "loader_yes" if worst["input_wait_percent"] >= WAITING else "loader_no"
    share = percent(worst["input_wait_percent"])
    named = {"model": worst["model"], "machine": worst["machine"]}
    sentences = [text(key, share=share, count=len(fed), **named)]
    beside = beside[beside["apart"]] if len(beside) else beside
    if len(beside) and beside["kept"].min() < 100 - WAITING:
        sentences.append(text("loader_costs", row=beside.loc[beside["kept"].idxmin()]))
    return " ".join(sentences)


def _bf16_says(pairs: pd.DataFrame, text: Texts) -> str:
    """A line an answer: whether the format is emulated, then the runs of each."""
    if pairs.empty:
        return text("bf16_unknown")
    sentences = []
    for worth in WORTH:
        here = pairs[pairs["worth"] == worth].sort_values("speedup", ascending=False)
        runs = []
        for row in here.head(4).to_dict("records"):
            setting = []
            if row["precision"] != "bf16":
                setting = [text.name("precision", row["precision"])]
            run = _with(
                f"{row['model']} {text.name('mode', row['mode'])}",
                [*setting, *_apart(row, pairs, text)],
            )
            values = {"batch_size": int(row["batch_size"]), "speedup": significant(row["speedup"])}
            key = "bf16_run" if worth in MEASURABLE else "bf16_run_alone"
            runs.append(text(key, run=run, **values))
        more = ""
        if len(here) > 4:
            more = text("and_more", count=len(here) - 4)
        if runs:
            sentences.append(text(worth, runs=", ".join(runs) + more))
    if len(slower := 1 / pairs.loc[pairs["emulated"], "speedup"]):
        low = significant(slower.min(), 2)
        high = significant(slower.max(), 2)
        key = "bf16_emulated_one"
        if low != high:
            key = "bf16_emulated"
        sentences.insert(0, text(key, low=low, high=high))
    return "\n".join(sentences)
