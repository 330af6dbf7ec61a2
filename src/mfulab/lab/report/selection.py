"""Selection of the rows that figures draw and sentences tell, with reasons for those left out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import pandas as pd

from mfulab.core.language import Texts
from mfulab.lab.report import claims, frames, trust
from mfulab.lab.report.drawing import style
from mfulab.mfu.models import is_load

MACHINES = 3  # panels of a figure, unless its module says otherwise
ENOUGH = 6  # rows of a machine that a sentence is about, where another has fewer
FEWEST = 2  # rows of a figure, unless its module says that one is a comparison
MOST_FIGURES = 10  # of a page with a first sweep alone
FEW_LAYERS = 2  # brackets of a list with a single layer
FEW_SIZES = 2  # of matrices: no curve
SEVERAL = 5  # numbers of accelerators that make a series
WHOLE = 32  # sides of other sizes are measured for alignment, and their kernels are slower
FEWER_FLOPS = "fewer_flops"  # the experiment that compares models
FIRST_SWEEPS = ("quickstart", "quickstart_gpu")
HEADLINE = "headline"  # topic of the figure that is drawn of any row
# Figures of a first page, the most telling first.
FIRST_FIGURES = (
    *("mfu_versus_utilization", "headroom", "utilization_ladder", "kernel_ladder", "equal_cards"),
    *("precision_speed", "time_by_batch_size", "roofline", "flops_by_layer"),
    *("computational_graph", "memory_breakdown", "training_phases", "matmul_precision"),
    *("ceilings", "run_in_time", "transfers", "repeatability"),
)


@dataclass(frozen=True)
class Selection:
    """Rows that a sentence may name, and the number of others by the reason that left them out."""

    told: pd.DataFrame
    left_out: Mapping[str, int]


def is_synthetic(rows: pd.DataFrame) -> pd.Series:
    """True for each row of a model that exists to load a device."""
    if "model" not in rows:
        return pd.Series(False, rows.index)
    return rows["model"].map({name: is_load(name) for name in rows["model"].unique()})


def _is_recorded(rows: pd.DataFrame) -> pd.Series:
    if "recorded" not in rows:
        return pd.Series(False, rows.index)
    return rows["recorded"].astype(bool)


def _is_elsewhere(rows: pd.DataFrame) -> pd.Series:
    """True for each row of another machine than the one that is told."""
    if not {"machine", "recorded"} <= set(rows):
        return pd.Series(False, rows.index)
    return rows["machine"] != main_machine(rows)


def _is_of_lower_panel(rows: pd.DataFrame) -> pd.Series:
    """True for each row of another machine than that of the first panel."""
    return rows["machine"] != style.machines(rows, 1)[0]


def main_machine(rows: pd.DataFrame) -> str:
    """The machine that a sentence is about: the first with ENOUGH rows, or the one with most."""
    counts = rows["machine"].value_counts()
    machines = style.machines(rows, len(counts))
    enough = []
    for machine in machines:
        if counts[machine] >= ENOUGH:
            enough.append(machine)
    if enough:
        return enough[0]
    return max(machines, key=counts.__getitem__)


def _is_few_layers(rows: pd.DataFrame) -> pd.Series:
    """True for each model of one layer, which is no comparison."""
    return rows["layers"].str.count(r"\[") <= FEW_LAYERS


def _is_short(rows: pd.DataFrame) -> pd.Series:
    """True for each row of a recorded machine with too few sizes for a curve."""
    sizes = rows.groupby("machine")["n"].transform("nunique")
    return rows["recorded"] & (sizes <= FEW_SIZES)


def _is_recorded_trace(rows: pd.DataFrame) -> pd.Series:
    return rows["recorded"] & rows["hardware"].str.endswith(frames.READ)


def _is_recorded_cpu(rows: pd.DataFrame) -> pd.Series:
    return rows["recorded"] & (rows["device"] == "cpu")


def _is_variant(rows: pd.DataFrame) -> pd.Series:
    """True for each step that is not the plain one of its mode."""
    return (rows["execution"] != "eager") | (rows["workload"] != rows["mode"])


def _is_incomparable(rows: pd.DataFrame) -> pd.Series:
    return ~frames.comparable(rows)


def _is_uneven(rows: pd.DataFrame) -> pd.Series:
    """True for each matmul of a side that is measured for alignment, with a slower kernel."""
    return rows["n"] % WHOLE != 0


def _is_little_scaled(rows: pd.DataFrame) -> pd.Series:
    """True for each public run of a model that ran on few numbers of accelerators."""
    return rows.groupby("model")["accelerators"].transform("nunique") < SEVERAL


def _is_other_experiment(rows: pd.DataFrame) -> pd.Series:
    """True for each row that was not measured to compare models of fewer FLOPs."""
    return rows["experiment"] != FEWER_FLOPS


def _is_uncounted(rows: pd.DataFrame) -> pd.Series:
    return ~(rows["mfu_percent"] > 0)


def one_machine(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the one machine that a figure or sentence is about: measured here before recorded."""
    if rows.empty:
        return rows
    return pick(rows, "recorded", "elsewhere")


# Each reason applies only where it leaves a row over: a claim that could turn before one of a row
# that is merely unsure.
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
    # Of what a figure draws.
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


# Texts on what each reason left out.
SYNTHETIC = "synthetic"
LEFT_OUT = {
    "contradict": "left_contradict",
    "doubtful": "left_doubtful",
    "unsure": "left_unsure",
    "recorded": "left_recorded",
    SYNTHETIC: "left_synthetic",
    "elsewhere": "left_elsewhere",
    "below": "left_elsewhere",
}


# Of a sentence on any rows, on rows of a figure that explain one another, on those of its first
# panel, and on rows of which each is held against one other.
USUAL = ("contradict", "doubtful", "unsure", "recorded", "synthetic", "elsewhere")
TOGETHER = ("contradict", "recorded", "elsewhere")
FIRST_PANEL = ("contradict", "doubtful", "unsure", "recorded", "synthetic", "below")
BESIDE_ONE = ("contradict", "doubtful", "unsure", "recorded", "elsewhere")
FIRST_SCREEN = ("uncounted", "emulated", "doubtful", "synthetic")
BUSY = 90  # percent of the time, from which a run's low MFU surprises


def select(rows: pd.DataFrame, reasons: Iterable[str] = USUAL) -> Selection:
    """Rows that a sentence tells: sound before contradictory, claims that hold before those that
    could turn, own before recorded, real models before synthetic loads, and of one machine."""
    selected = rows
    left_out = {}
    for reason in reasons:
        chosen = REASONS[reason](selected)
        if chosen.any() and not chosen.all():
            left_out[reason] = int(chosen.sum())
            selected = frames.those(selected, ~chosen)
    return Selection(selected, left_out)


def pick(rows: pd.DataFrame, *reasons: str) -> pd.DataFrame:
    """Rows that a figure draws: those that no reason leaves out, each where it leaves any over."""
    return select(rows, reasons).told


def largest(rows: pd.DataFrame, keys: Sequence[str], counted: str = "") -> pd.DataFrame:
    """The largest group of rows alike in `keys`: by its rows, or by its distinct values of the
    column `counted`."""
    if rows.empty:
        return rows
    columns = list(keys)
    groups = rows.groupby(columns)
    sizes = groups[counted].nunique() if counted else rows[columns].value_counts()
    chosen = sizes.index.to_frame().iloc[sizes.argmax()]
    return rows[(rows[columns] == chosen.tolist()).all(axis=1)]


def of_module(module: ModuleType, rows: pd.DataFrame) -> Selection:
    """Selection of a figure, for the reasons that apply to it."""
    return select(rows, reasons_of(module))


def reasons_of(module: ModuleType) -> Sequence[str]:
    """Reasons that apply to a figure: those that its module names, if it names any, as one that
    compares machines or loads leaves some away. Where each mark's claim stands alone, an unsure row
    whose claim holds is told too."""
    reasons: Sequence[str] = getattr(module, "REASONS", USUAL)
    if hasattr(module, "CLAIM") and not claims.compares(module):
        found = []
        for reason in reasons:
            if reason != "unsure":
                found.append(reason)
        return found
    return reasons


def first_run(rows: pd.DataFrame) -> pd.Series:
    """The run that the first screen is about: of lowest MFU, of a model that people have before a
    synthetic load, multiplying and busy, where there is any."""
    selected = select(rows, FIRST_SCREEN).told
    selected = frames.preferred(selected, ~(selected["matmul_percent"] < frames.MATMULS))
    selected = frames.preferred(selected, selected["utilization_percent"] >= BUSY)
    return selected.loc[selected["mfu_percent"].idxmin()]


def best_runs(rows: pd.DataFrame, first: pd.Series) -> pd.DataFrame:
    """The runs of highest MFU on the first run's machine, trusted ones before others: one, or with
    those of other models that could be higher, the highest first."""
    selected = select(rows, FIRST_SCREEN).told
    here = selected[selected["machine"] == first["machine"]]
    here = frames.preferred(here, ~trust.unsure(here))
    here = here.sort_values("mfu_percent", ascending=False, kind="stable")
    best = here.iloc[0]
    others = here[here["model"] != best["model"]]
    ends = claims.ends_of(here, "mfu_percent")
    could_be = ends.loc[others.index, "high"] >= ends.loc[best.name, "low"]
    return here.loc[[best.name, *others.index[could_be]]]


def left_out_words(selection: Selection, text: Texts) -> str:
    """Sentences on the rows that a figure draws and its sentence leaves out, but for those of
    synthetic loads, which the figure's sentence tells itself."""
    sentences = []
    for reason, count in selection.left_out.items():
        if reason != SYNTHETIC:
            sentences.append(text(LEFT_OUT[reason], count=count))
    return " ".join(sentences)


def synthetic_words(selection: Selection, text: Texts) -> list[str]:
    """Sentence on the rows of synthetic loads that a figure draws beside what is told; none without
    any."""
    count = selection.left_out.get(SYNTHETIC)
    if count:
        return [text(LEFT_OUT[SYNTHETIC], count=count)]
    return []


def unranked_words(sound: pd.Series, text: Texts) -> list[str]:
    """Sentence on rows that are not sound: how many are not ranked, or that none is sound; none where
    all are."""
    if sound.all():
        return []
    if not sound.any():
        return [text("faulty")]
    return [text("left_out", count=int((~sound).sum()))]


def drawable(module: ModuleType, tables: frames.Tables) -> pd.DataFrame:
    """Rows of a figure on the machines that get a panel; none where they do not make a figure. A
    machine of which no claim holds gets no panel beside one of which some does."""
    rows = module.rows(tables)
    if rows.empty:
        return rows
    rows = claims.turns(module, rows)
    if is_first_sweep(tables):
        rows = _of_own_alone(module, rows)
    if {"machine", "recorded"} <= set(rows):
        sound = rows.loc[~trust.doubtful(rows), "machine"]
        rows = frames.preferred(rows, rows["machine"].isin(sound))
        machines = style.machines(rows, getattr(module, "MACHINES", MACHINES))
        rows = frames.those(rows, rows["machine"].isin(machines))
    if is_worth(module, rows):
        return rows
    return rows.iloc[:0]


def _of_own_alone(module: ModuleType, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that were measured here, where they make a figure: on a first page recorded machines
    would hide them."""
    own = rows[~_is_recorded(rows)]
    if len(own) and is_worth(module, own):
        return own
    return rows


def is_worth(module: ModuleType, rows: pd.DataFrame) -> bool:
    """True if a figure of these rows says something: enough of them, not all doubtful."""
    if module.TOPIC == HEADLINE:
        return True
    if len(rows) < getattr(module, "FEWEST", FEWEST):
        return False
    return not trust.doubtful(rows).all()


def of_page(rows: Mapping[str, pd.DataFrame], tables: frames.Tables) -> list[str]:
    """Names of a page's figures, of those with `rows`. A first sweep's page shows at most
    MOST_FIGURES, all of this machine; another page shows all."""
    if not is_first_sweep(tables):
        return list(rows)
    own = set()
    for name, drawn in rows.items():
        if not _is_recorded(drawn).all():
            own.add(name)
    for name in rows:
        if name == FIRST_FIGURES[0]:
            own.add(name)
    first = [name for name in FIRST_FIGURES if name in own][:MOST_FIGURES]
    found = []
    for name in rows:
        if name in first:
            found.append(name)
    return found


def is_first_sweep(tables: frames.Tables) -> bool:
    """True if nothing but a first sweep was measured on this machine."""
    measured: set[str] = set()
    for name in trust.STEPS:
        if name in tables:
            rows = tables[name]
            measured |= set(rows.loc[~rows["recorded"], "experiment"])
    return bool(measured) and measured <= set(FIRST_SWEEPS)
