"""Tables as pandas frames, typed as `mfulab.core.rows` says, however broken the files are."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from mfulab.core.files import opened, unquoted
from mfulab.core.language import Texts, verdicts
from mfulab.core.parts import pick_present
from mfulab.core.said import Said, packed_all
from mfulab.lab.report import shown_rows
from mfulab.lab.tables import columns, details
from mfulab.measurements.registry import TABLES

# Of MANY rows each column lies apart, so that frames share what they do not change: their page takes
# a third less memory.
warnings.filterwarnings("ignore", category=pd.errors.PerformanceWarning)
# Texts are Python's own, whether pyarrow is installed or not: Arrow's refuse what empty columns need.
pd.set_option("mode.string_storage", "python")

DataFrame: TypeAlias = pd.DataFrame
Series: TypeAlias = pd.Series
Tables = dict[str, DataFrame]
TEXTS = {
    "problems": ["problem", "said", "of_recordings"],
    "excluded": ["experiment", "step", "run", "because"],  # runs left out on purpose
    "progress": ["step", "run", "state"],  # planned runs and their state, one of PROGRESS
    "seminar": list(columns.SEMINAR),
}
ABSENT = {str: "", bool: False, float: float("nan")}
MANY = 10_000  # rows of a frame whose copy is worth some care
LARGE_BYTES = 64 << 20  # of a file that is read in parts, if few of its rows are shown
ROWS_AT_ONCE = 20_000  # of such a file
EMPTY = {
    str: ("", "str"),
    bool: (pd.NA, "boolean"),
    float: (float("nan"), "float64"),
}  # cells of a file, and dtypes
FAULTY = 0.1
MATMULS = 1.0  # a share of a step, and percent of its time: see `comparable`
INTERVAL = ["time_s", "time_ci_low_s", "time_ci_high_s"]
JUDGED = ("doubtful", "impossible", "doubts", "reach")  # columns that `trust.judged` adds


@dataclass(frozen=True)
class Problem:
    """A fault of files: its English sentence, or its key and numbers as JSON where a catalogue has
    them; and whether only the keeper of a recording can mend it."""

    text: str
    said: str = ""
    of_recordings: bool = False

    def in_words(self, language: str = "en") -> str:
        """The sentence in a language; English where no catalogue has it."""
        if self.said:
            return verdicts.flags(self.said, language)
        return self.text


def read(folder: Path) -> tuple[Tables, list[Problem]]:
    """The tables, empty if one cannot be read, and what was wrong with the files."""
    found: list[str] = []
    rules: list[Said] = []
    tables = {table: _read(folder / f"{table}.csv", table, found, rules) for table in TABLES}
    tables["series"] = details.read_series(folder / "series.csv")
    problems = list(map(Problem, found))
    for rule in rules:
        problems.append(Problem("", packed_all([rule]) or ""))
    for line in texts(folder / "problems.csv").itertuples():
        problems.append(Problem(line.problem, line.said, line.of_recordings == "True"))
    return tables, problems


def texts(path: Path) -> pd.DataFrame:
    """A table of texts, one of TEXTS beside the rows' tables; empty if it does not exist or cannot
    be read."""
    columns = TEXTS[path.stem]
    try:
        return details.cells(path).map(unquoted)[columns]
    except (OSError, ValueError, KeyError):
        return pd.DataFrame(columns=columns, dtype=str)


def those(rows: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    """The rows for which `chosen` is true, the frame itself where all are; empty columns stay one
    array."""
    if chosen.all() or len(rows) < MANY:
        if chosen.all():
            return rows
        return rows[chosen]
    arrays = [
        rows[name].to_numpy() for name in rows
    ]  # kept together, so that no two that differ have one address
    places = [array.ctypes.data for array in arrays]
    names = dict(zip(places, rows, strict=True))
    chosen_rows = rows[[*names.values()]][chosen]
    return pd.DataFrame(
        {name: chosen_rows[names[index]] for name, index in zip(rows, places, strict=True)},
        copy=False,
    )


def ok(frame: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """The rows that were measured, with finite values in all of the needed columns."""
    return those(frame, (frame["status"] == "ok") & frame[list(needed)].notna().all(axis=1))


def alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one process each: a job of several is no point beside them."""
    return those(rows, rows["processes"].fillna(1) == 1)


def steps(tables: Tables, *needed: str, **wanted: str | Iterable[str]) -> pd.DataFrame:
    """Steps of one process each, with their machine, with finite `needed` columns and `wanted`
    values in others."""
    profile = tables["profile"]
    chosen = profile["processes"].fillna(1) == 1
    for name, values in wanted.items():
        chosen &= profile[name].isin([values] if isinstance(values, str) else values)
    return with_machine(tables, ok(those(profile, chosen), *needed))


def one_each(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row for each distinct value of `keys`, by first appearance: of those least in doubt medians
    of numbers, the first of the rest."""
    if not rows.duplicated(list(keys)).any():
        return rows
    if "reach" in rows:
        least = rows["reach"].groupby([rows[key] for key in keys], dropna=False).transform("min")
        rows = rows[rows["reach"] == least]
    numbers = []
    for name in rows.select_dtypes("number"):
        if name not in keys:
            numbers.append(name)
    medians = (
        rows.groupby(list(keys), dropna=False, sort=False)[numbers].median().reset_index(drop=True)
    )
    first = rows.drop_duplicates(list(keys)).drop(columns=numbers).reset_index(drop=True)
    return pd.concat([first, medians], axis=1)[[*rows]].copy()  # in one piece


def with_traces(tables: Tables) -> pd.DataFrame:
    """Profiled runs, and steps read from traces as if they were: their device is their machine, and
    said to be read."""
    profile = tables["profile"]
    traces = tables["traces"]
    if traces.empty:
        return profile
    read = traces.assign(
        hardware=[f"{short_name(device)}{READ}" for device in traces["device"].replace("", UNNAMED)]
    )
    judged = {}
    for name in JUDGED:
        if name in profile:
            judged[name] = float if name == "reach" else bool
    wanted = kinds("profile") | judged
    cells = {
        name: read.get(name, pd.Series(ABSENT[kind], read.index, kind))
        for name, kind in wanted.items()
    }
    return pd.concat([profile, pd.DataFrame(cells)], ignore_index=True)


def unused(tables: Tables, language: str = "en") -> list[str]:
    """GPUs of this machine that were not measured, each with its reason; of a machine without its
    own rows none."""
    rows = tables["environment"]
    if "gpu_unused" in rows:
        cells = {*rows.loc[~rows["recorded"], "gpu_unused"].dropna()} - {""}
        return sorted(verdicts.flags(cell, language) for cell in cells)
    return []


def own(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that were measured here, or the recorded ones where none was."""
    return preferred(rows, ~rows["recorded"])


def preferred(rows: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """The rows for which `wanted` is true, or all of them where it is true for none."""
    if wanted.any():
        return those(rows, wanted)
    return rows


def apart(rows: Any, others: Any = None, suffix: str = "", ratio: Any = None) -> Any:
    """True where intervals of two times do not meet, or lack; `ratio` is the first time ÷ the
    second of equal work."""
    if others is None:
        others = rows
    time_s, *ends = (rows[name] for name in INTERVAL)
    other_s, *other_ends = (others[f"{name}{suffix}"] for name in INTERVAL)
    if ratio is None:
        ratio = time_s / other_s
    low, high = (ratio * end / time_s for end in ends)
    other_low, other_high = (end / other_s for end in other_ends)
    return np.logical_not((low <= other_high) & (other_low <= high))


def against(
    rows: pd.DataFrame, base: pd.DataFrame, keys: Sequence[str], suffix: str, *columns: str
) -> pd.DataFrame:
    """Rows with a partner in `base`, alike in `keys`: its time and `columns` with `suffix`,
    `apart`, and `factor`."""
    judged = []
    for name in JUDGED:
        if name in base and name in rows:
            judged.append(name)
    partners = base.drop_duplicates(keys)[[*keys, *INTERVAL, *judged, *columns]]
    paired = rows.merge(partners, on=[*keys], suffixes=("", suffix))
    paired = with_doubts_of_both(paired, judged, suffix)
    return paired.assign(
        apart=apart(paired, suffix=suffix), factor=paired["time_s"] / paired[f"time_s{suffix}"]
    )


def with_doubts_of_both(paired: pd.DataFrame, judged: Sequence[str], suffix: str) -> pd.DataFrame:
    """Pairs of rows, each as doubtful as both: flags of either, and the product of what they may be
    off by."""
    both = {}
    for name in judged:
        own = paired[name]
        other = paired[f"{name}{suffix}"]
        if name == "reach":
            both[name] = own * other
        else:
            kind = int if name == "doubts" else bool
            both[name] = own.astype(kind) | other.astype(kind)
    return paired.drop(columns=[f"{name}{suffix}" for name in judged]).assign(**both)


def with_machine(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `machine`, their device's name, of a recorded one marked, and `device`, cpu or
    cuda or empty."""
    on = ["hardware", "recorded"]
    machines = tables["environment"].drop_duplicates(on, keep="last")
    machines = machines.assign(name=machines["device_name"].map(short_name)).set_index(
        on, drop=False
    )
    shared = machines.groupby("name")["hardware"].transform("nunique") > 1
    names = (machines["name"] + (" " + machines["hardware"]).where(shared, "")).to_dict()
    devices = machines["device"].to_dict()
    keys = [*rows[on].drop_duplicates().itertuples(index=False, name=None)]  # few
    shown = [(names.get(key) or key[0]) + (RECORDED if key[1] else "") for key in keys]
    columns = {"machine": shown, "device": [devices.get(key, "") for key in keys]}
    which = rows.groupby(on, sort=False, dropna=False).ngroup()
    return rows.assign(
        **{name: which.map(dict(enumerate(cells))).astype(str) for name, cells in columns.items()}
    )


# What stands behind a machine's name, and for one without.
RECORDED = " (recorded)"
READ = " · read from a trace"
UNNAMED = "a device"


def emulated(rows: pd.DataFrame) -> pd.Series:
    """True for each row in a format that its device emulates, whose MFU divides by another one's
    ceiling."""
    if not {"peak_precision", "effective_precision"} <= set(rows):
        return pd.Series(False, index=rows.index)
    peak = rows["peak_precision"].fillna("")
    return (peak != "") & (peak != rows["effective_precision"])


def comparable(rows: pd.DataFrame, suffix: str = "") -> pd.Series:
    """True for each step that a sentence may rank: less than FAULTY in page faults, and MATMULS
    percent of matmuls."""
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
    names = {
        machine: marks.sub(lambda mark: text.name("machine", mark[0]), machine)
        for machine in machines
    }
    return rows.assign(machine=rows["machine"].map(names).astype(str))


def short_name(device: str) -> str:
    """A device's name without trademarks and clock: `Intel(R) Xeon(R) CPU @ 2.00GHz` is `Intel
    Xeon`."""
    without = re.sub(r"\((R|TM|C)\)|@.*$|\b(CPU|Processor)\b", " ", device, flags=re.IGNORECASE)
    return " ".join(without.split()) or device


def kinds(table: str) -> dict[str, type]:
    """Each column with its type: str, bool or float (integers too: a missing one has no
    integer)."""
    types = {name: columns.kind(field) for name, field in columns.fields(table).items()}
    return {name: float if kind is int else kind for name, kind in types.items()}


def _read(path: Path, table: str, problems: list[str], rules: list[Said]) -> pd.DataFrame:
    """The rows of a table that are shown; adds what is wrong with the file, and the rule by which
    some rows stand for all."""
    expected = kinds(table)
    frame = pd.DataFrame()
    is_long = False
    try:
        is_long = path.stat().st_size > LARGE_BYTES
        frame = _few_cells(path, expected, rules) if is_long else _cells(path, expected)
        if absent := [name for name in expected if name not in frame]:
            problems.append(f"{path.name}: missing columns {', '.join(absent)}")
    except FileNotFoundError:
        problems.append(f"{path.name}: the table is missing")
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        problems.append(f"{path.name}: the table cannot be read ({str(error).strip()})")
    unreadable = _make_typed(frame, expected)
    if unreadable:
        problems.append(
            f"{path.name}: {unreadable} cells hold no number where one belongs; they are shown empty"
        )
    if [*frame] != [*expected]:
        empty = _empty(frame.index)
        frame = pd.DataFrame(
            {name: frame.get(name, empty[kind]) for name, kind in expected.items()}, copy=False
        )
    frame["recorded"] = frame["recorded"].fillna(False).astype(bool)
    choice = None
    if not is_long:
        choice = _choice(frame, expected, path)
    if choice is None:
        if len(frame) >= MANY:
            return frame
        return frame.copy()
    rules.append(choice.rule)
    return frame[choice.rows].reset_index(drop=True)


def _choice(keys: pd.DataFrame, expected: Iterable[str], path: Path) -> shown_rows.Choice | None:
    return shown_rows.choose(keys, expected, path.name, shown_rows.SHOWN)


def _empty(index: pd.Index) -> dict[type, pd.Series]:
    """A column without a value for each kind of cell."""
    return {kind: pd.Series(value, index, dtype) for kind, (value, dtype) in EMPTY.items()}


def _make_typed(frame: pd.DataFrame, expected: Mapping[str, type]) -> int:
    """Gives the columns of a file their types; returns how many cells hold no number where one
    belongs."""
    # All empty columns of a kind are one array: most columns of a sweep are empty.
    empty = _empty(frame.index)
    unreadable = 0
    for name in filter(frame.__contains__, expected):
        kind = expected[name]
        column, faulty = _typed(frame[name], kind)
        frame[name] = empty[kind] if _is_empty(column, kind) else column
        unreadable += faulty
    return unreadable


def _few_cells(path: Path, expected: Mapping[str, type], rules: list[Said]) -> pd.DataFrame:
    """The cells of the rows that stand for all of a long file, which is read in parts: it is never
    held whole."""
    read = pick_present(expected, shown_rows.KEYS)
    keys = _cells(path, read)
    _make_typed(keys, read)
    choice = None
    if set(read) <= set(keys):  # else columns are missing, which is told
        choice = _choice(keys, expected, path)
    if choice is None:
        return _cells(path, expected)
    rules.append(choice.rule)
    parts = []
    for part in _parts(path, expected):
        parts.append(part[choice.rows[part.index]])
    return pd.concat(parts, ignore_index=True)


def _parts(path: Path, expected: Mapping[str, type]) -> Iterator[pd.DataFrame]:
    with opened(path) as file:
        yield from pd.read_csv(file, chunksize=ROWS_AT_ONCE, **_options(expected))


def _typed(cells: pd.Series, kind: type) -> tuple[pd.Series, int]:
    """A column's cells as their kind, and how many hold no number where one belongs."""
    if kind is str:
        codes, distinct = pd.factorize(cells)
        words = pd.array([*map(unquoted, distinct)], "str")
        return pd.Series(words.take(codes), cells.index), 0
    if kind is bool:
        return cells.map({"True": True, "False": False}).astype("boolean"), 0
    if is_numeric_dtype(cells) and not is_bool_dtype(cells):
        return cells, 0
    numbers = pd.to_numeric(cells.astype(str), errors="coerce")
    return numbers, int((numbers.isna() & cells.notna()).sum())


def _is_empty(cells: pd.Series, kind: type) -> bool:
    missing = (cells == "") if kind is str else cells.isna()
    return bool(missing.all())


def _cells(path: Path, expected: Mapping[str, type]) -> pd.DataFrame:
    """The expected columns as they stand there: texts, and numbers where all of a column's cells
    are."""
    with opened(path) as file, warnings.catch_warnings():
        # Of columns that hold texts among numbers.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        return pd.read_csv(file, **_options(expected))


def _options(expected: Mapping[str, type]) -> dict[str, Any]:
    """Options with which pandas reads the expected columns of a file."""
    numbers = {name: [""] for name, kind in expected.items() if kind is float}
    return {
        "usecols": lambda name: name in expected,
        "dtype": dict.fromkeys(set(expected) - set(numbers), str),
        "na_values": numbers,
        "keep_default_na": False,
        "encoding_errors": "replace",
    }
