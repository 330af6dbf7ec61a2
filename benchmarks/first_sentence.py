"""Judges the first sentence of a page: the run that it is about is measured once more, and what was
told of it must hold."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.core.replicates import base_name
from mfulab.lab.report import claims, figures, frames, selection, trust
from mfulab.lab.report.figures import headroom, mfu_versus_utilization

TRUE = "true"
TABLES = "results/again"  # tables of the second measurement, in the folder of the sweep
STEP = "profile_step"
# Columns that the sentence is about, and their words.
SHARES = {"mfu_percent": "MFU", "utilization_percent": "utilization"}


@dataclass(frozen=True)
class Told:
    """Run that a page's first sentence is about. `may_turn` is True if the page draws its largest
    loss, from which the cause follows, as doubtful."""

    row: pd.Series
    may_turn: bool = False


def told(tables: frames.Tables) -> Told | None:
    """Finds the run of the page's first sentence in judged tables; None without a step that has
    both MFU and utilization."""
    charted = selection.drawable(mfu_versus_utilization, tables)
    if charted.empty:
        return None
    row = selection.first_run(charted)
    losses = claims.turns(headroom, headroom.rows(tables))
    may_turn = row.name in losses.index and bool(losses.loc[row.name, "doubtful"])
    return Told(row, may_turn)


def sentence(tables: frames.Tables) -> str:
    """The sentence of the first figure, with which a page begins; empty without a step that has
    both MFU and utilization. `tables` are judged."""
    charted = selection.drawable(mfu_versus_utilization, tables)
    if charted.empty:
        return ""
    text = Texts(section="mfu_versus_utilization")
    return figures.finding(mfu_versus_utilization, frames.in_words(charted, text), text)


def measured_again(
    folder: Path, tables: frames.Tables, run: Callable[..., object], *sweep: str
) -> str:
    """Measures the run of the first sentence again in the sweep's `folder`. Returns the answer of
    `judged`.

    Removes the run's rows and gives the command `sweep` again, as it measures only runs without a
    row. `run` runs Python with its arguments in that folder.
    """
    first = told(tables)
    if first is None:
        return "no run has both MFU and utilization"
    if first.row["recorded"] or first.row["is_read"]:
        return "not about this machine"
    for row in rows_of(folder, first.row["run"]):
        row.unlink()
    run(*sweep)
    plans = [str(path.relative_to(folder)) for path in sorted(folder.glob("results/*/plan/*.json"))]
    run("-m", "mfulab", "tables", "--manifest", *plans, "--out", TABLES)
    read, _ = frames.read(folder / TABLES)
    steps = trust.judged(read)["profile"]
    again = steps[~steps["recorded"] & (steps["run"] == first.row["run"])]
    if again.empty:
        return "measured again: no row"
    return judged(first, again.iloc[0])


def rows_of(folder: Path, run: str) -> list[Path]:
    """Files with the rows of all processes of a run."""
    found = []
    for row in sorted(folder.glob(f"results/*/{STEP}/*/row.csv")):
        if "superseded" not in row.parts and base_name(row.parent.name) == run:
            found.append(row)
    return found


def judged(first: Told, again: pd.Series) -> str:
    """Returns what differs, or `true` if nothing does. MFU and utilization count as equal within the
    intervals and doubts of both rows. A cause may differ if it was shown as doubtful."""
    if again["status"] != "ok":
        return f"measured again: {again['status']}"
    before, after = refutable(first.row), refutable(again)
    differences = []
    for column, word in SHARES.items():
        if not same(before, after, column):
            shares = f"{shown(before[column])} told, {shown(after[column])} again"
            differences.append(f"{word} {shares}")
    if again["verdict"] != first.row["verdict"] and not first.may_turn:
        differences.append(f"{first.row['verdict']} told, {again['verdict']} again")
    return "; ".join(differences) or TRUE


def refutable(row: pd.Series) -> pd.Series:
    """Leaves a row only its interval if its doubts allow any value, which nothing could refute."""
    if math.isinf(row.get(trust.REACH, 1.0)):
        return pd.Series({**row, trust.REACH: 1.0})
    return row


def same(before: pd.Series, after: pd.Series, column: str) -> bool:
    """True if neither row's value lies below the other's, intervals and doubts included. A value
    that only one of them has is not the same."""
    if pd.isna(before[column]) or pd.isna(after[column]):
        return bool(pd.isna(before[column]) and pd.isna(after[column]))
    is_apart = claims.is_below(before, after, column) or claims.is_below(after, before, column)
    return not is_apart


def shown(share: float) -> str:
    """A share in percent, or `none`."""
    if pd.isna(share):
        return "none"
    return f"{percent(share)} %"
