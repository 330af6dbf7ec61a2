"""Curves over batch size: which runs form a series, and how series are named."""

import pandas as pd

from mfulab.core.language import Texts
from mfulab.core.parts import Row
from mfulab.lab.report import frames

KEYS = ["machine", "model", "workload", "mode", "precision", "execution", "sequence_length"]
TOLD = ("mode", "precision")  # columns that come first in names


def series(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of series with at least two batch sizes. Runs of a series differ only in batch size."""
    rows = frames.one_each(frames.alone(rows), [*KEYS, "batch_size"])
    sizes = rows.groupby(KEYS, dropna=False)["batch_size"].transform("nunique")
    return frames.those(rows, sizes >= 2).sort_values("batch_size")


def ends(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of the smallest and of the largest batch of each series, with the same index."""
    ordered = rows.sort_values("batch_size")
    ordered = ordered.set_index(ordered.groupby(KEYS, dropna=False).ngroup())
    first, last = (
        ordered[~ordered.index.duplicated(keep=keep)].sort_index() for keep in ("first", "last")
    )
    return first, last


def named(row: pd.Series, text: Texts) -> str:
    """Name of a series: model, mode and precision; also workload and execution if not plain."""
    words = [
        text.name("mode", row["mode"]),
        text.name("precision", row["precision"]),
        *variant(row, text),
    ]
    return text("with_setting", name=row["model"], setting=", ".join(words))


def variant(row: Row | pd.Series, text: Texts) -> list[str]:
    """Workload, pruning and execution of a run, each only if it is not the plain one."""
    words = []
    if row["workload"] not in ("", row["mode"]):
        words = [row["workload"]]
    if row.get("pruning", "") not in ("", "none"):
        words.append(text.name("pruning", row["pruning"]))
    if row["execution"] not in ("", "eager"):
        words.append(text.name("execution", row["execution"]))
    return words


def apart(rows: pd.DataFrame, text: Texts) -> list[str]:
    """Names of rows: the model, and of mode, precision, batch and variant those in which rows
    differ."""
    why = text.within("why")
    batches = []
    for size in rows["batch_size"]:
        batches.append(why("batch", batch_size=int(size)) if size == size else "")
    variants = [", ".join(variant(row, text)) for row in rows.to_dict("records")]
    parts = [[text.name(kind, value) for value in rows[kind]] for kind in TOLD]
    parts += [batches, variants]
    differing = [part for part in parts if len({*part}) > 1]
    return [", ".join(filter(None, words)) for words in zip(rows["model"], *differing, strict=True)]
