"""Doubts about measured rows, the precision of their times, and their duty cycle. Used by the page,
the terminal and the figures."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, significant
from mfulab.core.parts import Record, pick_all
from mfulab.lab.planning.naming import MEASURE, short
from mfulab.lab.report import frames
from mfulab.lab.tables import consistency
from mfulab.measurements.registry import TABLES
from mfulab.mfu.causes import FAR_CEILING
from mfulab.mfu.three_lines import EAGER
from mfulab.timing.probe import OTHERS

ABOVE = 105.0  # % of a measured ceiling: more than two measurements of it may differ
FALLING = 0.9  # ratio of step times to a smaller batch's, beyond noise
PAUSE_S = 60.0  # a longer gap between runs is the user's pause, not part of the sweep
VAGUEST = 100  # factor of uncertainty above which no number is given
CLOCK_S = 1.0  # resolution of starts
# Column with the factor by which a time may be off in addition to its interval: OFF if doubtful
# (processes count as slow from 1.3), infinite if it contradicts other values.
REACH = "reach"
OFF = 1.5
DOUBTS = "doubts"  # column with one bit for each reason
STEP = ["hardware", "recorded", "run"]  # identify a step, if `run` lacks the batch size
STEPS = {"profile": "profile_step", "matmul": "bench_matmul"}

# Reasons, by their keys in section `trust`.
WORDS = (
    *("other_processes", "beside", "held_back", "stolen", "disturbed"),
    *("unsteady", "above_peak", "falling", "far_ceiling"),
    *("phases", "part", "update", "end_to_end", "rungs", "levels"),  # of tables/consistency
)
# Flags of a verdict: the device did other work meanwhile, or was slowed down.
DISTURBING = WORDS[:5]
# Keys of a run's name whose values have words, by the kind of these.
WORDED_SETTINGS = {"workload": "mode", "precision": "precision", "execution": "execution"}


class Doubt(NamedTuple):
    """A reason for doubt, by its key in section `trust`, or a doubtful ceiling, by its name. Holds
    the runs concerned and the steps to repeat."""

    key: str
    runs: tuple[str, ...]
    steps: tuple[str, ...] = ("ceilings",)
    worst: float = 0.0  # for a ceiling: largest % of it that a run reached
    machine: str = ""  # for a ceiling, if several machines have one
    is_far: bool = False  # a ceiling far below the computed peak


class Marks(NamedTuple):
    """Number of hollow marks in a page's figures, whose claim could be false, and of all marks."""

    hollow: int
    total: int


def judged(tables: frames.Tables) -> frames.Tables:
    """Adds the columns of `with_doubts` to all tables, so that they are computed only once, and how
    far a single process is usually off."""
    found = dict(frames.with_usual(tables))
    for name in TABLES:
        if name in found:
            found[name] = with_doubts(found[name])
    return found


def with_doubts(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds the columns `doubtful`, `impossible`, `doubts` and `reach`, unless they are there.
    `doubts` has one bit for each reason, by its index in WORDS."""
    if "doubtful" in rows:
        return rows
    failed = consistency.failed(rows)
    masks = _masks(rows, failed)
    doubts = pd.Series(0, rows.index)
    for key, mask in masks.items():
        doubts = doubts + mask * 2 ** WORDS.index(key)
    doubtful = doubts > 0
    is_impossible = pd.DataFrame(failed, index=rows.index).any(axis=1)
    contradicts = is_impossible | masks["far_ceiling"]
    for key in ("above_peak", "falling"):
        if key in masks:
            contradicts |= masks[key]
    reach = pd.Series(1.0, rows.index)
    reach = reach.mask(doubtful, OFF)
    reach = reach.mask(contradicts, math.inf)
    return rows.assign(
        doubts=doubts,
        doubtful=doubtful,
        impossible=is_impossible,
        reach=reach,
    )


def doubtful(rows: pd.DataFrame) -> pd.Series:
    """True for rows measured on a disturbed machine or without reaching a steady state. In a
    figure, only for rows whose claim could be false. Wide intervals are no doubt."""
    return with_doubts(rows)["doubtful"]


def unsure(rows: pd.DataFrame) -> pd.Series:
    """True for rows with any reason for doubt, even if their claim holds."""
    if "doubts" in rows:
        return rows["doubts"] > 0
    return doubtful(rows)


def impossible(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose values contradict each other or those of related rows."""
    if "impossible" in rows:
        return rows["impossible"]
    return consistency.any_failed(rows)


def _masks(rows: pd.DataFrame, failed: Mapping[str, pd.Series]) -> dict[str, pd.Series]:
    """Mask of rows for each reason. `failed` holds those of `consistency.failed`."""
    ok = pd.Series(True, rows.index)
    if "status" in rows:
        ok = rows["status"] == "ok"
    masks = _flagged(rows)
    if "verdict_flags" not in rows and "other_processes_percent" in rows:
        masks["beside"] = rows["other_processes_percent"] >= 100 * OTHERS
    if {"measured_tflop_s", "computed_tflop_s", "emulated"} <= set(rows):
        masks["far_ceiling"] |= _is_far(rows)
    if "steady" in rows:
        unsteady = (rows["steady"] == False).fillna(False).astype(bool)  # noqa: E712 (may be missing)
        if "replicates" in rows:
            unsteady &= rows["replicates"].notna()  # not those read from a trace
        masks["unsteady"] = unsteady
    if "mfu_percent" in rows:
        masks["above_peak"] = consistency.above_peak(rows)
    if {"mfu_percent", "time_s", "batch_size"} <= set(rows):
        masks["falling"] = falling(rows) | overtaken(rows)
    return {key: ok & mask for key, mask in (masks | dict(failed)).items()}


def _flagged(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Mask of rows for each reason that the flags of their verdicts tell."""
    flags = rows.get("verdict_flags", pd.Series("", rows.index))
    cells_of = defaultdict[str, list[str]](list)
    for cell in flags.unique():
        if isinstance(cell, str):
            for key in verdicts.keys(cell):
                cells_of[key].append(cell)
    return {key: flags.isin(cells_of[key]) for key in (*DISTURBING, "far_ceiling")}


def doubts(tables: frames.Tables) -> list[Doubt]:
    """Returns the reasons to doubt what was measured here: impossible ceilings first, then the most
    frequent."""
    ceilings = tables["ceilings"]
    return _far_ceilings(ceilings) + _exceeded_ceilings(ceilings) + _doubts_of_steps(tables)


def _doubts_of_steps(tables: frames.Tables) -> list[Doubt]:
    """Reasons to doubt steps and matmuls, the most frequent first."""
    tried = {}
    for table, steps in _own_or_recorded_steps(tables).items():
        tried[STEPS[table]] = with_doubts(steps)[["run", "doubts"]]
    rows = pd.concat(tried, names=["step"]).reset_index("step")
    found = []
    for index, key in enumerate(WORDS):
        here = rows[(rows["doubts"] & 2**index) > 0]
        if here.empty:  # of no rows pandas would count texts
            continue
        # Runs of the step with most of them come first.
        here = here.assign(count=here["step"].map(here["step"].value_counts()))
        here = here.sort_values("count", ascending=False, kind="stable")
        again = tuple(here["step"].unique())
        if key == "far_ceiling":  # the runs' own times are right
            again = ("ceilings",)
        found.append(Doubt(key, tuple(here["run"]), again))
    found.sort(key=lambda doubt: len(doubt.runs), reverse=True)
    return found


def _exceeded_ceilings(ceilings: pd.DataFrame) -> list[Doubt]:
    """Formats in which a run of the sweep exceeded the ceiling that was measured before. Ceilings
    of a quick search may be exceeded."""
    rows = frames.ok(frames.own_or_recorded(ceilings), "swept_tflop_s")
    rows = rows[~rows["run"].str.contains("search=quick", regex=False)]
    rows = rows.assign(share=100 * rows["measured_tflop_s"] / rows["swept_tflop_s"], machine="")
    if rows["hardware"].nunique() > 1:
        rows["machine"] = rows["hardware"]
    exceeded = rows[rows["share"] > ABOVE].drop_duplicates(["ceiling", "machine"])
    found = []
    for row in exceeded.itertuples():
        runs = (row.raised_by,)
        found.append(
            Doubt(
                row.ceiling,
                runs,
                worst=row.share,
                machine=row.machine,
            )
        )
    return found


def _far_ceilings(ceilings: pd.DataFrame) -> list[Doubt]:
    """Measured ceilings of this machine below FAR_CEILING % of the computed peak."""
    if "computed_tflop_s" not in ceilings or "emulated" not in ceilings:
        return []
    rows = frames.ok(frames.own_or_recorded(ceilings), "measured_tflop_s", "computed_tflop_s")
    rows = rows.assign(share=100 * rows["measured_tflop_s"] / rows["computed_tflop_s"])
    found = []
    for row in rows[_is_far(rows)].drop_duplicates("ceiling").itertuples():
        found.append(
            Doubt(
                row.ceiling,
                (row.run,),
                worst=row.share,
                is_far=True,
            )
        )
    return found


def _is_far(ceilings: pd.DataFrame) -> pd.Series:
    """True for ceilings below FAR_CEILING % of the computed peak, of formats that are not
    emulated."""
    is_emulated = ceilings["emulated"].fillna(False).astype(bool)
    share = 100 * ceilings["measured_tflop_s"] / ceilings["computed_tflop_s"]
    return ~is_emulated & (share < FAR_CEILING)


def _own_or_recorded_steps(tables: frames.Tables) -> frames.Tables:
    """Steps and matmuls measured here, or all recorded ones if there are none."""
    rows = pick_all(tables, STEPS)
    is_here = any((~table["recorded"]).any() for table in rows.values())
    if not is_here:
        return rows
    return {name: frames.those(table, ~table["recorded"]) for name, table in rows.items()}


def marks(tables: frames.Tables, drawn: Iterable[pd.DataFrame]) -> Marks:
    """Counts the marks in `drawn`, the rows of figures: of rows measured here, or of recorded ones
    if there are none."""
    is_here = not all(rows["recorded"].all() for rows in _own_or_recorded_steps(tables).values())
    hollow = total = 0
    for rows in drawn:
        own = rows
        if is_here:
            own = rows[rows["recorded"].ne(True)]  # some have none
        hollow += int(own["doubtful"].sum())
        total += len(own)
    return Marks(hollow, total)


def falling(rows: pd.DataFrame) -> pd.Series:
    """True for a step that takes less time than the same step at a smaller batch, though it does
    more."""
    timed = _by_batch(rows)
    longest = timed.groupby([*STEP, "batch_size"])["time_s"].max()
    longest_so_far = longest.groupby(STEP).cummax()
    smaller = _time_at_batch(longest_so_far.groupby(STEP).shift(), timed)
    is_falling = timed["time_s"] < FALLING * smaller
    return is_falling.reindex(rows.index, fill_value=False)


def overtaken(rows: pd.DataFrame) -> pd.Series:
    """True for a step that takes more time than the same step at a larger batch, so that something
    must have slowed it down."""
    timed = _by_batch(rows)
    shortest = timed.groupby([*STEP, "batch_size"])["time_s"].min()
    largest_first = shortest[::-1]
    shortest_so_far = largest_first.groupby(STEP).cummin()
    larger = _time_at_batch(shortest_so_far.groupby(STEP).shift(), timed)
    is_overtaken = FALLING * timed["time_s"] > larger
    return is_overtaken.reindex(rows.index, fill_value=False)


def _by_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Timed steps with a batch size, with `run` stripped of it."""
    timed = rows[[*STEP, "time_s", "batch_size"]]
    timed = timed.dropna(subset=["time_s", "batch_size"])
    names = timed["run"].str.replace(consistency.BATCH, "", regex=True)
    return timed.assign(run=names)


def _time_at_batch(times: pd.Series, timed: pd.DataFrame) -> np.ndarray:
    """Looks up the time of each row's step and batch size in `times`."""
    steps = pd.MultiIndex.from_frame(timed[[*STEP, "batch_size"]])
    return times.reindex(steps).to_numpy()


class Summary(NamedTuple):
    """Doubts in words: a headline, a line for each reason, and the command to measure again. All
    are empty if nothing is doubtful; the command also if nothing was measured here."""

    headline: str
    lines: list[str]
    again: str


def summary(tables: frames.Tables, language: str = "en", marks: Marks | None = None) -> Summary:
    """Tells what is doubtful. `marks` are those of a page."""
    tables = judged(tables)
    text = Texts(language, "trust")
    reasons = doubts(tables)
    broken = failed(tables, language)
    lines = [_line(doubt, text) for doubt in reasons]
    if broken:
        lines.insert(0, broken)
    if not lines:
        return Summary("", [], "")
    timed = []
    for rows in _own_or_recorded_steps(tables).values():
        timed.append(doubtful(frames.ok(rows, "time_s")))
    is_doubtful = pd.concat(timed)
    if is_doubtful.any():
        count = int(is_doubtful.sum())
        headline = _rows_and_marks(marks, count, len(is_doubtful), text)
    elif reasons:
        headline = text("ceilings_only")
    else:
        headline = lines.pop(0)
    return Summary(headline, lines, _again(tables, reasons))


def _again(tables: frames.Tables, reasons: Iterable[Doubt]) -> str:
    """Command that repeats the steps of all reasons, and steps that failed; empty if nothing was
    measured here."""
    rows = pd.concat([tables[table][["experiment", "recorded"]] for table in STEPS])
    own = rows[~rows["recorded"]]
    if own.empty:
        return ""
    steps = dict[str, None]()  # in order, each once
    for doubt in reasons:
        steps |= dict.fromkeys(doubt.steps)
    for table, step in STEPS.items():
        if len(_failed(tables[table])):
            steps[step] = None
    command = f"{MEASURE} --forcerun {' '.join(steps)}"
    experiments = ",".join(filter(None, own["experiment"].unique()))
    if experiments:
        return f"{command} --config experiment={experiments}"
    return command


def _rows_and_marks(marks: Marks | None, count: int, total: int, text: Texts) -> str:
    """Sentence on the number of doubtful rows, and on how many marks of the page they affect, if
    `marks` were counted."""
    if marks is None:
        return text("rows_alone", count=count, total=total)
    if marks.hollow:
        counts = {"hollow": marks.hollow, "marks": marks.total}
        return text("marks_turn", count=count, total=total, **counts)
    return text("marks_hold", count=count, total=total)


def precision(tables: frames.Tables, language: str = "en") -> str:
    """Sentences on the precision of times and on what the machine cost; empty if nothing was
    measured twice."""
    text = Texts(language, "trust")
    timed = []
    for steps in _own_or_recorded_steps(tables).values():
        columns = ["run", "precision_percent", "machine_cost_percent"]
        timed.append(frames.ok(steps, "time_s").reindex(columns=columns))
    rows = pd.concat(timed)
    interval = _typical(rows, "precision_percent", text)
    cost = _typical(rows, "machine_cost_percent", text)
    sentences = []
    if interval:
        known = int(rows["precision_percent"].notna().sum())
        several = ""
        if known < len(rows):
            several = text("several", count=known, total=len(rows))
        sentences.append(_how_precise(interval, several, text))
        if several:
            sentences.append(text("alone", count=len(rows) - known))
    if cost:
        sentences.append(text("machine_cost", **cost))
    return " ".join(sentences)


def _how_precise(interval: Record, several: str, text: Texts) -> str:
    """Sentence on the typical and the widest interval. From ±100 % it gives a factor instead, as
    percent would mislead."""
    key = "precision"
    widest = interval["worst"]
    if interval["half"] >= 100:
        key = "precision_none"
        widest = interval["half"]
    elif interval["worst"] >= 100:
        key = "precision_wide"
    factor = 1 + widest / 100
    if factor < VAGUEST:
        shown_factor = significant(factor, 2)
    elif key == "precision_none":
        shown_factor = str(VAGUEST)
    else:
        shown_factor = f"> {VAGUEST}"
    return text(key, **interval, several=several, factor=shown_factor)


def _named(run: str, text: Texts) -> str:
    """Name of a run for a sentence: model or kernel, workload, format, batch or size, and an
    execution that is not eager, without further settings."""
    values = dict[str, str]()
    for part in run.split(","):
        key, _, value = part.partition("=")
        values.setdefault(key, value)
    name = values.get("model") or values.get("kernel")
    if not name:
        return short(run)
    words = [name]
    for key, kind in WORDED_SETTINGS.items():
        value = values.get(key, "")
        if value and value != EAGER:
            words.append(text.name(kind, value))
    if "batch_size" in values:
        words.append(text("batch", batch=values["batch_size"]))
    if "size" in values:
        words.append(values["size"])
    return " · ".join(words)


def _typical(rows: pd.DataFrame, column: str, text: Texts) -> Record:
    """Median of a column, its largest value, and the name of that run; empty if there are no
    values."""
    rows = rows.dropna(subset=[column])
    if rows.empty:
        return {}
    worst = rows.loc[rows[column] == rows[column].max()].iloc[0]
    return {
        "half": rows[column].median(),
        "worst": worst[column],
        "run": _named(worst["run"], text),
    }


def failed(tables: frames.Tables, language: str = "en") -> str:
    """Sentence on runs that failed here, with the first one's message; empty if none failed."""
    rows = pd.concat([_failed(tables[table])[["run", "message"]] for table in STEPS])
    if rows.empty:
        return ""
    text = Texts(language, "trust")
    first = rows.iloc[0]
    message = verdicts.message(first["message"], language)
    return text(
        "failed",
        count=len(rows),
        run=_named(first["run"], text),
        message=message,
    )


def _failed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows["recorded"] & rows["status"].isin(["failed", "incorrect"])]


def _line(doubt: Doubt, text: Texts) -> str:
    run = _named(doubt.runs[0], text)
    if doubt.machine:
        run = text("with_setting", name=run, setting=doubt.machine)
    if doubt.is_far:
        return text("ceiling_is_far", precision=doubt.key, share=percent(doubt.worst))
    if doubt.worst:
        return text(
            "low_ceiling",
            precision=doubt.key,
            share=percent(doubt.worst),
            run=run,
        )
    return text(doubt.key, count=len(doubt.runs), run=run)


class DutyCycle(NamedTuple):
    """Total and measured time of `runs` runs, in seconds. Time in which several runs overlap counts
    for each."""

    runs: int
    total_s: float
    measured_s: float
    duty_percent: float


def duty_cycle(rows: pd.DataFrame) -> DutyCycle | None:
    """Duty cycle of rows, including gaps between runs but not pauses. None if no row has its
    times."""
    begins = pd.to_datetime(rows["started_at"], utc=True, errors="coerce")
    begin = (begins - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    timed = rows.assign(begin=begin).dropna(subset=["begin", "process_s"])
    total_s = 0.0
    for _, here in timed.groupby("hardware"):
        total_s += _total_s(zip(here["begin"], here["process_s"], strict=True))
    measured_s = timed["measured_s"].sum()
    if total_s > 0:
        return DutyCycle(len(timed), total_s, measured_s, 100 * measured_s / total_s)
    return None


def _total_s(runs: Iterable[tuple[float, float]]) -> float:
    """Sum of the durations of one machine's runs (start, length), and of the gaps between them, in
    seconds."""
    ordered = sorted(runs)
    latest = ordered[0][0]
    between_s = 0.0
    for start, length in ordered:
        begin = start
        # Starts are whole seconds: this run began after the previous one ended.
        if latest - CLOCK_S < start < latest:
            begin = latest
        gap_s = max(0.0, begin - latest)
        if gap_s <= PAUSE_S:
            between_s += gap_s
        latest = max(latest, begin + length)
    return between_s + sum(length for _, length in ordered)
