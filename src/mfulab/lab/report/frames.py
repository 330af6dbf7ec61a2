"""Tables as pandas frames, typed as `mfulab.core.rows` says, however broken the files are."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from mfulab.core.files import opened, unquoted
from mfulab.core.language import Texts
from mfulab.lab.tables import columns, details
from mfulab.measurements.registry import TABLES

# Each column lies apart, so that frames share what they do not change: a page of many rows takes a third less memory.
warnings.filterwarnings("ignore", category=pd.errors.PerformanceWarning)

DataFrame: TypeAlias = pd.DataFrame
Series: TypeAlias = pd.Series
Tables = dict[str, DataFrame]
TEXTS = {
    "problems": ["problem"],
    "excluded": ["experiment", "step", "run", "because"],  # runs left out on purpose
    "progress": ["step", "run", "state"],  # planned runs and their state, one of PROGRESS
    "seminar": ["source", "place", "case", "printed", "formula", "value", "answer", "agrees", "note"],
}
ABSENT = {str: "", bool: False, float: float("nan")}
MANY = 10_000  # rows of a frame whose copy is worth some care
EMPTY = {str: ("", "str"), bool: (pd.NA, "boolean"), float: (float("nan"), "float64")}  # cells of a file, and dtypes
OF_RECORDINGS = "results/reference/"  # how a problem begins that only who keeps recordings can mend
FAULTY, MATMULS = 0.1, 1.0  # a share of a step, and percent of its time: see `comparable`
INTERVAL = ["time_s", "time_ci_low_s", "time_ci_high_s"]
JUDGED = ("doubtful", "impossible", "doubts")  # columns that `trust.judged` adds


def read(folder: Path) -> tuple[Tables, list[str]]:
    """The tables, empty if one cannot be read, and what was wrong with the files, in words."""
    problems: list[str] = []
    tables = {table: _read(folder / f"{table}.csv", table, problems) for table in TABLES}
    tables["series"] = details.read_series(folder / "series.csv")
    problems.extend(texts(folder / "problems.csv")["problem"])
    return tables, problems


def texts(path: Path) -> pd.DataFrame:
    """A table of texts, one of TEXTS beside the rows' tables; empty if it does not exist or cannot be read."""
    columns = TEXTS[path.stem]
    try:
        return details.cells(path).map(unquoted)[columns]
    except (OSError, ValueError, KeyError):
        return pd.DataFrame(columns=columns, dtype=str)


def those(rows: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    """The rows for which `chosen` is true, the frame itself where all are; empty columns stay one array."""
    if chosen.all() or len(rows) < MANY:
        return rows if chosen.all() else rows[chosen]
    arrays = [rows[name].to_numpy() for name in rows]  # kept together, so that no two that differ have one address
    places = [array.ctypes.data for array in arrays]
    names = dict(zip(places, rows, strict=True))
    chosen_rows = rows[[*names.values()]][chosen]
    return pd.DataFrame({name: chosen_rows[names[place]] for name, place in zip(rows, places, strict=True)}, copy=False)


def ok(frame: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """The rows that were measured, with finite values in all of the needed columns."""
    return those(frame, (frame["status"] == "ok") & frame[list(needed)].notna().all(axis=1))


def alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one process each: a job of several is no point beside them."""
    return those(rows, rows["processes"].fillna(1) == 1)


def steps(tables: Tables, *needed: str, **wanted: str | Iterable[str]) -> pd.DataFrame:
    """Steps of one process each, with their machine, with finite `needed` columns and `wanted` values in others."""
    profile = tables["profile"]
    chosen = profile["processes"].fillna(1) == 1
    for name, values in wanted.items():
        chosen &= profile[name].isin([values] if isinstance(values, str) else values)
    return with_machine(tables, ok(those(profile, chosen), *needed))


def one_each(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row for each distinct value of `keys`, by first appearance: medians of numbers, the first of the rest."""
    if not rows.duplicated(list(keys)).any():
        return rows
    numbers = [name for name in rows.select_dtypes("number") if name not in keys]
    medians = rows.groupby(list(keys), dropna=False, sort=False)[numbers].median().reset_index(drop=True)
    first = rows.drop_duplicates(list(keys)).drop(columns=numbers).reset_index(drop=True)
    return pd.concat([first, medians], axis=1)[[*rows]]


def with_traces(tables: Tables) -> pd.DataFrame:
    """Profiled runs, and steps read from traces as if they were: their device is their machine, and said to be read."""
    profile, traces = tables["profile"], tables["traces"]
    if traces.empty:
        return profile
    read = traces.assign(hardware=[f"{short_name(device)}{READ}" for device in traces["device"].replace("", UNNAMED)])
    wanted = kinds("profile") | dict.fromkeys((name for name in JUDGED if name in profile), bool)
    cells = {name: read.get(name, pd.Series(ABSENT[kind], read.index, kind)) for name, kind in wanted.items()}
    return pd.concat([profile, pd.DataFrame(cells)], ignore_index=True)


def unused(tables: Tables) -> list[str]:
    """GPUs of this machine that were not measured, each with its reason; of a machine without its own rows none."""
    rows = tables["environment"]
    return sorted({*rows.loc[~rows["recorded"], "gpu_unused"].dropna()} - {""}) if "gpu_unused" in rows else []


def own(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that were measured here, or the recorded ones where none was."""
    return preferred(rows, ~rows["recorded"])


def preferred(rows: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """The rows for which `wanted` is true, or all of them where it is true for none."""
    return those(rows, wanted) if wanted.any() else rows


def most(rows: pd.DataFrame, keys: Sequence[str], counted: str = "") -> pd.DataFrame:
    """The largest group of rows alike in `keys`: by its rows, or by its distinct values of the column `counted`."""
    if rows.empty:
        return rows
    groups = rows.groupby([*keys])[counted].nunique() if counted else rows[[*keys]].value_counts()
    return rows[(rows[[*keys]] == groups.index.to_frame().iloc[groups.argmax()].tolist()).all(axis=1)]


def apart(rows: Any, others: Any = None, suffix: str = "", ratio: Any = None) -> Any:
    """True where intervals of two times do not meet, or lack; `ratio` is the first time ÷ the second of equal work."""
    others = rows if others is None else others
    time_s, *ends = (rows[name] for name in INTERVAL)
    other_s, *other_ends = (others[f"{name}{suffix}"] for name in INTERVAL)
    ratio = time_s / other_s if ratio is None else ratio
    low, high = (ratio * end / time_s for end in ends)
    other_low, other_high = (end / other_s for end in other_ends)
    return np.logical_not((low <= other_high) & (other_low <= high))


def against(rows: pd.DataFrame, base: pd.DataFrame, keys: Sequence[str], suffix: str, *columns: str) -> pd.DataFrame:
    """Rows with a partner in `base`, alike in `keys`: its time and `columns` with `suffix`, `apart`, and `factor`."""
    partners = base.drop_duplicates(keys)[[*keys, *INTERVAL, *columns]]
    paired = rows.merge(partners, on=[*keys], suffixes=("", suffix))
    return paired.assign(apart=apart(paired, suffix=suffix), factor=paired["time_s"] / paired[f"time_s{suffix}"])


def with_machine(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `machine`, their device's name, of a recorded one marked, and `device`, cpu or cuda or empty."""
    on = ["hardware", "recorded"]
    machines = tables["environment"].drop_duplicates(on, keep="last")
    machines = machines.assign(name=machines["device_name"].map(short_name)).set_index(on, drop=False)
    shared = machines.groupby("name")["hardware"].transform("nunique") > 1
    names = (machines["name"] + (" " + machines["hardware"]).where(shared, "")).to_dict()
    devices = machines["device"].to_dict()
    keys = [*rows[on].drop_duplicates().itertuples(index=False, name=None)]  # few
    shown = [(names.get(key) or key[0]) + (RECORDED if key[1] else "") for key in keys]
    columns = {"machine": shown, "device": [devices.get(key, "") for key in keys]}
    which = rows.groupby(on, sort=False, dropna=False).ngroup()
    return rows.assign(**{name: which.map(dict(enumerate(cells))).astype(str) for name, cells in columns.items()})


# What stands behind a machine's name, and for one without.
RECORDED, READ, UNNAMED = " (recorded)", " · read from a trace", "a device"


def emulated(rows: pd.DataFrame) -> pd.Series:
    """True for each row in a format that its device emulates, whose MFU divides by another one's ceiling."""
    if not {"peak_precision", "effective_precision"} <= set(rows):
        return pd.Series(False, index=rows.index)
    peak = rows["peak_precision"].fillna("")
    return (peak != "") & (peak != rows["effective_precision"])


def comparable(rows: pd.DataFrame, suffix: str = "") -> pd.Series:
    """True for each step that a sentence may rank: less than FAULTY in page faults, and MATMULS percent of matmuls."""
    names = ("page_faults_per_s", "page_fault_s", "kept_memory_time_s", "matmul_percent")
    columns = (rows.get(f"{name}{suffix}", pd.Series(float("nan"), rows.index)) for name in names)
    faults_per_s, fault_s, kept_s, matmuls = columns
    faulty = (faults_per_s * fault_s > FAULTY) | (kept_s < (1 - FAULTY) * rows[f"time_s{suffix}"])
    return ~(faulty | (matmuls < MATMULS))


def in_words(rows: pd.DataFrame, text: Texts) -> pd.DataFrame:
    """The rows with what is said of their machines in the text's language."""
    if rows.empty or "machine" not in rows:
        return rows
    marks = re.compile(rf"^{UNNAMED}\b|{re.escape(RECORDED)}|{re.escape(READ)}")
    machines = rows["machine"].unique()  # few, however many rows
    names = {machine: marks.sub(lambda mark: text.name("machine", mark[0]), machine) for machine in machines}
    return rows.assign(machine=rows["machine"].map(names).astype(str))


def short_name(device: str) -> str:
    """A device's name without trademarks and clock: `Intel(R) Xeon(R) CPU @ 2.00GHz` is `Intel Xeon`."""
    without = re.sub(r"\((R|TM|C)\)|@.*$|\b(CPU|Processor)\b", " ", device, flags=re.IGNORECASE)
    return " ".join(without.split()) or device


def kinds(table: str) -> dict[str, type]:
    """Each column with its type: str, bool or float (integers too: a missing one has no integer)."""
    types = {name: columns.kind(field) for name, field in columns.fields(table).items()}
    return {name: float if kind is int else kind for name, kind in types.items()}


def _read(path: Path, table: str, problems: list[str]) -> pd.DataFrame:
    expected, frame, unreadable = kinds(table), pd.DataFrame(), 0
    try:
        frame = _cells(path, expected)
        if absent := [name for name in expected if name not in frame]:
            problems.append(f"{path.name}: missing columns {', '.join(absent)}")
    except FileNotFoundError:
        problems.append(f"{path.name}: the table is missing")
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        problems.append(f"{path.name}: the table cannot be read ({str(error).strip()})")
    # All empty columns of a kind are one array: most columns of a sweep are empty.
    empty = {kind: pd.Series(value, frame.index, dtype) for kind, (value, dtype) in EMPTY.items()}
    for name in filter(frame.__contains__, expected):
        cells, kind = frame[name], expected[name]
        if kind is str:
            codes, distinct = pd.factorize(cells)
            frame[name] = pd.Series(pd.array([*map(unquoted, distinct)], "str").take(codes), frame.index)
        elif kind is bool:
            frame[name] = cells.map({"True": True, "False": False}).astype("boolean")
        elif is_bool_dtype(cells) or not is_numeric_dtype(cells):
            frame[name] = pd.to_numeric(cells.astype(str), errors="coerce")
            unreadable += int((frame[name].isna() & cells.notna()).sum())
        if ((frame[name] == "") if kind is str else frame[name].isna()).all():
            frame[name] = empty[kind]
    if unreadable:
        problems.append(f"{path.name}: {unreadable} cells hold no number where one belongs; they are shown empty")
    if [*frame] != [*expected]:
        frame = pd.DataFrame({name: frame.get(name, empty[kind]) for name, kind in expected.items()}, copy=False)
    frame["recorded"] = frame["recorded"].fillna(False).astype(bool)
    return frame


def _cells(path: Path, expected: Mapping[str, type]) -> pd.DataFrame:
    """The expected columns as they stand there: texts, and numbers where all of a column's cells are."""
    empty = {name: [""] for name, kind in expected.items() if kind is float}
    texts = dict.fromkeys(set(expected) - set(empty), str)
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # of columns that hold texts among numbers
        return pd.read_csv(
            file, usecols=lambda name: name in expected, dtype=texts, na_values=empty, keep_default_na=False,
            encoding_errors="replace",
        )  # fmt: skip
