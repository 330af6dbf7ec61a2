"""Tables as pandas frames, with the types that `mfulab.core.rows` declares, even if files are
broken."""

import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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
from mfulab.timing.statistics import FEWEST_RUNS

# Long frames keep each column in an array of its own, so that copies share unchanged columns. A page
# then takes a third less memory. pandas warns of such frames.
warnings.filterwarnings("ignore", category=pd.errors.PerformanceWarning)
# Strings are Python's even if pyarrow is installed, whose strings do not support empty columns.
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
MANY = 10_000  # rows from which frames share columns instead of copying
LARGE_BYTES = 64 << 20  # of a file, above which it is read in parts
ROWS_AT_ONCE = 20_000  # of a part
# Value and dtype of empty cells in a file's column of each kind.
EMPTY = {
    str: ("", "str"),
    bool: (pd.NA, "boolean"),
    float: (float("nan"), "float64"),
}
# Limits of `comparable`: page faults as a share of a step, matmuls in % of its time.
FAULTY = 0.1
MATMULS = 1.0
INTERVAL = ["time_s", "time_ci_low_s", "time_ci_high_s"]
# Half-width, on a log scale, of a time that a single process measured. USUAL is the column with the
# machine's own. Where it is not known, that of the recorded CPU counts.
USUAL = "usual_half_width"
RECORDED_HALF_WIDTH = 0.145
TIMED = ("profile", "matmul", "serving", "split")
JUDGED = ("doubtful", "impossible", "doubts", "reach")  # columns that `trust.judged` adds
LABELLED = ["machine_name", "recorded", "is_read"]  # columns that a machine's label is made of


class Machine(NamedTuple):
    """Parts of a machine's label: its name, and whether its rows are recorded or read from
    traces."""

    name: str  # empty if a trace does not name its device
    is_recorded: bool
    is_read: bool

    def label(self, text: Texts) -> str:
        """Returns the label in the text's language."""
        words = self.name or text("machine_without_name")
        if self.is_read:
            words = text("machine_of_trace", machine=words)
        if self.is_recorded:
            words = text("machine_recorded", machine=words)
        return words


@dataclass(frozen=True)
class Problem:
    """A fault of files: an English sentence, or key and numbers as JSON if a catalogue has it.
    `of_recordings`: only the keeper of a recording can fix it."""

    text: str
    said: str = ""
    of_recordings: bool = False

    def in_words(self, language: str = "en") -> str:
        """Returns the sentence in a language; English if no catalogue has it."""
        if self.said:
            return verdicts.flags(self.said, language)
        return self.text


def read(folder: Path) -> tuple[Tables, list[Problem]]:
    """Reads all tables in a folder, and what is wrong with the files. Unreadable tables are
    empty."""
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
    """Reads a table of texts, one of TEXTS; empty if missing or unreadable."""
    columns = TEXTS[path.stem]
    try:
        return details.cells(path).map(unquoted)[columns]
    except (OSError, ValueError, KeyError):
        return pd.DataFrame(columns=columns, dtype=str)


def those(rows: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    """Returns the rows for which `chosen` is True; the frame itself if all are."""
    if chosen.all():
        return rows
    if len(rows) < MANY:
        return rows[chosen]
    return _those_of_many(rows, chosen)


def _those_of_many(rows: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    """Returns the `chosen` rows of a long frame. Columns that share one array in memory, such as
    all empty ones, share one afterwards too."""
    # A list keeps the arrays alive, so that no two of them have the same address.
    arrays = [rows[name].to_numpy() for name in rows]
    addresses = [array.ctypes.data for array in arrays]
    names = dict(zip(addresses, rows, strict=True))
    distinct = rows[[*names.values()]][chosen]
    cells = {}
    for name, address in zip(rows, addresses, strict=True):
        cells[name] = distinct[names[address]]
    return pd.DataFrame(cells, copy=False)


def ok(frame: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """Returns the rows of status `ok` with a value in each of the `needed` columns."""
    return those(frame, (frame["status"] == "ok") & frame[list(needed)].notna().all(axis=1))


def alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of whole models that a single process measured with its machine's usual
    threads. Pruned models, other numbers of threads, and jobs of several processes are not
    comparable with them."""
    is_single = rows["processes"].fillna(1) == 1
    return those(rows, is_single & ~pruned(rows) & ~_with_own_threads(rows))


def _with_own_threads(rows: pd.DataFrame) -> pd.Series:
    """True for runs that set `device.threads` on a machine of which other runs do not."""
    if not {"run", "hardware"} <= set(rows):
        return pd.Series(False, rows.index)
    sets_threads = rows["run"].str.contains(r"(?:^|,)device\.threads=", na=False)
    is_usual_there = (~sets_threads).groupby(rows["hardware"]).transform("any")
    return sets_threads & is_usual_there.astype(bool)


def pruned(rows: pd.DataFrame) -> pd.Series:
    """True for steps of a pruned model."""
    if "pruning" not in rows:
        return pd.Series(False, rows.index)
    return ~rows["pruning"].fillna("").isin(("", "none"))


def steps(tables: Tables, *needed: str, **wanted: str | Iterable[str]) -> pd.DataFrame:
    """Returns profiled steps of one process each, with their machine. `needed` columns must have a
    value; `wanted` gives allowed values of others."""
    profile = tables["profile"]
    chosen = profile["processes"].fillna(1) == 1
    for name, values in wanted.items():
        allowed = [values] if isinstance(values, str) else values
        chosen &= profile[name].isin(allowed)
    return with_machine(tables, ok(those(profile, chosen), *needed))


def one_each(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Returns one row for each distinct value of `keys`, in order of appearance. Numbers are
    medians over the rows least in doubt; other cells come from the first."""
    keys = list(keys)
    if not rows.duplicated(keys).any():
        return rows
    if "reach" in rows:
        least = rows["reach"].groupby([rows[key] for key in keys], dropna=False).transform("min")
        rows = rows[rows["reach"] == least]
    numbers = []
    for name in rows.select_dtypes("number"):
        if name not in keys:
            numbers.append(name)
    groups = rows.groupby(keys, dropna=False, sort=False)
    medians = groups[numbers].median().reset_index(drop=True)
    first = rows.drop_duplicates(keys).drop(columns=numbers).reset_index(drop=True)
    together = pd.concat([first, medians], axis=1)
    return together[list(rows)].copy()  # defragmented


def with_traces(tables: Tables) -> pd.DataFrame:
    """Returns profiled runs and, in the same columns, steps read from traces. Adds `is_read`, True
    for the latter, and `machine_name`, that of the traced device."""
    profile = tables["profile"].assign(is_read=False, machine_name="")
    traces = tables["traces"]
    if traces.empty:
        return profile
    names = traces["device"].map(short_name)
    # A measured machine of that name is another one.
    hardware = [Machine(name, False, True).label(Texts()) for name in names]
    read = traces.assign(hardware=hardware, is_read=True, machine_name=names)
    wanted = kinds("profile") | {"is_read": bool, "machine_name": str}
    for name in JUDGED:
        if name in profile:
            wanted[name] = bool
    if "reach" in profile:
        wanted["reach"] = float
    cells = {}
    for name, kind in wanted.items():
        if name in read:
            cells[name] = read[name]
        else:
            cells[name] = pd.Series(ABSENT[kind], read.index, kind)
    return pd.concat([profile, pd.DataFrame(cells)], ignore_index=True)


def unused(tables: Tables, language: str = "en") -> list[str]:
    """Reasons why GPUs of this machine were not measured, one text each; empty if nothing was
    measured here."""
    rows = tables["environment"]
    if "gpu_unused" in rows:
        cells = {*rows.loc[~rows["recorded"], "gpu_unused"].dropna()} - {""}
        return sorted(verdicts.flags(cell, language) for cell in cells)
    return []


def own_or_recorded(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows measured here, or the recorded ones if there are none."""
    return preferred(rows, ~rows["recorded"])


def preferred(rows: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """Returns the rows for which `wanted` is True, or all rows if there are none."""
    if wanted.any():
        return those(rows, wanted)
    return rows


def highest(rows: pd.DataFrame, column: str) -> pd.Series:
    """Returns the row with the highest value of a column, the first of several."""
    return rows.loc[rows[column].idxmax()]


def lowest(rows: pd.DataFrame, column: str) -> pd.Series:
    """Returns the row with the lowest value of a column, the first of several."""
    return rows.loc[rows[column].idxmin()]


def spread(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Returns at most `most` rows, evenly spread over their order."""
    count = min(len(rows), most)
    places = np.linspace(0, len(rows) - 1, count).round()
    return rows.iloc[places.astype(int)]


def apart(rows: Any, others: Any = None, suffix: str = "", ratio: Any = None) -> Any:
    """True where the intervals of two times do not overlap. A time without an interval has the
    usual one of its machine. `ratio` is the first time ÷ the second for equal work."""
    if others is None:
        others = rows
    if ratio is None:
        ratio = rows["time_s"] / others[f"time_s{suffix}"]
    low, high = relative_ends(rows)
    other_low, other_high = relative_ends(others, suffix)
    return (ratio * low > other_high) | (ratio * high < other_low)


def relative_ends(rows: Any, suffix: str = "") -> tuple[Any, Any]:
    """Returns the ends of each time's interval, ÷ the time. Without an interval, as for a single
    process, they are as far off as the machine's processes usually are."""
    time_s = rows[f"time_s{suffix}"]
    low = rows[f"time_ci_low_s{suffix}"] / time_s
    high = rows[f"time_ci_high_s{suffix}"] / time_s
    usual = rows.get(USUAL, RECORDED_HALF_WIDTH)
    if isinstance(rows, pd.DataFrame):
        usual = pd.Series(usual, rows.index).fillna(RECORDED_HALF_WIDTH)
        factor = np.exp(usual.astype(float))
        return low.fillna(1 / factor), high.fillna(factor)
    if pd.isna(usual):
        usual = RECORDED_HALF_WIDTH
    factor = math.exp(usual)
    if pd.isna(low):
        low = 1 / factor
    if pd.isna(high):
        high = factor
    return low, high


def with_usual(tables: Tables) -> Tables:
    """Adds the column USUAL to timed tables: what runs of several processes tell about a single one
    on their machine. Empty where FEWEST_RUNS of them are missing."""
    keys = ["hardware", "recorded"]
    columns = [*keys, "replicates", *INTERVAL]
    repeated = []
    for name in ("profile", "matmul"):
        if name in tables and set(columns) <= set(tables[name]):
            repeated.append(ok(tables[name], *INTERVAL)[columns])
    if not repeated:
        return tables
    usual = _usual(pd.concat(repeated), keys)
    with_column = dict(tables)
    for name in TIMED:
        if name in tables and set(keys) <= set(tables[name]):
            rows = tables[name].drop(columns=USUAL, errors="ignore")
            with_column[name] = rows.join(usual, on=keys)
    return with_column


def _usual(timed: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Usual half-width of a single process's time on each machine, from runs of several."""
    several = timed[timed["replicates"] > 1]
    half = np.log(several["time_ci_high_s"] / several["time_ci_low_s"]) / 2
    of_one = half * np.sqrt(several["replicates"])
    of_machine = of_one.groupby([several[key] for key in keys]).agg(["median", "count"])
    is_enough = of_machine["count"] >= FEWEST_RUNS
    return of_machine.loc[is_enough, "median"].rename(USUAL)


def against(
    rows: pd.DataFrame, base: pd.DataFrame, keys: Sequence[str], suffix: str, *columns: str
) -> pd.DataFrame:
    """Pairs rows with those of `base` that have equal `keys`. Adds the partner's time and `columns`
    with `suffix`, whether they are `apart`, and the `factor` between times."""
    judged = []
    for name in JUDGED:
        if name in base and name in rows:
            judged.append(name)
    partners = base.drop_duplicates(keys)[[*keys, *INTERVAL, *judged, *columns]]
    paired = rows.merge(
        partners,
        on=[*keys],
        suffixes=("", suffix),
    )
    paired = with_doubts_of_both(paired, judged, suffix)
    factor = paired["time_s"] / paired[f"time_s{suffix}"]
    return paired.assign(apart=apart(paired, suffix=suffix), factor=factor)


def with_doubts_of_both(paired: pd.DataFrame, judged: Sequence[str], suffix: str) -> pd.DataFrame:
    """Gives each pair the doubts of both rows: flags of either, and the product of their
    reaches."""
    both = {}
    for name in judged:
        own = paired[name]
        other = paired[f"{name}{suffix}"]
        if name == "reach":
            both[name] = own * other
        elif name == "doubts":
            both[name] = own.astype(int) | other.astype(int)
        else:
            both[name] = own.astype(bool) | other.astype(bool)
    others = [f"{name}{suffix}" for name in judged]
    return paired.drop(columns=others).assign(**both)


def with_machine(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `machine`, the machine's English label, what it is made of, and `device`: cpu, cuda or
    empty."""
    if "is_read" not in rows:
        rows = rows.assign(is_read=False, machine_name="")
    on = ["hardware", "recorded"]
    known = _known_machines(tables["environment"])
    first_rows = rows.drop_duplicates(on)  # few
    columns: dict[str, list[str]] = {
        "machine": [],
        "machine_name": [],
        "device": [],
    }
    for row, machine in zip(first_rows[on].itertuples(), _machines(first_rows), strict=True):
        name, device = known.get((row.hardware, row.recorded), ("", ""))
        if not machine.is_read:
            machine = machine._replace(name=name or row.hardware)
        columns["machine"].append(machine.label(Texts()))
        columns["machine_name"].append(machine.name)
        columns["device"].append(device)
    group = rows.groupby(on, sort=False, dropna=False).ngroup()
    added = {}
    for name, cells in columns.items():
        added[name] = pd.Series(pd.array(cells, dtype="str").take(group), rows.index)
    return rows.assign(**added)


def _known_machines(environment: pd.DataFrame) -> dict[tuple[str, bool], tuple[str, str]]:
    """Returns the name and device of each machine, by its folder and whether it is recorded. Those
    that share a name have their folder after it."""
    found = {}
    folders: dict[str, set[str]] = defaultdict(set)
    cells = environment[["hardware", "recorded", "device_name", "device"]]
    for hardware, is_recorded, device_name, device in cells.itertuples(index=False, name=None):
        found[hardware, is_recorded] = (short_name(device_name), device)
    for (hardware, _), (name, _) in found.items():
        folders[name].add(hardware)
    for (hardware, is_recorded), (name, device) in found.items():
        if len(folders[name]) > 1:
            found[hardware, is_recorded] = (f"{name} {hardware}", device)
    return found


def machines(rows: pd.DataFrame) -> dict[str, Machine]:
    """Returns the machines of rows, by label."""
    first_rows = rows.drop_duplicates("machine")  # few, however many rows
    return dict(zip(first_rows["machine"], _machines(first_rows), strict=True))


def _machines(rows: pd.DataFrame) -> list[Machine]:
    """The machine of each row."""
    return [Machine(*cells) for cells in rows[LABELLED].itertuples(index=False, name=None)]


def emulated(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose number format is emulated, so that MFU is relative to the peak of another
    format."""
    if not {"peak_precision", "effective_precision"} <= set(rows):
        return pd.Series(False, index=rows.index)
    peak = rows["peak_precision"].fillna("")
    return (peak != "") & (peak != rows["effective_precision"])


def comparable(rows: pd.DataFrame, suffix: str = "") -> pd.Series:
    """True for steps that may be ranked: page faults cost at most a share FAULTY, and matmuls take
    at least MATMULS % of the time."""
    unknown = pd.Series(float("nan"), rows.index)
    faults_per_s = rows.get(f"page_faults_per_s{suffix}", unknown)
    fault_s = rows.get(f"page_fault_s{suffix}", unknown)
    kept_s = rows.get(f"kept_memory_time_s{suffix}", unknown)
    matmul_percent = rows.get(f"matmul_percent{suffix}", unknown)
    time_s = rows[f"time_s{suffix}"]
    costs_nothing = kept_s >= time_s  # as in the step's account
    is_priced = (faults_per_s * fault_s > FAULTY) & ~costs_nothing
    is_faulty = is_priced | (kept_s < (1 - FAULTY) * time_s)
    return ~is_faulty & ~(matmul_percent < MATMULS)


def in_words(rows: pd.DataFrame, text: Texts) -> pd.DataFrame:
    """Labels the machines in the text's language."""
    if rows.empty or "machine" not in rows:
        return rows
    labels = {label: machine.label(text) for label, machine in machines(rows).items()}
    return rows.assign(machine=rows["machine"].map(labels).astype(str))


def short_name(device: str) -> str:
    """Shortens a device's name, without trademarks and clock: `Intel(R) Xeon(R) CPU @ 2.00GHz`
    becomes `Intel Xeon`."""
    without = re.sub(r"\((R|TM|C)\)|@.*$|\b(CPU|Processor)\b", " ", device, flags=re.IGNORECASE)
    return " ".join(without.split()) or device


def kinds(table: str) -> dict[str, type]:
    """Type of each column of a table: str, bool or float. Integers are float, as a missing integer
    has no value."""
    types = {name: columns.kind(field) for name, field in columns.fields(table).items()}
    return {name: float if kind is int else kind for name, kind in types.items()}


def _read(path: Path, table: str, problems: list[str], rules: list[Said]) -> pd.DataFrame:
    """Reads the rows of a table that are shown. Appends faults of the file to `problems`, and the
    rule of a choice of rows to `rules`."""
    expected = kinds(table)
    frame = pd.DataFrame()
    is_long = False
    try:
        is_long = path.stat().st_size > LARGE_BYTES
        frame = _read_chosen(path, expected, rules) if is_long else _read_cells(path, expected)
        absent = [name for name in expected if name not in frame]
        if absent:
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
    if list(frame) != list(expected):
        frame = _completed(frame, expected)
    frame["recorded"] = frame["recorded"].fillna(False).astype(bool)
    choice = None
    if not is_long:
        choice = _choice(frame, expected, path)
    if choice is not None:
        rules.append(choice.rule)
        return frame[choice.rows].reset_index(drop=True)
    if len(frame) >= MANY:
        return frame
    return frame.copy()


def _completed(frame: pd.DataFrame, expected: Mapping[str, type]) -> pd.DataFrame:
    """Returns the expected columns in order; those that are missing are empty."""
    empty = _empty(frame.index)
    cells = {name: frame.get(name, empty[kind]) for name, kind in expected.items()}
    return pd.DataFrame(cells, copy=False)


def _choice(keys: pd.DataFrame, expected: Iterable[str], path: Path) -> shown_rows.Choice | None:
    """Choice of the rows of a table that are shown; None if all are."""
    return shown_rows.choose(keys, expected, path.name, shown_rows.SHOWN)


def _empty(index: pd.Index) -> dict[type, pd.Series]:
    """An empty column for each kind of cell."""
    return {kind: pd.Series(value, index, dtype) for kind, (value, dtype) in EMPTY.items()}


def _make_typed(frame: pd.DataFrame, expected: Mapping[str, type]) -> int:
    """Converts the columns of a file to their types, in place. Returns the number of cells that
    should be numbers but are not."""
    # Empty columns of a kind share one array, as most columns of a sweep are empty.
    empty = _empty(frame.index)
    unreadable = 0
    for name in filter(frame.__contains__, expected):
        kind = expected[name]
        column, faulty = _typed(frame[name], kind)
        frame[name] = empty[kind] if _is_empty(column, kind) else column
        unreadable += faulty
    return unreadable


def _read_chosen(path: Path, expected: Mapping[str, type], rules: list[Said]) -> pd.DataFrame:
    """Reads the rows that represent a long file, in parts, so that it is never in memory as a
    whole."""
    read = pick_present(expected, shown_rows.KEYS)
    keys = _read_cells(path, read)
    _make_typed(keys, read)
    choice = None
    if set(read) <= set(keys):  # missing columns are reported elsewhere
        choice = _choice(keys, expected, path)
    if choice is None:
        return _read_cells(path, expected)
    rules.append(choice.rule)
    parts = [part[choice.rows[part.index]] for part in _read_parts(path, expected)]
    return pd.concat(parts, ignore_index=True)


def _read_parts(path: Path, expected: Mapping[str, type]) -> Iterator[pd.DataFrame]:
    """Yields the expected columns of a file in parts of ROWS_AT_ONCE rows."""
    with opened(path) as file:
        yield from pd.read_csv(file, chunksize=ROWS_AT_ONCE, **_options(expected))


def _typed(cells: pd.Series, kind: type) -> tuple[pd.Series, int]:
    """Converts a column to its kind. Also returns the number of cells that should be numbers but
    are not."""
    if kind is str:
        codes, distinct = pd.factorize(cells)
        words = pd.array(list(map(unquoted, distinct)), "str")
        return pd.Series(words.take(codes), cells.index), 0
    if kind is bool:
        flags = cells.map({"True": True, "False": False})
        return flags.astype("boolean"), 0
    if is_numeric_dtype(cells) and not is_bool_dtype(cells):
        return cells, 0
    numbers = pd.to_numeric(cells.astype(str), errors="coerce")
    unreadable = numbers.isna() & cells.notna()
    return numbers, int(unreadable.sum())


def _is_empty(cells: pd.Series, kind: type) -> bool:
    missing = (cells == "") if kind is str else cells.isna()
    return bool(missing.all())


def _read_cells(path: Path, expected: Mapping[str, type]) -> pd.DataFrame:
    """Reads the expected columns as they are in the file: as text, or as numbers if all cells of
    the column are."""
    with opened(path) as file, warnings.catch_warnings():
        # Raised for columns with texts among numbers.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        return pd.read_csv(file, **_options(expected))


def _options(expected: Mapping[str, type]) -> dict[str, Any]:
    """Arguments of `pandas.read_csv` for the expected columns of a file."""
    numbers = {name: [""] for name, kind in expected.items() if kind is float}
    return {
        "usecols": lambda name: name in expected,
        "dtype": dict.fromkeys(set(expected) - set(numbers), str),
        "na_values": numbers,
        "keep_default_na": False,
        "encoding_errors": "replace",
    }
