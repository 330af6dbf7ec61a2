"""Curves against batch size: which runs form a series, and how series are named."""

import pandas as pd

from mfulab.core.language import Texts
from mfulab.core.parts import Row
from mfulab.lab.report import frames

KEYS = ["machine", "model", "workload", "mode", "precision", "execution", "sequence_length"]
TOLD = ("mode", "precision")  # that names tell first


def series(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of those series (runs alike in all but the batch size) that have two batch sizes or
    more."""
    rows = frames.one_each(frames.alone(rows), [*KEYS, "batch_size"])
    sizes = rows.groupby(KEYS, dropna=False)["batch_size"].transform("nunique")
    return frames.those(rows, sizes >= 2).sort_values("batch_size")


def ends(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The smallest and the largest batch of each series, with the same index."""
    ordered = rows.sort_values("batch_size")
    ordered = ordered.set_index(ordered.groupby(KEYS, dropna=False).ngroup())
    first, last = (
        ordered[~ordered.index.duplicated(keep=keep)].sort_index() for keep in ("first", "last")
    )
    return first, last


def named(row: pd.Series, text: Texts) -> str:
    """A series in words: model, mode and precision; workload and execution where they are not the
    plain ones."""
    words = [
        text.name("mode", row["mode"]),
        text.name("precision", row["precision"]),
        *variant(row, text),
    ]
    return f"{row['model']} ({', '.join(words)})"


def variant(row: Row | pd.Series, text: Texts) -> list[str]:
    """Workload and execution of a run, each where it is not the plain one."""
    words = []
    if row["workload"] not in ("", row["mode"]):
        words = [row["workload"]]
    if row["execution"] not in ("", "eager"):
        words.append(text.name("execution", row["execution"]))
    return words


def apart(rows: pd.DataFrame, text: Texts) -> list[str]:
    """A name a row: its model, and each of mode, precision, batch, variant and length in which rows
    differ."""
    why = text.within("why")
    parts = [[text.name(kind, value) for value in rows[kind]] for kind in TOLD]
    parts.append(
        [why("batch", batch_size=int(size)) if size == size else "" for size in rows["batch_size"]]
    )
    parts.append([", ".join(variant(row, text)) for row in rows.to_dict("records")])
    differing = []
    for part in parts:
        if len({*part}) > 1:
            differing.append(part)
    return [", ".join(filter(None, words)) for words in zip(rows["model"], *differing, strict=True)]
