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
    first = ordered[~ordered.index.duplicated(keep="first")]
    last = ordered[~ordered.index.duplicated(keep="last")]
    return first.sort_index(), last.sort_index()


def named(row: pd.Series, text: Texts) -> str:
    """Name of a series: model, mode and precision; also workload and execution if not plain."""
    words = [text.name(kind, row[kind]) for kind in TOLD]
    words += variant(row, text)
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
    batch = text.within("why")
    lines = []
    for row in rows.to_dict("records"):
        words = [text.name(kind, row[kind]) for kind in TOLD]
        size = ""
        if row["batch_size"] == row["batch_size"]:
            size = batch("batch", batch_size=int(row["batch_size"]))
        lines.append([*words, size, ", ".join(variant(row, text))])
    parts = pd.DataFrame(lines)
    differing = parts.loc[:, parts.nunique() > 1]
    names = []
    for model, words in zip(rows["model"], differing.to_numpy(), strict=True):
        names.append(", ".join(filter(None, [model, *words])))
    return names
