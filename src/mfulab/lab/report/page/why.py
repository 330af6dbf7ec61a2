"""Section "Why" of the page: verdict, cost and remedy for each model and workload, then answers to
common questions."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from mfulab.core.formats import FORMATS
from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.intervals import ends_in_words
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.core.parts import Record, Row
from mfulab.lab.planning.naming import MEASURE, in_language
from mfulab.lab.report import claims, frames, selection, trust
from mfulab.lab.report.drawing import curves, relative
from mfulab.lab.report.figures import headroom, memory_breakdown, mfu_versus_utilization
from mfulab.lab.report.figures import input as input_figure
from mfulab.mfu import account, three_lines
from mfulab.mfu.causes import BY_KEY
from mfulab.mfu.step import number

OFF = 5.0  # percentage points by which phases may differ from the step without a sentence
NAMED = 5.0  # percentage points from which a part of the step is named below its bar
# slowdown from which the allocator's other state gets a sentence
SLOWER = 1.1
SHOWN = 6  # cases shown at first
MORE = 24  # cases that can be unfolded; others are only in the table of rows
LISTED = 30  # lines in the table of batch sizes
PHASES = ("forward", "backward", "optimiser", "other")
WORTH = ("bf16_yes", "bf16_no", "bf16_unclear", "bf16_doubtful", "bf16_once", "bf16_faults")
HEADS = ("head_model", "head_mode", "head_precision", "head_batch", "head_speed", "head_share")
MANY_SAMPLES = 10_000  # batch size from which three digits are shown
CAUSE = "verdict"
KEEPING_MEMORY = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296"  # of glibc
OUT_OF_MEMORY = "out_of_memory"
# share of the highest samples per second: larger batches gain less than they cost in memory
KNEE = 0.9
FEWEST_SIZES = 2  # batch sizes of a case that can be compared
# Memory of the smallest common cards, up to an H100.
CARDS_GB = tuple(int(gigabytes) for gigabytes, _ in memory_breakdown.CAPACITIES[:4])
USABLE = 0.9  # share of a card's memory, without context, workspaces and fragmentation
WAITING = 5.0  # % of the time from which waiting for the loader matters
MEASURABLE = ("bf16_yes", "bf16_no")  # answers with a number
NAMED_RUNS = 4  # runs that an answer names
GAIN = 1.05  # speedup from which another number format is worth its rounding
# Keys that a remedy may sweep, of which two rows of the page show the gain.
AXES = ("execution", "precision", "batch_size", "workload")


class Held(NamedTuple):
    """A machine and mode of which a figure of the page has rows; `mode` is empty if the figure has
    no modes."""

    figure: str
    machine: str
    mode: str


class Beside(NamedTuple):
    """Rows that show what a remedy gains: the steps measured here, and the ceilings."""

    steps: pd.DataFrame
    ceilings: pd.DataFrame


class Outcome(NamedTuple):
    """Words for what a remedy gained in rows of the page, and whether that is measurable."""

    says: str
    helps: bool


class Remedies(NamedTuple):
    """Advice on a run, and sentence on other remedies. `is_refuted` if rows of the page show that
    the verdict's first remedy gains nothing, so that its command is no advice."""

    first: str
    others: str = ""
    is_refuted: bool = False


class Batch(NamedTuple):
    """Recommended batch size of a case, and the largest that fits each card of CARDS_GB."""

    case: Row  # by curves.KEYS
    batch_size: int | None  # None if only one was measured
    up_to: int | None  # larger than `batch_size` if intervals allow several sizes
    is_open: bool  # intervals allow each measured size
    is_doubtful: bool  # it rests on doubtful rows, as no two others were measured
    leaves_out: bool  # a measured size is doubtful or vague, and so left out
    samples_per_s: float  # of the size `up_to`
    share_percent: float
    rising: bool
    too_large: int | None  # the smallest that ran out of memory, above all measured ones
    fits: tuple[int | None, ...]  # None if not predicted
    at_least: bool  # `fits` are measured batch sizes, as larger ones cannot be predicted


class Sizes(NamedTuple):
    """Measured batch sizes of a case, the smallest first, and what was measured at each."""

    batch_size: np.ndarray
    samples_per_s: np.ndarray
    memory_bytes: np.ndarray
    predicted_memory_bytes: np.ndarray
    unsure: np.ndarray  # 1 if a row has doubts
    low: np.ndarray  # ends of the interval of samples per second
    high: np.ndarray
    count_measured: np.ndarray  # the case's sizes, with those left out
    largest_measured: np.ndarray


def batches(rows: pd.DataFrame) -> Iterator[Batch]:
    """Yields for each case in profile rows the smallest batch size that reaches KNEE of the highest
    samples per second. Doubtful rows, then vague ones, are left out if two others remain."""
    failed = rows[rows["status"] == OUT_OF_MEMORY]
    case_of_failed = [failed[name].map(str) for name in curves.KEYS]
    too_large = failed["batch_size"].groupby(case_of_failed).agg(list).to_dict()
    timed = _timed(rows)
    if timed.empty:
        return
    for case, sizes in _by_case(timed):
        name = tuple(map(str, case.values()))
        yield _recommended(case, sizes, too_large.get(name, []))


def _by_case(timed: pd.DataFrame) -> Iterator[tuple[Row, Sizes]]:
    """Yields each case with its measured batch sizes. A doubtful speed is off by a known factor, as
    no size could be ruled out otherwise."""
    reach = timed[trust.REACH].clip(upper=trust.OFF)
    ends = claims.ends_of(timed.assign(reach=reach), "samples_per_s")
    measured = timed.reindex(columns=Sizes._fields).assign(low=ends["low"], high=ends["high"])
    cells = measured.to_numpy(dtype=float)
    cases = timed[curves.KEYS].to_dict("records")
    number = timed.groupby(
        curves.KEYS,
        dropna=False,
        sort=False,
    ).ngroup()
    order = np.lexsort((measured["batch_size"], number))
    starts = np.flatnonzero(np.diff(number.iloc[order])) + 1
    for by_size in np.split(order, starts):
        yield cases[by_size[-1]], Sizes(*cells[by_size].T)


def _recommended(case: Row, sizes: Sizes, failed: Sequence[float]) -> Batch:
    """Recommends a batch size of a case. `failed` are those that ran out of memory."""
    last = len(sizes.batch_size) - 1
    off = _contradicted(sizes)
    could, surely = knee(sizes.low / off, sizes.high * off)
    batch_size = None
    up_to = None
    if last > 0:
        batch_size = int(sizes.batch_size[could])
        up_to = int(sizes.batch_size[surely])
    beyond = [size for size in failed if size > sizes.batch_size[last]]
    too_large = None
    if beyond:
        too_large = int(min(beyond))
    predicted = _memory_by_size(sizes)
    is_largest = bool(sizes.batch_size[last] == sizes.largest_measured[last])
    speed = sizes.samples_per_s[surely]
    return Batch(
        case=case,
        batch_size=batch_size,
        up_to=up_to,
        is_open=last > 0 and (could, surely) == (0, last),
        is_doubtful=bool(sizes.unsure.any()),
        samples_per_s=speed,
        share_percent=100 * speed / sizes.samples_per_s.max(),
        leaves_out=bool(last + 1 < sizes.count_measured[last]),
        rising=last > 0 and could == last and is_largest and not beyond,
        too_large=too_large,
        fits=tuple(largest_that_fits(predicted, gigabytes) for gigabytes in CARDS_GB),
        at_least=not bytes_a_sample(predicted),
    )


def _contradicted(sizes: Sizes) -> np.ndarray:
    """Factor by which each size's step time contradicts those of the other sizes, beyond the reach
    of doubts: a larger batch takes no less time."""
    time_s = sizes.batch_size / sizes.samples_per_s
    longest_so_far = np.maximum.accumulate(time_s)
    shortest_from_here = np.minimum.accumulate(time_s[::-1])[::-1]
    factor = np.maximum(longest_so_far / time_s, time_s / shortest_from_here)
    return np.maximum(1.0, factor / trust.OFF)


def _memory_by_size(sizes: Sizes) -> list[tuple[float, float]]:
    """Batch sizes with their memory: the measured peaks if each size has one and they rise, else
    the counted memory. Peaks of some sizes count where nothing was counted."""
    measured = _known(sizes.batch_size, sizes.memory_bytes)
    is_alone = len(sizes.batch_size) == 1
    is_complete = len(measured) == len(sizes.batch_size)
    if is_complete and (is_alone or bytes_a_sample(measured)):
        return measured
    return _known(sizes.batch_size, sizes.predicted_memory_bytes) or measured


def _known(sizes: np.ndarray, memory: np.ndarray) -> list[tuple[float, float]]:
    """Batch sizes with their memory, where it is known."""
    found = []
    for size, taken in zip(sizes, memory, strict=True):
        if taken > 0:
            found.append((size, taken))
    return found


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with samples per second, one for each case and batch size. Adds whether a row is
    `unsure`; such rows are left out of cases with two others, and so are vague ones. Adds what
    was measured of a case with these."""
    timed = frames.alone(frames.ok(rows, "samples_per_s", "batch_size"))
    if timed.empty:
        return timed
    timed = trust.with_doubts(timed)
    timed = frames.one_each(timed, [*curves.KEYS, "batch_size"])
    cases = [timed[key] for key in curves.KEYS]
    by_case = timed["batch_size"].groupby(cases, dropna=False)
    timed = timed.assign(
        unsure=trust.unsure(timed),
        count_measured=by_case.transform("size"),
        largest_measured=by_case.transform("max"),
    )
    sure = _without(timed, timed["unsure"])
    return _without(sure, _are_vague(sure))


def _without(timed: pd.DataFrame, left_out: pd.Series) -> pd.DataFrame:
    """Rows of each case without those `left_out`, if FEWEST_SIZES others remain."""
    kept = ~left_out
    cases = [timed[key] for key in curves.KEYS]
    kept_sizes = kept.groupby(cases, dropna=False).transform("sum")
    return timed[kept | (kept_sizes < FEWEST_SIZES)]


def _are_vague(timed: pd.DataFrame) -> pd.Series:
    """True for rows whose interval, or whose usual process, is as far from their time as a doubtful
    time may be."""
    spread = claims.spreads(timed.drop(columns=trust.REACH))
    slower = pd.Series(0.0, timed.index)
    if "machine_cost_percent" in timed:
        slower = timed["machine_cost_percent"].astype(float).fillna(0.0) / 100
    return (spread >= trust.OFF) | (1 + slower >= trust.OFF)


def knee(lows: np.ndarray, highs: np.ndarray) -> tuple[int, int]:
    """Places of the first size that could reach KNEE of the highest rate, and of the first that
    surely does; the last one if none does. `lows` and `highs` are the ends of the rates by size."""
    could = int(np.argmax(highs >= KNEE * lows.max()))
    for place in range(could, len(lows)):
        others = np.delete(highs, place)
        if not len(others) or lows[place] >= KNEE * others.max():
            return could, place
    return could, len(lows) - 1


def largest_that_fits(predicted: Sequence[tuple[float, float]], gigabytes: float) -> int | None:
    """Largest batch size within USABLE of a card's memory, extrapolated from `predicted` (batch
    size, bytes). 0 if none fits, None if unknown."""
    if not predicted:
        return None
    room = USABLE * gigabytes * 1e9
    batch_size, memory = predicted[-1]
    slope = bytes_a_sample(predicted)
    if not slope:
        if memory <= room:
            return int(batch_size)
        return None
    return max(0, int(batch_size + (room - memory) // slope))


def bytes_a_sample(predicted: Sequence[tuple[float, float]]) -> float | None:
    """Bytes of memory for each further sample; None if only one batch size is known or memory does
    not grow."""
    if len(dict(predicted)) < 2:
        return None
    (smallest, least), (largest, most) = predicted[0], predicted[-1]
    if most > least:
        return (most - least) / (largest - smallest)
    return None


def bf16(rows: pd.DataFrame) -> pd.DataFrame:
    """Pairs runs in bf16 with the same run in fp32. Adds `speedup`, and `worth`, the key of the
    sentence about it."""
    pairs = relative.against(frames.ok(rows, "samples_per_s"), "precision", "fp32")
    pairs = pairs[pairs["precision"].isin(["bf16", "amp_bf16"])]
    reach = pd.Series(1.0, pairs.index)  # factor by which doubts widen the interval
    if trust.REACH in pairs:
        reach = pairs[trust.REACH]
    low = pairs["speedup_low"] / reach
    high = pairs["speedup_high"] * reach
    # Later reasons replace earlier ones.
    worth = pd.Series("bf16_unclear", index=pairs.index)
    worth = worth.mask(~pairs["has_interval"], "bf16_once")
    worth = worth.mask(reach > 1, "bf16_doubtful")
    worth = worth.mask(low >= GAIN, "bf16_yes")
    worth = worth.mask(high < GAIN, "bf16_no")
    worth = worth.where(_comparable(pairs), "bf16_faults")
    best = np.fmax(_fastest(pairs, rows), pairs["samples_per_s"])
    best_base = np.fmax(_fastest(pairs.assign(precision="fp32"), rows), pairs["samples_per_s_base"])
    at_best = best / best_base
    return pairs.assign(worth=worth, emulated=frames.emulated(pairs), at_best=at_best)


def _fastest(cases: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Highest samples per second that `rows` have of each case, at any batch size."""
    timed = trust.with_doubts(frames.alone(frames.ok(rows, "samples_per_s")))
    timed = timed[~trust.unsure(timed)].fillna({"sequence_length": 0})
    highest = timed.groupby(curves.KEYS)["samples_per_s"].max()
    return cases[curves.KEYS].join(highest, on=curves.KEYS)["samples_per_s"]


def _comparable(pairs: pd.DataFrame) -> pd.Series:
    """True for pairs whose two runs may be ranked."""
    return frames.comparable(pairs) & frames.comparable(pairs, "_base")


def section(
    tables: frames.Tables, named: Sequence[Hashable], held: set[Held], language: str
) -> Record:
    """Returns the cases of the section, the first of the `named` runs first, and the answers. `held`
    is what the page's figures hold. Empty without a profiled step."""
    text = Texts(language, "why")
    rows = _steps(tables, text)
    measured = frames.ok(rows, "time_s")
    if measured.empty:
        return {}
    shown = chosen(measured, named)
    # the run that the page's first sentences are about
    if named and named[0] in measured.index:
        first_case = measured.loc[[named[0]]]
        is_same = (shown[selection.CASE] == first_case[selection.CASE].iloc[0]).all(axis=1)
        shown = pd.concat([first_case, shown[~is_same]])
    drawn = shown.head(SHOWN + MORE)
    not_shown = len(measured[selection.CASE].drop_duplicates()) - len(drawn)
    sentences = [*_most_frequent(drawn, not_shown, text), *of_jobs(tables, language)]
    beside = Beside(measured, tables["ceilings"])
    cases = [_case(row, beside, held, text) for row in drawn.to_dict("records")]
    answers = []
    if not rows["is_read"].all():  # traces cannot answer these
        loaders = frames.in_words(input_figure.rows(tables), text)
        answers = _answers(rows, loaders, text)
    return {
        "says": " ".join(sentences),
        "cases": cases[:SHOWN],
        "rest": cases[SHOWN:],
        "answers": answers,
    }


def _most_frequent(drawn: pd.DataFrame, not_shown: int, text: Texts) -> list[str]:
    """Sentences on the most frequent cause, and on the number of cases that are not shown."""
    counts = drawn[CAUSE].value_counts()
    verdict = text.name("cause", counts.index[0])
    sentences = [
        text(
            "says",
            verdict=verdict,
            count=int(counts.iloc[0]),
            total=len(drawn),
        )
    ]
    if not_shown:
        sentences.append(text("cases_in_rows", count=not_shown))
    return sentences


def _steps(tables: frames.Tables, text: Texts) -> pd.DataFrame:
    """Steps measured here, or all recorded ones, with the names of their machines in words."""
    own = frames.own_or_recorded(frames.with_machine(tables, frames.with_traces(tables)))
    return frames.in_words(own, text)


def first(tables: frames.Tables, lowest: pd.Series, held: set[Held], language: str) -> Record:
    """Returns the case of the lowest run in the page's first figure, with its sentence
    `because`."""
    text = Texts(language, "mfu_versus_utilization")
    row = frames.in_words(lowest.to_frame().T, text).iloc[0]
    because = mfu_versus_utilization.because(row, text)
    steps = frames.ok(_steps(tables, text), "time_s")
    beside = Beside(steps, tables["ceilings"])
    return _case(row.to_dict(), beside, held, text.within("why")) | {"because": because}


def of_traces(tables: frames.Tables, text: Texts) -> str | None:
    """Sentence on the first trace read here: how busy the device was and its MFU, or why it could
    not be read. None without traces."""
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
    """Sentences on jobs whose traces were read here: for which rank the others wait."""
    rows = tables["traces"][~tables["traces"]["recorded"]]
    if "job_verdict" not in rows:
        return []
    sentences = []
    for cell in rows["job_verdict"].replace("", None).dropna().unique():
        for key, numbers in parse_json(cell).items():
            sentences.append(verdicts.sentence(key, numbers, language))
    return sentences


def lanes(rows: pd.DataFrame, language: str) -> dict[str, list[Record]]:
    """Lines of the page's first figure as data, by machine, for screens too narrow for the
    drawing."""
    text = Texts(language, "mfu_versus_utilization")
    rows = rows.assign(doubtful=trust.doubtful)
    shown = mfu_versus_utilization.shown(frames.in_words(rows, text), text)
    # one name for a colour, as the machines share a legend
    is_cpu = mfu_versus_utilization.are_of_cpus(shown)
    by_machine: dict[str, list[Record]] = {}
    for row in shown.to_dict("records"):
        line = _lane(row, is_cpu, text)
        by_machine.setdefault(row["machine"], []).append(line)
    return by_machine


def _lane(row: Row, is_cpu: bool, text: Texts) -> Record:
    """A line of the first figure: the key of its run, look, labels, and position in percent of the
    width. `is_cpu` is true if all lines are of CPUs."""
    mfu = row["mfu_percent"]
    busy = row["utilization_percent"]
    left, right = sorted([min(100.0, mfu), min(100.0, busy)])
    recorded = "recorded/" if row["recorded"] else ""
    return {
        "name": row["name"],
        "key": f"{recorded}{row['hardware']}/{row['run']}",
        "color": row["color"],
        "doubtful": row["doubtful"],
        "mfu": mfu_versus_utilization.share(mfu, text),
        "busy": text("share_of", share=busy),
        "cause": mfu_versus_utilization.name_of(row["cause"], is_cpu, text),
        "left": f"{left:.2f}",
        "width": f"{right - left:.2f}",
        "dot": f"{min(100.0, mfu):.2f}",
    }


def chosen(rows: pd.DataFrame, named: Sequence[Hashable] = ()) -> pd.DataFrame:
    """Returns the run that stands for its machine, model and mode, sorted by MFU. Steps without
    matmuls, recorded traces and synthetic loads are left out if others remain. `named` as in
    `selection.one_of_each`."""
    shown = selection.one_of_each(rows, named)
    shown = frames.preferred(shown, shown["mfu_percent"] != 0)
    shown = selection.pick(shown, "recorded_trace", "synthetic")
    return shown.sort_values("mfu_percent", na_position="last")


def _case(row: Row, beside: Beside, held: set[Held], text: Texts) -> Record:
    cause = row[CAUSE]
    columns = verdicts.columns(row, language=text.language)
    budget = account.read(row).losses
    is_read = bool(row["is_read"])  # of another program: no experiment helps it
    tried = ""
    if not is_read:
        tried = three_lines.tried_config(row)
    figure = ""
    if tried and _holds(BY_KEY[cause].figure, row, held):
        figure = BY_KEY[cause].figure
    remedies = _remedies(row, beside, is_read, text)
    if remedies.is_refuted:
        tried = ""
    return {
        "title": f"{row['model']} · {text.name('mode', row['mode'])}",
        "where": ", ".join(_where(row, text)),
        "verdict": columns["verdict"],
        "reason": columns["verdict_reason"],
        "named": " · ".join(_named(row, budget, text)),
        "parts": _drawn(row, budget, text),
        "phases": _phases(row, text),
        "allocator": " ".join(_allocator(row, text)),
        "advice": remedies.first,
        "otherwise": remedies.others,
        "experiment": _command(cause, tried, text.language),
        "figure": figure,
        "is_elsewhere": bool(row["recorded"]),
    }


def _holds(figure: str, row: Row, held: set[Held]) -> bool:
    """True if a figure of the page has rows of a run's machine and mode."""
    machine = row["machine"]
    return Held(figure, machine, row["mode"]) in held or Held(figure, machine, "") in held


def _remedies(row: Row, beside: Beside, is_read: bool, text: Texts) -> Remedies:
    """The first remedy with what it gains by the rows of the page, or with the time at stake if they
    do not show that; then the others. If the rows show no gain, the others take its place."""
    remedy = three_lines.first_remedy(row, text.language, is_read)
    is_told_alone = is_read and row[CAUSE] in three_lines.OF_TRACES
    if not remedy or is_told_alone or not three_lines.can_help(row):
        return Remedies(remedy)
    helps = shorter_helps(row, beside)
    outcome = _outcome(row, beside.steps, text)
    if outcome and not outcome.helps:
        others = three_lines.other_remedies(row, text.language, helps)
        return Remedies(f"{others} {outcome.says}".strip(), is_refuted=True)
    said = outcome.says if outcome else three_lines.most_saved(row, text.language)
    others = three_lines.otherwise(row, text.language, helps)
    return Remedies(f"{remedy} {said}".strip(), others)


def _outcome(row: Row, steps: pd.DataFrame, text: Texts) -> Outcome | None:
    """Outcome of the first remedy of `row`, by runs that differ only in what its command sweeps.
    That of compiling may be by other runs of its model. None if no trusted run tells."""
    axis, tried = three_lines.tried_axis(row)
    if axis not in AXES:
        return None
    if axis == "execution" and row[axis] != three_lines.EAGER:  # the command sweeps eager anew
        return None
    is_tried = steps[axis].isin([row[axis], *tried])
    if axis == "batch_size":  # any larger one answers, not only those of the command
        is_tried = steps[axis] >= row[axis]
    pairs = _pairs(steps[is_tried & _are_alike(steps, row, axis)], axis, row[axis])
    if pairs.empty:
        if axis == "execution":
            return _of_model(row, steps[is_tried], text)
        return None
    faster = frames.preferred(pairs, pairs["speedup_low"] > 1)
    best = frames.highest(faster, "speedup")
    setting = _setting(axis, best[axis], text)
    if best["speedup_low"] <= 1 <= best["speedup_high"]:
        return Outcome(text("gain_unsure", setting=setting), helps=False)
    gained = f"{relative.times(best['speedup'], text)}{_ends_of_factor(best, text)}"
    says = text("gain", setting=setting, gained=gained)
    return Outcome(says, helps=best["speedup"] > 1)


def _of_model(row: Row, steps: pd.DataFrame, text: Texts) -> Outcome | None:
    """Outcome of compiling in other runs of a row's model and workload on its machine, where none
    gained anything measurable; None if one did, or if no trusted run tells."""
    keys = ["machine", "model", "workload"]
    is_same = (steps[keys] == [row[key] for key in keys]).all(axis=1)
    pairs = _pairs(steps[is_same], "execution", three_lines.EAGER)
    if pairs.empty or (pairs["speedup_low"] > 1).any():
        return None
    names = [_setting("execution", name, text) for name in pairs["execution"].unique()]
    return Outcome(text("gain_nowhere", setting=", ".join(names)), helps=False)


def _pairs(steps: pd.DataFrame, axis: str, baseline: str | float) -> pd.DataFrame:
    """Trusted pairs of steps, each with the same step at `axis == baseline`."""
    if len(steps) < 2:
        return steps.iloc[:0]
    pairs = relative.against(steps, axis, baseline)
    pairs = pairs[_comparable(pairs)]
    if trust.REACH in pairs:
        pairs = pairs[pairs[trust.REACH] == 1]
    return pairs


def _ends_of_factor(pair: pd.Series | Row, text: Texts) -> str:
    """Ends of the interval of how many times as fast, or as long, a pair's step is; empty if it is narrow."""
    speedup, low, high = (pair[name] for name in ("speedup", "speedup_low", "speedup_high"))
    if speedup < 1:
        speedup, low, high = 1 / speedup, 1 / high, 1 / low
    return ends_in_words(speedup, low, high, _factor, text.language)


def _factor(factor: float) -> str:
    return significant(factor, 2)


def _are_alike(steps: pd.DataFrame, row: Row, axis: str) -> pd.Series:
    """True for steps that equal `row` in all settings but `axis`."""
    is_alike = pd.Series(True, steps.index)
    for key in relative.KEYS:
        if key == axis:
            continue
        if pd.isna(row[key]):
            is_alike &= steps[key].isna()
        else:
            is_alike &= steps[key] == row[key]
    return is_alike


def _setting(axis: str, value: str | float, text: Texts) -> str:
    """Name of a value that a command sweeps."""
    if axis == "batch_size":
        return text("batch", batch_size=int(value))
    return text.name(axis, str(value))


def shorter_helps(row: Row, beside: Beside) -> bool:
    """False if a number format of half the length gains nothing: no step that differs from `row` in
    its format alone is faster, or the ceilings of its machine are no higher. True if nothing
    shows it."""
    own = FORMATS.get(str(row.get("effective_precision") or row.get("precision") or ""))
    if own is None:
        return True
    shorter = [name for name, form in FORMATS.items() if 2 * form.bytes == own.bytes]
    alike = beside.steps[_are_alike(beside.steps, row, "precision")]
    pairs = _pairs(alike, "precision", row["precision"])
    measured = pairs[pairs["precision"].isin(shorter)]
    if not measured.empty:
        return bool((measured["speedup_low"] > 1).any())
    return _multiplies_faster(row, own.name, shorter, beside.ceilings)


def _multiplies_faster(row: Row, own: str, shorter: Sequence[str], ceilings: pd.DataFrame) -> bool:
    """False if the ceilings of a row's machine show that it emulates each format of `shorter`, or
    multiplies it no faster than `own`. True if they do not show it."""
    if "format" not in ceilings:
        return True
    here = ceilings[(ceilings["hardware"] == row["hardware"]) & (ceilings["status"] == "ok")]
    before = _speed(here[here["format"] == own])
    is_known = False
    for name in shorter:
        measured = here[here["format"] == name]
        if measured.empty:
            continue
        is_known = True
        speed = _speed(measured)
        if speed is not None and (before is None or speed >= GAIN * before):
            return True
    return not is_known


def _speed(ceilings: pd.DataFrame) -> float | None:
    """Highest TFLOP/s of a format that the device does not emulate, computed where none was
    measured; None if unknown."""
    own = ceilings[~ceilings["emulated"].fillna(False).astype(bool)]
    speeds = own["measured_tflop_s"].fillna(own["computed_tflop_s"])
    return number(speeds.max())


def _named(row: Row, budget: Mapping[str, account.Loss], text: Texts) -> list[str]:
    """Parts of a step that are large enough to be named below its bar, each with its share."""
    named = []
    is_cpu = mfu_versus_utilization.is_of_cpu(row)
    for part, cost in budget.items():
        if cost.points >= NAMED:
            name = verdicts.part_of_step(part, is_cpu, text)
            named.append(f"{name} {text('share_of', share=cost.points)}")
    return named


def _drawn(row: Row, budget: Mapping[str, account.Loss], text: Texts) -> list[dict[str, str]]:
    """Parts of a step's bar: width in percent, colour and label."""
    drawn = []
    is_cpu = mfu_versus_utilization.is_of_cpu(row)
    for part, cost in budget.items():
        share = text("share_of", share=cost.points)
        says = f"{verdicts.part_of_step(part, is_cpu, text)}: {significant(cost.ms)} ms, {share}"
        width = f"{max(0.0, cost.points):.2f}"
        drawn.append(
            {
                "width": width,
                "color": headroom.COLORS[part],
                "says": says,
            }
        )
    return drawn


def _command(cause: str, config: str, language: str) -> str:
    """Command that tries the advice of a verdict, with its config. Empty if there is no config."""
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
    """Settings, time, MFU and machine of a run, in words."""
    words = []
    batch = row["batch_size"]
    if batch == batch:
        words.append(text("batch", batch_size=int(batch)))
    if row["precision"]:
        words.append(text.name("precision", row["precision"]))
    words += curves.variant(row, text)
    words.append(text("step", time=three_lines.step_time(row, text.language)))
    share = three_lines.used_share(row, text.language)
    if share:
        words.append(text("mfu", share=share))
    else:
        words.append(text("no_mfu"))
    words.append(row["machine"])
    if row.get(trust.DOUBTS):
        words.append(text("doubtful"))
    return words


def _phases(row: Row, text: Texts) -> str:
    """Sentence on the shares of a step's phases; empty if fewer than two are known."""
    times = {}
    for name in PHASES:
        time = number(row.get(f"{name}_ms"))
        if time is not None:
            times[name] = time
    total = sum(times.values())
    if len(times) < 2 or not total:
        return ""
    parts = []
    for name, time in times.items():
        share_of = text("share_of", share=100 * time / total)
        parts.append(f"{text(name)} {share_of}")
    sentence = text("phases", parts=", ".join(parts))
    share = number(row.get("phases_percent"))
    if share is None or abs(share - 100) <= OFF:
        return sentence
    return f"{sentence} {text('phases_differ', share=share)}"


def _allocator(row: Row, text: Texts) -> list[str]:
    """Sentences on the step's time in the allocator's default state, and with memory kept, if they
    differ from the measured time."""
    default_s = number(row.get("default_state_time_s"))
    faults = number(row.get("default_state_page_faults"))
    kept_s = number(row.get("kept_memory_time_s"))
    sentences = []
    if default_s and faults and default_s >= SLOWER * row["time_s"]:
        time = quantity(default_s, "s")
        sentences.append(text("default_state", time=time, faults=f"{faults:,.0f}"))
    if kept_s and row["time_s"] >= SLOWER * kept_s:
        sentences.append(text("kept_memory", time=quantity(kept_s, "s")))
    return sentences


def _answers(rows: pd.DataFrame, loaders: pd.DataFrame, text: Texts) -> list[Record]:
    """Questions on batch size, memory, loader and bf16, with answers from `rows` and those of the
    figure on loaders."""
    kinds = rows.reindex(columns=["machine", "device"])
    cpus = set(kinds.loc[kinds["device"] == "cpu", "machine"])
    real = selection.pick(rows, "synthetic")
    recommended = sorted(batches(real), key=partial(_turn, cpus=cpus, text=text))
    cases = pd.DataFrame([batch.case for batch in recommended])
    fed = frames.ok(rows, "input_wait_percent")
    lines = [_line(batch, cases, text) for batch in recommended[:LISTED]]
    head = list(map(text, HEADS))
    for size in CARDS_GB:
        head.append(text("head_fits", gigabytes=size))
    code = ""
    if fed.empty:
        code = in_language(f"{MEASURE} --config experiment=input", text.language)
    return [
        {
            "topic": "batch_size",
            "question": text("batch_question"),
            "says": _with_rest(_batch_says(recommended, text), len(recommended), text),
            "head": head,
            "lines": lines,
        },
        {
            "topic": "batch_size",
            "question": text("fits_question"),
            "says": _fits_says(recommended, text),
        },
        {
            "topic": "",
            "question": text("loader_question"),
            "says": _loader_says(fed, loaders, text),
            "code": code,
        },
        {
            "topic": "precision",
            "question": text("bf16_question"),
            "says": _bf16_says(bf16(rows), text),
        },
    ]


def _turn(batch: Batch, cpus: set[str], text: Texts) -> tuple[bool, bool, bool]:
    """Key that sorts cases of several sizes first, or of one beside a size that is too large. Of
    these, GPUs are before `cpus`, then plain cases."""
    is_single = batch.batch_size is None and batch.too_large is None
    return is_single, batch.case["machine"] in cpus, bool(curves.variant(batch.case, text))


def _with_rest(says: str, count: int, text: Texts) -> str:
    """The sentences on `count` cases, and how many of these the table below lists."""
    if count > LISTED:
        return f"{says} {text('batch_listed', listed=LISTED, total=count)}"
    return says


def _fit(fit: int | None, at_least: bool, text: Texts) -> str:
    """Text for a batch size that fits, rounded to the precision of the prediction."""
    if fit is None:
        return "–"
    if not fit:
        return text("none_fits")
    shown = quantity(fit) if fit >= MANY_SAMPLES else f"{fit:,}"
    if at_least:
        return f"≥ {shown}"
    return shown


def _line(batch: Batch, cases: pd.DataFrame, text: Texts) -> list[str]:
    """Cells of a line in the table of batch sizes."""
    case = batch.case
    size = _size(batch, text)
    if batch.too_large is not None:
        size += f" ({batch.too_large}: {text.name('status', OUT_OF_MEMORY)})"
    speed = significant(batch.samples_per_s)
    share = text("share_of", share=batch.share_percent)
    if batch.batch_size is None:
        share = "–"
    return [
        _with_setting(case["model"], _distinguishing(case, cases, text)),
        *(text.name(key, case[key]) for key in curves.TOLD),
        size,
        speed,
        share,
        *(_fit(fit, batch.at_least, text) for fit in batch.fits),
    ]


def _size(batch: Batch, text: Texts) -> str:
    """Cell with the recommended batch size, or the range that intervals allow."""
    if batch.batch_size is None:
        size = "–"
    elif batch.batch_size == batch.up_to:
        size = str(batch.batch_size)
    else:
        size = f"{batch.batch_size}–{batch.up_to}"
    if batch.rising:
        size += " ↑"
    if batch.is_doubtful:
        return text("with_setting", name=size, setting=text("doubtful"))
    return size


def _distinguishing(row: Row, rows: pd.DataFrame, text: Texts) -> list[str]:
    """Workload and execution, if not plain, and the sequence length and machine, if `rows` have
    several."""
    setting = curves.variant(row, text)
    length = row["sequence_length"]
    if length > 0 and rows.loc[rows["model"] == row["model"], "sequence_length"].nunique() > 1:
        setting.append(text("tokens", length=int(length)))
    if rows["machine"].nunique() > 1:
        return [*setting, row["machine"]]
    return setting


def _with_setting(name: str, setting: list[str]) -> str:
    return ", ".join([name, *setting])


def _batch_says(recommended: list[Batch], text: Texts) -> str:
    """Sentences on the recommended batch sizes, and on how many cases are not decided, could go on
    rising, ran out of memory or are doubtful. The last ones tell where sizes were left out."""
    swept = [batch for batch in recommended if batch.batch_size is not None]
    if not swept:
        return f"{text('batch_single')} {text('batch_marks')}"
    sentences = [text("batch_says", share=percent(100 * KNEE))]
    if len(swept) < len(recommended):
        sentences.append(
            text(
                "batch_several",
                swept=len(swept),
                total=len(recommended),
            )
        )
    counts = Counter[str]()
    for batch in swept:
        is_range = batch.batch_size != batch.up_to
        counts["batch_range"] += is_range
        counts["batch_every"] += batch.is_open
        counts["batch_rising"] += batch.rising
        counts["batch_lost"] += batch.too_large is not None
        counts["batch_doubtful"] += batch.is_doubtful
        counts["batch_left_out"] += batch.leaves_out
    for key, count in counts.items():
        if count:
            sentences.append(text(key, count=count, total=len(swept)))
    sentences.append(text("batch_marks"))
    return " ".join(sentences)


def _fits_says(recommended: list[Batch], text: Texts) -> str:
    """Sentences on how many cases fit the smallest card, and on the first that fits none."""
    with_fits = []
    for batch in recommended:
        if any(fit is not None for fit in batch.fits):
            with_fits.append(batch)
    if not with_fits:
        return text("fits_unknown")
    card = {"gigabytes": CARDS_GB[0], "usable": percent(100 * USABLE)}
    count = sum(bool(batch.fits[0]) for batch in with_fits)
    sentences = [
        text(
            "fits_says",
            count=count,
            total=len(with_fits),
            **card,
        )
    ]
    without = len(recommended) - len(with_fits)
    if without:
        sentences.append(text("fits_without", without=without, all=len(recommended)))
    never = [batch.case for batch in with_fits if not any(batch.fits)]
    if never:
        model = never[0]["model"]
        mode = text.name("mode", never[0]["mode"])
        sentences.append(
            text(
                "fits_never",
                model=model,
                mode=mode,
                count=len(never),
            )
        )
    return " ".join(sentences)


def _loader_says(fed: pd.DataFrame, loaders: pd.DataFrame, text: Texts) -> str:
    """Sentences on whether steps wait for a loader, and on a slowdown by one: many workers take
    time from the step without any wait. Rows without doubt are preferred."""
    if fed.empty:
        return text("loader_unknown")
    doubtful = fed[trust.unsure(fed)]
    fed = frames.preferred(fed, ~trust.unsure(fed))
    sentences = [_waits(fed, text)]
    longest_doubtful = doubtful["input_wait_percent"].max()
    if trust.unsure(fed).all():
        sentences.append(text("loader_doubtful"))
    elif longest_doubtful >= WAITING:
        sentences.append(text("loader_left_out", count=len(doubtful), longest=longest_doubtful))
    loaders = frames.own_or_recorded(loaders)
    if len(loaders):
        loaders = loaders[loaders["apart"] & ~trust.unsure(loaders)]
    if len(loaders):
        slowest = frames.lowest(loaders, "kept")
        if slowest["kept"] < 100 - WAITING:
            sentences.append(text("loader_costs", row=slowest))
    return " ".join(sentences)


def _waits(fed: pd.DataFrame, text: Texts) -> str:
    """Sentence on how many steps wait for their loader."""
    ends = claims.ends_of(fed, "input_wait_percent")
    waiting = fed[ends["low"] >= WAITING]
    could_wait = fed[ends["high"] >= WAITING]
    shared: Record = {"total": len(fed), "limit": f"{WAITING:g}"}
    if len(waiting):
        longest = frames.highest(waiting, "input_wait_percent")
        median = fed["input_wait_percent"].median()
        return text("loader_yes", count=len(waiting), row=longest, median=median, **shared)
    if len(could_wait):
        return text("loader_unclear", count=len(could_wait), **shared)
    return text("loader_no", **shared)


def _bf16_says(pairs: pd.DataFrame, text: Texts) -> str:
    """One line each: whether bf16 is emulated, then the runs for which it is worth it or not, best
    first. Synthetic loads come last."""
    if pairs.empty:
        return text("bf16_unknown")
    pairs = pairs.assign(is_load=selection.is_synthetic(pairs))
    sentences = []
    if pairs["emulated"].any():
        sentences.append(_emulated_says(pairs[pairs["emulated"]], text))
    for worth in WORTH:
        here = pairs[pairs["worth"] == worth]
        here = here.sort_values(["is_load", "speedup"], ascending=[True, False])
        if here.empty:
            continue
        named = here.head(NAMED_RUNS).to_dict("records")
        runs = "; ".join(_bf16_run(row, pairs, text) for row in named)
        if len(here) > NAMED_RUNS:
            runs += text("and_more", count=len(here) - NAMED_RUNS)
        sentences.append(text(worth, runs=runs))
    return "\n".join(sentences)


def _bf16_run(row: Row, pairs: pd.DataFrame, text: Texts) -> str:
    """Name of a run in bf16, with its speedup if that is measurable."""
    setting = []
    if row["precision"] != "bf16":
        setting.append(text.name("precision", row["precision"]))
    setting += _distinguishing(row, pairs, text)
    name = f"{row['model']} {text.name('mode', row['mode'])}"
    key = "bf16_run_alone"
    if row["worth"] in MEASURABLE:
        key = "bf16_run"
        if max(row["at_best"], row["speedup"]) > GAIN * min(row["at_best"], row["speedup"]):
            key = "bf16_run_best"
    return text(
        key,
        run=_with_setting(name, setting),
        batch_size=int(row["batch_size"]),
        speedup=significant(row["speedup"]),
        ends=_ends_of_factor(row, text),
        best=significant(row["at_best"]),
    )


def _emulated_says(pairs: pd.DataFrame, text: Texts) -> str:
    """Sentence on emulated bf16, with how much longer steps take where that is measurable."""
    slower = 1 / pairs.loc[pairs["worth"] == "bf16_no", "speedup"]
    slower = slower[slower > 1]
    if slower.empty:
        return text("bf16_emulated_alone")
    low = significant(slower.min(), 2)
    high = significant(slower.max(), 2)
    key = "bf16_emulated_one"
    if low != high:
        key = "bf16_emulated"
    return text(key, low=low, high=high)
