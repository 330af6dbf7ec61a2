"""Doubts about measured rows, their precision and their duty cycle; for the page, the terminal and
the figures."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
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
from mfulab.timing.probe import OTHERS

ABOVE = 105.0  # % of a measured ceiling: more than it may differ by between two measurements of it
FAR = 5.0  # % of the computed peak: a measured ceiling below it is no ceiling of the device
FALLING = 0.9  # of a smaller batch's step time: no noise that intervals allow
PAUSE_S = 60.0  # a longer gap between two runs is the user's pause, not a cost of the sweep
VAGUEST = 100  # a factor beyond which no number is told: a time is unknown then
CLOCK_S = 1.0  # starts are told in whole seconds
# Column, and factor by which a doubtful time may be off besides its interval: a process counts as
# slow from 1.3 on. What contradicts itself may be off by any.
REACH = "reach"
DOUBTS = "doubts"  # column: a bit a reason
OFF = 1.5
STEP = ["hardware", "recorded", "run"]  # without its batch size
STEPS = {"profile": "profile_step", "matmul": "bench_matmul"}

# Reasons, by their keys in section `trust`.
WORDS = (
    *("other_processes", "beside", "held_back", "stolen", "disturbed"),
    *("unsteady", "above_peak", "falling"),
    *("phases", "part", "update", "end_to_end", "rungs", "levels"),  # of tables/consistency
)
DISTURBING = WORDS[
    :5
]  # flags of a verdict: the device did something else meanwhile, or not what it can


class Doubt(NamedTuple):
    """Runs that are doubtful for one reason, by its key in section `trust`, or a ceiling; with the
    steps to repeat."""

    key: str
    runs: tuple[str, ...]
    steps: tuple[str, ...] = ("ceilings",)
    worst: float = 0.0  # percent of the ceiling
    machine: str = ""  # of a ceiling, where several machines have one
    is_far: bool = False  # a ceiling far below the computed peak


class Marks(NamedTuple):
    """Marks of a page's figures: all, and those that are hollow, since what they claim could
    turn."""

    hollow: int
    total: int


def judged(tables: frames.Tables) -> frames.Tables:
    """The tables with the columns of `with_doubts`, so that nothing has to judge their rows
    again."""
    return {name: with_doubts(table) if name in TABLES else table for name, table in tables.items()}


def with_doubts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with columns `doubtful`, `impossible`, `doubts` and `reach`, if they are not judged
    yet; `doubts` has a bit a reason, by its place in WORDS."""
    if "doubtful" in rows:
        return rows
    failed = consistency.failed(rows)
    masks = _masks(rows, failed)
    doubts = sum(mask * 2 ** WORDS.index(key) for key, mask in masks.items())
    any_failed = pd.DataFrame(failed, index=rows.index).any(axis=1)
    contradicts = any_failed | masks.get("above_peak", False) | masks.get("falling", False)
    reach = pd.Series(1.0, rows.index).mask(doubts > 0, OFF).mask(contradicts, math.inf)
    judged = {"doubts": doubts, "doubtful": doubts > 0, "impossible": any_failed, REACH: reach}
    return rows.assign(**judged)


def doubtful(rows: pd.DataFrame) -> pd.Series:
    """True for each row measured on a disturbed machine or not to an end, and in a figure only
    where its mark's claim could turn; wide intervals are no doubt."""
    return with_doubts(rows)["doubtful"]


def unsure(rows: pd.DataFrame) -> pd.Series:
    """True for each row that has a reason for doubt, whatever is claimed of it."""
    if "doubts" in rows:
        return rows["doubts"] > 0
    return doubtful(rows)


def impossible(rows: pd.DataFrame) -> pd.Series:
    """True for each row whose columns, or those of its neighbours, cannot all be right."""
    if "impossible" in rows:
        return rows["impossible"]
    return consistency.any_failed(rows)


def _masks(rows: pd.DataFrame, failed: Mapping[str, pd.Series]) -> dict[str, pd.Series]:
    """For each reason a flag a row; `failed` are those of `consistency`."""
    ok = rows.get("status", pd.Series("ok", rows.index)) == "ok"
    timed = ok & rows.get("replicates", ok).notna()  # not what was read from a trace
    flags = rows.get("verdict_flags", pd.Series("", rows.index))
    keys = {}
    for cell in flags.unique():
        if isinstance(cell, str):
            keys[cell] = verdicts.keys(cell)
    masks = dict[str, pd.Series]()
    for key in DISTURBING:
        masks[key] = ok & flags.isin([cell for cell, held in keys.items() if key in held])
    if "verdict_flags" not in rows and "other_processes_percent" in rows:
        masks["beside"] = ok & (rows["other_processes_percent"] >= 100 * OTHERS)
    if "steady" in rows:
        masks["unsteady"] = timed & (rows["steady"] == False).fillna(False).astype(bool)  # noqa: E712 (may be missing)
    if "mfu_percent" in rows:
        masks["above_peak"] = ok & consistency.above_peak(rows)
    if {"mfu_percent", "time_s", "batch_size"} <= set(rows):
        masks["falling"] = ok & (falling(rows) | overtaken(rows))
    return masks | {key: ok & mask for key, mask in failed.items()}


def doubts(tables: frames.Tables) -> list[Doubt]:
    """Reasons to doubt what was measured here, the most frequent first; impossible ceilings before
    all."""
    tried = {
        STEPS[table]: with_doubts(rows)[["run", "doubts"]] for table, rows in _own(tables).items()
    }
    rows = pd.concat(tried, names=["step"]).reset_index("step")
    of_steps = []
    for index, key in enumerate(WORDS):
        here = rows[(rows["doubts"] & 2**index) > 0]
        if not len(here):  # of no rows pandas would count texts
            continue
        # Runs of the step with most of them come first.
        here = here.sort_values(
            "step", key=lambda step: -step.map(step.value_counts()), kind="stable"
        )
        of_steps.append(Doubt(key, (*here["run"],), (*here["step"].unique(),)))
    of_steps.sort(key=lambda doubt: -len(doubt.runs))
    # Formats in which a run of the sweep was faster than all that their ceiling's own runs reached.
    # A quick search is made to be passed.
    rows = frames.ok(frames.own(tables["ceilings"]), "swept_tflop_s")
    rows = rows[~rows["run"].str.contains("search=quick", regex=False)]
    rows = rows.assign(share=100 * rows["measured_tflop_s"] / rows["swept_tflop_s"])
    rows = rows.assign(machine=rows["hardware"] if rows["hardware"].nunique() > 1 else "")
    low = rows[rows["share"] > ABOVE].drop_duplicates(["ceiling", "machine"]).itertuples()
    return [
        *_far_ceilings(tables["ceilings"]),
        *(
            Doubt(row.ceiling, (row.raised_by,), worst=row.share, machine=row.machine)
            for row in low
        ),
        *of_steps,
    ]


def _far_ceilings(ceilings: pd.DataFrame) -> list[Doubt]:
    """Measured ceilings of this machine that are below FAR percent of the computed peak."""
    if "computed_tflop_s" not in ceilings or "emulated" not in ceilings:
        return []
    rows = frames.ok(frames.own(ceilings), "measured_tflop_s", "computed_tflop_s")
    rows = rows[~rows["emulated"].fillna(False).astype(bool)]
    rows = rows.assign(share=100 * rows["measured_tflop_s"] / rows["computed_tflop_s"])
    far = rows[rows["share"] < FAR].drop_duplicates("ceiling")
    return [
        Doubt(row.ceiling, (row.run,), worst=row.share, is_far=True) for row in far.itertuples()
    ]


def _own(tables: frames.Tables) -> frames.Tables:
    """Steps and matmuls that were measured here, or the recorded ones where neither was."""
    rows = pick_all(tables, STEPS)
    is_here = any((~table["recorded"]).any() for table in rows.values())
    return {
        name: frames.those(table, ~table["recorded"]) if is_here else table
        for name, table in rows.items()
    }


def marks(tables: frames.Tables, drawn: Iterable[pd.DataFrame]) -> Marks:
    """Marks of the rows that figures draw: of those measured here, or of recorded ones where nothing
    was."""
    is_here = not all(rows["recorded"].all() for rows in _own(tables).values())
    hollow = total = 0
    for rows in drawn:
        own = rows
        if is_here:
            own = rows[rows["recorded"].ne(True)]  # some have none
        hollow += int(own["doubtful"].sum())
        total += len(own)
    return Marks(hollow, total)


def falling(rows: pd.DataFrame) -> pd.Series:
    """True for a step that takes less time than the same step of a smaller batch, though more is to
    be done."""
    timed = _by_batch(rows)
    longest = timed.groupby([*STEP, "batch_size"])["time_s"].max().groupby(STEP).cummax()
    smaller = _of_batch(longest.groupby(STEP).shift(), timed)
    return (timed["time_s"] < FALLING * smaller).reindex(rows.index, fill_value=False)


def overtaken(rows: pd.DataFrame) -> pd.Series:
    """True for a step that takes more time than the same step of a larger batch: what disturbs a
    step makes it longer."""
    timed = _by_batch(rows)
    shortest = timed.groupby([*STEP, "batch_size"])["time_s"].min()[::-1].groupby(STEP).cummin()
    larger = _of_batch(shortest.groupby(STEP).shift(), timed)
    return (FALLING * timed["time_s"] > larger).reindex(rows.index, fill_value=False)


def _by_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Timed steps of a batch size, whose `run` names them without it."""
    timed = rows[[*STEP, "time_s", "batch_size"]].dropna(subset=["time_s", "batch_size"])
    return timed.assign(run=timed["run"].str.replace(consistency.BATCH, "", regex=True))


def _of_batch(times: pd.Series, timed: pd.DataFrame) -> np.ndarray:
    """The time of each row's step and batch size."""
    return times.reindex(pd.MultiIndex.from_frame(timed[[*STEP, "batch_size"]])).to_numpy()


def summary(
    tables: frames.Tables, language: str = "en", marks: Marks | None = None
) -> tuple[str, list[str], str]:
    """(headline, a line a reason, command that measures again); empty texts where nothing is
    doubtful, and no command where nothing was measured here. `marks` are those of a page."""
    tables = judged(tables)
    text = Texts(language, "trust")
    reasons = doubts(tables)
    broken = failed(tables, language)
    if not reasons and not broken:
        return "", [], ""
    timed = pd.concat([doubtful(frames.ok(rows, "time_s")) for rows in _own(tables).values()])
    lines = [*filter(None, [broken]), *(_line(doubt, text) for doubt in reasons)]
    again = list(chain.from_iterable(doubt.steps for doubt in reasons))
    for table in STEPS:
        if broken and len(_failed(tables[table])):
            again.append(STEPS[table])
    steps = dict.fromkeys(again)
    rows = pd.concat([tables[table][["experiment", "recorded"]] for table in STEPS])
    experiments = ",".join(filter(None, rows.loc[~rows["recorded"], "experiment"].unique()))
    chosen = ""
    if experiments:
        chosen = f" --config experiment={experiments}"
    command = ""
    if not rows["recorded"].all():
        command = f"{MEASURE} --forcerun {' '.join(steps)}{chosen}"
    says = ""
    if timed.any():
        says = _of_marks(marks, int(timed.sum()), len(timed), text)
    return says or (text("ceilings_only") if reasons else lines.pop(0)), lines, command


def _of_marks(marks: Marks | None, count: int, total: int, text: Texts) -> str:
    """Sentence on the rows that give reason for doubt, and what that touches: marks of the page, none
    of them, or where they are not counted, that hollow ones tell."""
    if marks is None:
        return text("rows_alone", count=count, total=total)
    if marks.hollow:
        counts = {"hollow": marks.hollow, "marks": marks.total}
        return text("marks_turn", count=count, total=total, **counts)
    return text("marks_hold", count=count, total=total)


def precision(tables: frames.Tables, language: str = "en") -> str:
    """Sentences on how precise the times are, and on what the machine cost; empty where nothing was
    measured twice."""
    text = Texts(language, "trust")
    columns = ["precision_percent", "machine_cost_percent"]
    timed = [frames.ok(steps, "time_s") for steps in _own(tables).values()]
    rows = pd.concat(
        [steps.reindex(columns=["run", *columns]) for steps in timed]
    )  # few of many columns
    interval, cost = (_typical(rows, column) for column in columns)
    known = int(rows["precision_percent"].notna().sum())
    several = ""
    if known < len(rows):
        several = text("several", count=known, total=len(rows))
    sentences = []
    if cost:
        sentences = [text("machine_cost", **cost)]
    if interval:  # from ±100 % on a factor, as percent would mislead
        vague = interval["half"] >= 100
        wide = interval["worst"] >= 100
        if vague:
            key = "precision_none"
        elif wide:
            key = "precision_wide"
        else:
            key = "precision"
        factor = 1 + interval["half" if vague else "worst"] / 100
        beyond = str(VAGUEST) if vague else f"> {VAGUEST}"
        told = significant(factor, 2) if factor < VAGUEST else beyond
        sentences.insert(0, text(key, **interval, several=several, factor=told))
    return " ".join(sentences)


def _named(run: str) -> str:
    """A run as a sentence names it: model or kernel, batch or size, format; its settings stand in
    the table."""
    words = short(run).split()
    plain = [word for word in words if "=" not in word]
    return " ".join(plain or words)


def _typical(rows: pd.DataFrame, column: str) -> Record:
    """The median of a column, its largest value and that run's name; empty without a value."""
    rows = rows.dropna(subset=[column])
    if rows.empty:
        return {}
    worst = rows.loc[rows[column] == rows[column].max()].iloc[0]
    return {"half": rows[column].median(), "worst": worst[column], "run": _named(worst["run"])}


def failed(tables: frames.Tables, language: str = "en") -> str:
    """Sentence on the runs that failed here, with the first one's message; empty without one."""
    rows = pd.concat([_failed(tables[table])[["run", "message"]] for table in STEPS])
    if rows.empty:
        return ""
    text = Texts(language, "trust")
    first = rows.iloc[0]
    message = verdicts.message(first["message"], language)
    return text("failed", count=len(rows), run=_named(first["run"]), message=message)


def _failed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows["recorded"] & rows["status"].isin(["failed", "incorrect"])]


def _line(doubt: Doubt, text: Texts) -> str:
    run = _named(doubt.runs[0]) + (f" ({doubt.machine})" if doubt.machine else "")
    if doubt.is_far:
        return text("far_ceiling", precision=doubt.key, share=percent(doubt.worst))
    if doubt.worst:
        return text("low_ceiling", precision=doubt.key, share=percent(doubt.worst), run=run)
    return text(doubt.key, count=len(doubt.runs), run=run)


class DutyCycle(NamedTuple):
    """Total and measured time of `runs` runs, in seconds; a second that several share counts once
    for each."""

    runs: int
    total_s: float
    measured_s: float
    duty_percent: float


def duty_cycle(rows: pd.DataFrame) -> DutyCycle | None:
    """Duty cycle of rows, gaps between their runs included, pauses left out; None where no row has
    its times."""
    begins = pd.to_datetime(rows["started_at"], utc=True, errors="coerce")
    begin = (begins - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    timed = rows.assign(begin=begin).dropna(subset=["begin", "process_s"])
    total_s = sum(
        _total_s(zip(here["begin"], here["process_s"], strict=True))
        for _, here in timed.groupby("hardware")
    )
    measured_s = timed["measured_s"].sum()
    if total_s > 0:
        return DutyCycle(len(timed), total_s, measured_s, 100 * measured_s / total_s)
    return None


def _total_s(runs: Iterable[tuple[float, float]]) -> float:
    """Seconds of one machine's runs (start, length), and of the gaps in which none was under
    way."""
    ordered = sorted(runs)
    latest = ordered[0][0]
    between_s = 0.0
    for start, length in ordered:
        # in that second, once the one before had ended
        begin = latest if latest - CLOCK_S < start < latest else start
        if begin - latest <= PAUSE_S:
            between_s += max(0.0, begin - latest)
        latest = max(latest, begin + length)
    return between_s + sum(length for _, length in ordered)
