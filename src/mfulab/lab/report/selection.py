"""Selects the rows that figures draw and that sentences are about, with reasons for those left
out."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import pandas as pd

from mfulab.core.language import Texts
from mfulab.lab.report import claims, frames, trust
from mfulab.lab.report.drawing import style
from mfulab.mfu.models import is_load

MACHINES = 3  # panels of a figure, unless its module says otherwise
ENOUGH = 6  # rows with which a machine may be the one that a sentence is about
FEWEST = 2  # rows of a figure, unless its module sets another number
MOST_FIGURES = 10  # on a page with only a first sweep
FEW_LAYERS = 2  # opening brackets in the JSON of a single layer
FEW_SIZES = 2  # matrix sizes that make no curve
SEVERAL = 5  # different numbers of accelerators that make a series
WHOLE = 32  # sides that are no multiple are measured for alignment; their kernels are slower
FEWER_FLOPS = "fewer_flops"  # the experiment that compares models
FIRST_SWEEPS = ("quickstart", "quickstart_gpu")
HEADLINE = "headline"  # topic of the figure that is drawn even of a single row
# Figures for the page of a first sweep, most important first.
FIRST_FIGURES = (
    *("mfu_versus_utilization", "headroom", "utilization_ladder", "kernel_ladder", "equal_cards"),
    *("precision_speed", "time_by_batch_size", "roofline", "flops_by_layer"),
    *("computational_graph", "memory_breakdown", "training_phases", "matmul_precision"),
    *("ceilings", "run_in_time", "transfers", "repeatability"),
)


@dataclass(frozen=True)
class Selection:
    """Rows that a sentence is about (`told`), and the number left out by each reason."""

    told: pd.DataFrame
    left_out: Mapping[str, int]


def is_synthetic(rows: pd.DataFrame) -> pd.Series:
    """True for rows of a model that exists only to load a device."""
    if "model" not in rows:
        return pd.Series(False, rows.index)
    return rows["model"].map({name: is_load(name) for name in rows["model"].unique()})


def _is_recorded(rows: pd.DataFrame) -> pd.Series:
    if "recorded" not in rows:
        return pd.Series(False, rows.index)
    return rows["recorded"].astype(bool)


def _is_elsewhere(rows: pd.DataFrame) -> pd.Series:
    """True for rows of another machine than the one that the sentence is about."""
    if not {"machine", "recorded"} <= set(rows):
        return pd.Series(False, rows.index)
    return rows["machine"] != main_machine(rows)


def _is_of_lower_panel(rows: pd.DataFrame) -> pd.Series:
    """True for rows of another machine than that of the first panel with FEWEST rows."""
    return rows["machine"] != _first_with(rows, FEWEST)


def main_machine(rows: pd.DataFrame) -> str:
    """Returns the machine that a sentence is about: the first with ENOUGH rows, else the one with
    the most."""
    return _first_with(rows, ENOUGH)


def _first_with(rows: pd.DataFrame, enough: int) -> str:
    """Returns the first machine with `enough` rows, else the one with the most."""
    counts = rows["machine"].value_counts()
    machines = style.machines(rows, len(counts))
    for machine in machines:
        if counts[machine] >= enough:
            return machine
    return max(machines, key=counts.__getitem__)


def _is_few_layers(rows: pd.DataFrame) -> pd.Series:
    """True for models of one layer, which compare nothing."""
    return rows["layers"].str.count(r"\[") <= FEW_LAYERS


def _is_short(rows: pd.DataFrame) -> pd.Series:
    """True for rows of a recorded machine with too few sizes for a curve."""
    sizes = rows.groupby("machine")["n"].transform("nunique")
    return rows["recorded"] & (sizes <= FEW_SIZES)


def _is_recorded_trace(rows: pd.DataFrame) -> pd.Series:
    return rows["recorded"] & rows["is_read"]


def _is_recorded_cpu(rows: pd.DataFrame) -> pd.Series:
    return rows["recorded"] & (rows["device"] == "cpu")


def _is_variant(rows: pd.DataFrame) -> pd.Series:
    """True for steps whose model, execution or workload is not the plain one."""
    is_issued_otherwise = rows["execution"] != "eager"
    return is_issued_otherwise | (rows["workload"] != rows["mode"]) | frames.pruned(rows)


def _is_untraced(rows: pd.DataFrame) -> pd.Series:
    """True for steps of which no trace shows where the time goes."""
    if "useful_ms" not in rows:
        return pd.Series(False, rows.index)
    return rows["useful_ms"].isna()


def _is_incomparable(rows: pd.DataFrame) -> pd.Series:
    return ~frames.comparable(rows)


def _is_uneven(rows: pd.DataFrame) -> pd.Series:
    """True for matmuls whose side is measured only for alignment, with a slower kernel."""
    return rows["n"] % WHOLE != 0


def _is_little_scaled(rows: pd.DataFrame) -> pd.Series:
    """True for public runs of a model with few different numbers of accelerators."""
    return rows.groupby("model")["accelerators"].transform("nunique") < SEVERAL


def _is_other_experiment(rows: pd.DataFrame) -> pd.Series:
    """True for rows that were not measured to compare models with fewer FLOPs."""
    return rows["experiment"] != FEWER_FLOPS


def _is_uncounted(rows: pd.DataFrame) -> pd.Series:
    return ~(rows["mfu_percent"] > 0)


def one_machine(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the one machine that a figure or sentence is about. Rows measured here
    are preferred to recorded ones."""
    if rows.empty:
        return rows
    return pick(rows, "recorded", "elsewhere")


# A function for each reason, True for rows to leave out. A reason that would leave out all rows is
# ignored.
REASONS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    "contradict": trust.impossible,
    "doubtful": trust.doubtful,
    "unsure": trust.unsure,
    "recorded": _is_recorded,
    "uncounted": _is_uncounted,
    "emulated": frames.emulated,
    "synthetic": is_synthetic,
    "elsewhere": _is_elsewhere,
    "below": _is_of_lower_panel,
    # For what a figure draws.
    "few_layers": _is_few_layers,
    "short": _is_short,
    "recorded_trace": _is_recorded_trace,
    "recorded_cpu": _is_recorded_cpu,
    "variant": _is_variant,
    "incomparable": _is_incomparable,
    "uneven": _is_uneven,
    "little_scaled": _is_little_scaled,
    "other_experiment": _is_other_experiment,
}


# Text for the rows that each reason left out.
SYNTHETIC = "synthetic"
LEFT_OUT = {
    "contradict": "left_doubtful",
    "doubtful": "left_doubtful",
    "unsure": "left_doubtful",
    "recorded": "left_recorded",
    SYNTHETIC: "left_synthetic",
    "elsewhere": "left_elsewhere",
    "below": "left_elsewhere",
}


# Reasons for a sentence on any rows, on rows that only make sense together, on rows of the first
# panel, and on rows that are each compared with one other.
USUAL = ("contradict", "doubtful", "unsure", "recorded", "synthetic", "elsewhere")
TOGETHER = ("contradict", "recorded", "elsewhere")
FIRST_PANEL = ("contradict", "doubtful", "unsure", "recorded", "synthetic", "below")
BESIDE_ONE = ("contradict", "doubtful", "unsure", "recorded", "elsewhere")
FIRST_SCREEN = ("uncounted", "emulated", "doubtful", "synthetic")
BUSY = 90  # % utilization from which a low MFU is surprising
CASE = ["machine", "model", "mode"]  # of which one run stands for all


def select(rows: pd.DataFrame, reasons: Iterable[str] = USUAL) -> Selection:
    """Selects the rows that a sentence is about. Applies each reason in turn, unless it would leave
    out all rows."""
    selected = rows
    left_out = {}
    for reason in reasons:
        chosen = REASONS[reason](selected)
        if chosen.any() and not chosen.all():
            left_out[reason] = int(chosen.sum())
            selected = frames.those(selected, ~chosen)
    return Selection(selected, left_out)


def pick(rows: pd.DataFrame, *reasons: str) -> pd.DataFrame:
    """Returns the rows that a figure draws: `select` without the counts."""
    return select(rows, reasons).told


def largest(rows: pd.DataFrame, keys: Sequence[str], counted: str = "") -> pd.DataFrame:
    """Returns the largest group of rows with equal `keys`, by its number of rows, or of distinct
    values of the column `counted`."""
    if rows.empty:
        return rows
    columns = list(keys)
    groups = rows.groupby(columns)
    sizes = groups[counted].nunique() if counted else rows[columns].value_counts()
    chosen = sizes.index.to_frame().iloc[sizes.argmax()]
    return rows[(rows[columns] == chosen.tolist()).all(axis=1)]


def of_module(module: ModuleType, rows: pd.DataFrame) -> Selection:
    """Selects the rows of a figure's sentence, by the reasons that apply to the figure."""
    return select(rows, reasons_of(module))


def reasons_of(module: ModuleType) -> Sequence[str]:
    """Reasons that apply to a figure: its module's `REASONS`, or the usual ones. If each mark's
    claim stands alone, unsure rows are not left out."""
    reasons: Sequence[str] = getattr(module, "REASONS", USUAL)
    if hasattr(module, "CLAIM") and not claims.compares(module):
        return [reason for reason in reasons if reason != "unsure"]
    return reasons


def first_run(rows: pd.DataFrame) -> pd.Series:
    """Returns the run that the first screen is about: the lowest MFU. Real models, steps with
    matmuls and busy devices are preferred."""
    selected = select(rows, FIRST_SCREEN).told
    selected = frames.preferred(selected, ~(selected["matmul_percent"] < frames.MATMULS))
    selected = frames.preferred(selected, selected["utilization_percent"] >= BUSY)
    return frames.lowest(selected, "mfu_percent")


def one_of_each(rows: pd.DataFrame, named: Sequence[Hashable] = ()) -> pd.DataFrame:
    """Returns the run that stands for its machine, model and mode on the page: one of the runs
    `named` by their index, else the fastest. Plain, then trusted, then traced runs are
    preferred."""
    ordered = rows.assign(
        is_named=rows.index.isin(named),
        is_variant=_is_variant(rows),
        unsure=trust.unsure(rows),
        is_untraced=_is_untraced(rows),
    )
    ordered = ordered.sort_values(
        ["is_named", "is_variant", "unsure", "is_untraced", "samples_per_s"],
        ascending=[False, True, True, True, False],
        na_position="last",
    )
    return rows.loc[ordered.drop_duplicates(CASE).index]


def named_runs(charted: pd.DataFrame) -> list[Hashable]:
    """Returns the indices of the runs that the page's first sentence names, the lowest first.
    `charted` are the rows of the first figure."""
    if charted.empty:
        return []
    first = first_run(charted)
    best = best_runs(charted, first)
    return list(dict.fromkeys([first.name, best.index[0]]))


def named_of_page(headline: ModuleType, tables: frames.Tables) -> list[Hashable]:
    """Returns the indices of the runs that the page's first sentence names, in the steps and traces
    of the tables; empty if the `headline` figure has no rows."""
    return named_runs(drawable(headline, tables))


def best_runs(rows: pd.DataFrame, first: pd.Series) -> pd.DataFrame:
    """Returns the run of highest MFU on the first run's machine, then runs of other models that
    could be higher. Trusted runs are preferred."""
    selected = select(rows, FIRST_SCREEN).told
    here = selected[selected["machine"] == first["machine"]]
    here = frames.preferred(here, ~trust.unsure(here))
    here = here.sort_values("mfu_percent", ascending=False, kind="stable")
    best = here.iloc[0]
    others = here[here["model"] != best["model"]]
    ends = claims.ends_of(here, "mfu_percent")
    could_be = ends.loc[others.index, "high"] >= ends.loc[best.name, "low"]
    return here.loc[[best.name, *others.index[could_be]]]


def left_out_words(selection: Selection, text: Texts, named: int = 0) -> str:
    """Sentences on rows that a figure draws but its sentence leaves out. Synthetic loads are
    omitted, as the figure mentions them itself, and so are `named` doubtful rows that its sentence
    names."""
    counts = Counter[str]()
    for reason, count in selection.left_out.items():
        if reason != SYNTHETIC:
            counts[LEFT_OUT[reason]] += count
    counts["left_doubtful"] -= named
    return " ".join(text(key, count=count) for key, count in counts.items() if count > 0)


def synthetic_words(selection: Selection, text: Texts) -> list[str]:
    """Sentence on synthetic loads that a figure draws in addition; empty if there are none."""
    count = selection.left_out.get(SYNTHETIC)
    if count:
        return [text(LEFT_OUT[SYNTHETIC], count=count)]
    return []


def reading_of_few(
    rows: pd.DataFrame, text: Texts, most: int, panels: Sequence[str] = ("machine",)
) -> str:
    """Explains how to read a figure that draws at most `most` things in a panel, and counts those
    that it leaves out: the column `undrawn`, one number for each panel."""
    undrawn = int(rows.drop_duplicates([*panels])["undrawn"].sum())
    if not undrawn:
        return text("reading")
    return f"{text('reading')} {text('undrawn', count=undrawn, most=most)}"


def unranked_words(sound: pd.Series, text: Texts) -> list[str]:
    """Sentence on how many rows are not sound and so not ranked; empty if all are sound."""
    if sound.all():
        return []
    if not sound.any():
        return [text("faulty")]
    return [text("left_out", count=int((~sound).sum()))]


def drawable(module: ModuleType, tables: frames.Tables) -> pd.DataFrame:
    """Returns the rows of a figure, on the machines that get a panel; empty if they are too few.
    Machines with only doubtful rows get no panel if another has sound ones."""
    rows = module.rows(tables)
    if rows.empty:
        return rows
    rows = claims.turns(module, rows)
    if is_first_sweep(tables):
        rows = _own_if_enough(module, rows)
    if {"machine", "recorded"} <= set(rows):
        sound = rows.loc[~trust.doubtful(rows), "machine"]
        rows = frames.preferred(rows, rows["machine"].isin(sound))
        machines = style.machines(rows, getattr(module, "MACHINES", MACHINES))
        rows = frames.those(rows, rows["machine"].isin(machines))
    if is_worth(module, rows):
        return rows
    return rows.iloc[:0]


def _own_if_enough(module: ModuleType, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns only the rows measured here if they make a figure, so that recorded machines do not
    hide them on a first page."""
    own = rows[~_is_recorded(rows)]
    if len(own) and is_worth(module, own):
        return own
    return rows


def is_worth(module: ModuleType, rows: pd.DataFrame) -> bool:
    """True if a figure of these rows is worth drawing: enough rows, not all doubtful."""
    if module.TOPIC == HEADLINE:
        return True
    if len(rows) < getattr(module, "FEWEST", FEWEST):
        return False
    return not trust.doubtful(rows).all()


def of_page(rows: Mapping[str, pd.DataFrame], tables: frames.Tables) -> list[str]:
    """Returns the names of a page's figures, out of those with `rows`. A first sweep's page has at
    most MOST_FIGURES, about this machine; others have all."""
    if not is_first_sweep(tables):
        return list(rows)
    own = set()
    for name, drawn in rows.items():
        if not _is_recorded(drawn).all():
            own.add(name)
    if FIRST_FIGURES[0] in rows:
        own.add(FIRST_FIGURES[0])
    first = [name for name in FIRST_FIGURES if name in own][:MOST_FIGURES]
    return [name for name in rows if name in first]


def is_first_sweep(tables: frames.Tables) -> bool:
    """True if only a first sweep was measured on this machine."""
    measured: set[str] = set()
    for name in trust.STEPS:
        if name in tables:
            rows = tables[name]
            measured |= set(rows.loc[~rows["recorded"], "experiment"])
    return bool(measured) and measured <= set(FIRST_SWEEPS)
