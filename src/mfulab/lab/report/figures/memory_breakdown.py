"""Memory by what occupies it: weights, gradients, optimiser state, activations and cache, for each
technique."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.core.parts import Record, Row, pick_all
from mfulab.device.datasheets import find
from mfulab.flops.memory import StepMemory, training_memory
from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import (
    Figure,
    Legend,
    Texts,
    kinds,
    percent,
    quantity,
    runs,
    style,
)
from mfulab.lab.report.frames import DataFrame, Series, Tables, highest, lowest, ok, steps

TOPIC = "memory"
ORDER = 0
CLAIM = claims.COUNTED
REASONS = ("contradict", "recorded")  # rows are counted, and compared with measured ones
COLORS = {
    "weights": style.PALETTE[0],
    "master_weights": style.PALETTE[4],
    "gradients": style.PALETTE[5],
    "optimizer_state": style.PALETTE[1],
    "activations": style.PALETTE[2],
    "cache": style.PALETTE[3],
}
# Common cards, also of the page's table of batch sizes.
CARDS = (
    *("T4", "GeForce RTX 4090", "A100 SXM4 40GB", "H100 SXM5 80GB"),
    *("H200 SXM", "B200 HGX", "Instinct MI300X"),
)
CAPACITIES = sorted((find(card).memory_gb or 0.0, card) for card in CARDS)
SAVES = 0.1  # share by which a setup is leaner than all above it
LEAST_ERROR = 0.1  # of a count: contexts and fragmentation are not in it
ROOM = 3  # lines below the bars, for the names of cards
MOST_MODELS = 3  # each with a panel
BYTES = 4  # of an element, as counted


ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float64": 8}  # of other formats 4
TRAINING: Record = {
    "element_bytes": 4,
    "optimizer": "adam",
    "checkpointing": False,
    "devices": 1,
}
MIXED = TRAINING | {"element_bytes": 2, "master_copy": True}
AUTOCAST = TRAINING | {"element_bytes": 2, "autocast": True}
# Techniques from the usual to the leanest, as options of `_training`.
WAYS: Mapping[str, Record] = {
    "fp32_adam": TRAINING,
    "fp32_sgd": TRAINING | {"optimizer": "sgd"},
    "fp32_checkpointed": TRAINING | {"checkpointing": True},
    "autocast_adam": AUTOCAST,
    "autocast_checkpointed": AUTOCAST | {"checkpointing": True},
    "mixed_adam": MIXED,
    "bf16_adam": TRAINING | {"element_bytes": 2},
    "mixed_8bit": MIXED | {"optimizer": "adam_8bit"},
    "mixed_checkpointed": MIXED | {"checkpointing": True},
    "mixed_8_devices": MIXED | {"checkpointing": True, "devices": 8},
    "mixed_64_devices": MIXED | {"checkpointing": True, "devices": 64},
}
INFERENCE = "bf16_inference"
SAME = ("run", "model", "batch_size", "sequence_length", "recorded", "started_at", "commit")
NEEDED = ("parameters", "trainable_parameters", "activation_bytes", "checkpointed_activation_bytes")


def rows(tables: Tables) -> DataFrame:
    """Returns a row for each model and technique: bytes of each part, their `total`, and
    `measured_bytes` if that step was measured."""
    counted = ok(tables["flops"], *NEEDED, "batch_size")
    counted = counted.sort_values("recorded").drop_duplicates("run")
    profile = steps(tables, "memory_bytes", mode="training", execution="eager")
    plain = profile[profile["gradient_accumulation"].fillna(1) == 1]
    # Peaks of plain training, measured here if possible.
    measured = trust.with_doubts(selection.one_machine(plain))
    size = counted["batch_size"] * counted["sequence_length"].fillna(1)
    counted = counted.assign(seen=counted["run"].isin(measured["flops_run"]), size=size)
    counted = counted.sort_values(["seen", "size"], ascending=False, kind="stable")
    counted = counted.drop_duplicates("model")
    seen = counted[counted["seen"]].nlargest(1, "parameters")
    largest = counted.drop(seen.index).nlargest(MOST_MODELS - len(seen), "parameters")
    counted = pd.concat([seen, largest]).sort_values("parameters")
    lines = []
    for row in counted.to_dict("records"):
        lines += _of_model(row, measured)
    return DataFrame(lines)


def _of_model(row: Row, measured: DataFrame) -> list[Record]:
    """A row for each technique of a model."""
    shared = {
        **pick_all(row, SAME),
        "measured_bytes": None,
        runs.DOUBTFUL: False,
    }
    here = measured[measured["flops_run"] == row["run"]]
    lines = []
    for way, options in WAYS.items():
        memory = _training(row, **options)
        line = shared | {"way": way, "total": memory.total} | asdict(memory)
        peaks = here[_are(here, options)]
        if len(peaks):
            line["run"] = peaks["run"].iloc[0]
            line[runs.DOUBTFUL] = bool(peaks[runs.DOUBTFUL].all())
            line["measured_bytes"] = float(peaks["memory_bytes"].median())
        lines.append(line)
    cache = row["key_value_cache_bytes"]
    if pd.notna(cache):
        weights = int(row["parameters"]) * 2
        memory = StepMemory(
            weights,
            0,
            0,
            0,
            0,
            int(cache) * 2 // BYTES,
        )
        lines.append(shared | {"way": INFERENCE, "total": memory.total} | asdict(memory))
    return lines


def _training(
    row: Mapping[str, Any], *, checkpointing: bool, devices: int, **options: Any
) -> StepMemory:
    """Counted memory of a training step by a technique."""
    saved = row["activation_bytes"]
    fixed = row["activation_fixed_bytes"]
    if checkpointing:
        saved = row["checkpointed_activation_bytes"]
        fixed = 0
    if pd.isna(fixed):
        fixed = 0
    memory = training_memory(
        int(row["parameters"]),
        trainable=int(row["trainable_parameters"]),
        activation_elements=int(saved) // BYTES,
        activation_fixed_bytes=int(fixed),
        **options,
    )
    return memory.sharded(devices)


def _are(measured: DataFrame, options: Mapping[str, Any]) -> Series:
    """True for measured steps of a technique: with its format, optimiser and checkpointing, on one
    device."""
    wanted = {"autocast": False, "master_copy": False, **options}
    if wanted["master_copy"] or wanted["devices"] > 1:
        return Series(False, measured.index)
    element_bytes = measured["dtype"].map(ELEMENT_BYTES).fillna(4)
    optimizers = measured["optimizer"].replace("adamw", "adam")
    return (
        (element_bytes == wanted["element_bytes"])
        & (measured["autocast"].fillna(False) == wanted["autocast"])
        & (optimizers == wanted["optimizer"])
        & (measured["checkpointing"].fillna(False) == wanted["checkpointing"])
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest model: memory for fp32 with Adam, for the leanest technique,
    sufficient cards within the count's error, and deviation from measured peaks."""
    measured = rows[rows["measured_bytes"] > 0]
    off = 100 * (measured["measured_bytes"] / measured["total"] - 1)
    error = LEAST_ERROR
    if len(off):
        error = max(error, off.abs().median() / 100)
    model = highest(rows, "total")["model"]
    largest = rows[rows["model"] == model].set_index("way")
    plain = largest.loc["fp32_adam"]
    least = lowest(largest.drop(index=INFERENCE, errors="ignore"), "total")
    state = 100 * plain[["gradients", "optimizer_state"]].sum() / plain["total"]
    needed = _needed(plain["total"], error, text)
    sentences = [
        text(
            "finding",
            row=plain,
            state=percent(state),
            **needed,
        )
    ]
    if least["total"] < plain["total"] and not _fits_smallest(plain["total"], error):
        needed = _needed(least["total"], error, text)
        sentences.append(text("least", way=least.name, **needed))
    if len(off):
        sentences.append(_deviation(off, text))
        furthest = measured.loc[off.abs().idxmax()]
        setting = f"{furthest['model']}, {text.name('memory_way', furthest['way'])}"
        sentences.append(text("measured_of", count=len(off), run=setting))
    return " ".join(sentences)


def _deviation(off: Series, text: Texts) -> str:
    """Sentence on how far measured peaks are from the count, in percent of it."""
    key = "measured"
    if (off > 0).all():
        key = "measured_above"
    elif (off < 0).all():
        key = "measured_below"
    return text(
        key,
        count=len(off),
        deviation=percent(off.abs().median()),
    )


def _fits_smallest(needed: float, error: float) -> bool:
    """True if the smallest card surely has this many bytes."""
    return needed * (1 + error) <= CAPACITIES[0][0] * 1e9


def _needed(needed: float, error: float, text: Texts) -> dict[str, str]:
    """Values for a sentence: the memory needed, with four digits, as cards are given with three,
    and the smallest sufficient card."""
    return {"needed": quantity(needed, "B", 4), "fits": _fits(needed, error, text)}


def _fits(needed: float, error: float, text: Texts) -> str:
    """Text on the smallest card that has this many bytes. If the count's relative `error` decides
    between two cards, or whether any suffices, that is told."""
    if _fits_smallest(needed, error):
        return text("fits_all", gigabytes=CAPACITIES[0][0])
    perhaps = _smallest_card(needed * (1 - error))
    surely = _smallest_card(needed * (1 + error))
    if not perhaps:
        return text("fits_none", card=CAPACITIES[-1][1])
    if perhaps == surely:
        return text("fits", card=surely)
    key = "fits_near" if surely else "fits_perhaps"
    return text(
        key,
        card=perhaps,
        sure=surely,
        error=percent(100 * error),
    )


def _smallest_card(needed: float) -> str:
    """Name of the smallest card with this many bytes; empty if there is none."""
    for capacity, card in CAPACITIES:
        if capacity * 1e9 >= needed:
            return card
    return ""


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, cards' lines only if a panel has one, and which setups are
    left out."""
    drawn = shown(rows)
    sentences = [text("reading")]
    ends = [_end(here) for _, here in drawn.groupby("model")]
    if any(map(_cards_before, ends)):
        sentences.append(text("cards"))
    undrawn = rows["way"].nunique() - drawn["way"].nunique()
    if undrawn:
        sentences.append(text("undrawn", count=undrawn, saves=percent(100 * SAVES)))
    return " ".join(sentences)


def shown(rows: DataFrame) -> DataFrame:
    """Keeps the setups that hold at least SAVES less than all above them in the largest model, and
    measured ones. Setups over several devices are left out if the usual one fits any card."""
    model = highest(rows, "total")["model"]
    totals = rows[rows["model"] == model].set_index("way")["total"]
    fits = _fits_smallest(totals["fp32_adam"], LEAST_ERROR)
    kept = {INFERENCE, *rows.loc[rows["measured_bytes"].fillna(0) > 0, "way"]}
    leanest = np.inf
    for way, total in totals.items():
        is_sharded = WAYS.get(way, TRAINING)["devices"] > 1
        if total <= (1 - SAVES) * leanest and not (fits and is_sharded):
            kept.add(way)
            leanest = total
    return rows[rows["way"].isin(kept)]


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each model with a stacked bar for each technique. Lines are capacities of
    cards, diamonds measured peaks."""
    names = {way: text.name("memory_way", way) for way in (*WAYS, INFERENCE)}
    rows = shown(rows)
    order = [name for way, name in names.items() if rows["way"].eq(way).any()]
    lines = len(order)
    if any(_cards_before(_end(here)) for _, here in rows.groupby("model")):
        lines += ROOM
    named = rows["way"].map(names)
    rows = rows.assign(name=named, place=named.map(order.index))
    colors = {part: color for part, color in COLORS.items() if rows[part].any()}
    panels = style.facets(
        figure,
        rows,
        "model",
        _titles(rows, text),
        sharey=True,
        lines=lines,
    )
    cards = 0
    for axes, here in panels:
        bytes_a_unit, unit = 1e6, "MB"
        if here["total"].max() >= 1e9:
            bytes_a_unit, unit = 1e9, "GB"
        _bars_and_peaks(axes, here, colors, order, bytes_a_unit)
        axes.set_xlabel(unit)
        axes.locator_params(axis="x", nbins=5, prune="upper")  # not beside the next panel's zero
        cards += _cards(axes, bytes_a_unit)
    bottom = len(order) - 0.4
    if cards:
        bottom += ROOM
    for axes, _ in panels:
        axes.set_ylim(bottom, -0.6)
    entries = style.dots(colors, text, "memory_part", "s")
    if rows["measured_bytes"].notna().any():
        entries.append(style.dot(style.INK, text("peak"), "D"))
    return entries


def _titles(rows: DataFrame, text: Texts) -> dict[str, str]:
    """Titles of panels by model, with its batch, in tokens if it reads sequences."""
    titles = {}
    for row in rows.drop_duplicates("model").itertuples():
        key = "samples"
        if row.sequence_length == row.sequence_length:
            key = "tokens"
        titles[row.model] = text(key, row=row)
    return titles


def _bars_and_peaks(
    axes: Axes, here: DataFrame, colors: Mapping[str, str], order: list[str], bytes_a_unit: float
) -> None:
    """Draws bars of computed bytes, in units, and diamonds of measured ones."""
    parts = {f"{part} ": color for part, color in colors.items()}
    shown = here[[*colors]].div(bytes_a_unit).add_suffix(" ")
    formulas = here.assign(doubtful=False).join(shown)
    look: style.Look = {"order": order, "width": 0.8, "labelsize": 9}
    kinds.stacks(axes, formulas, parts, "name", *colors, "total", **look)
    measured = here["measured_bytes"].astype(float)
    peaks = here.assign(peak=measured / bytes_a_unit)
    diamonds: style.Look = {
        "color": style.INK,
        "marker": "D",
        "s": 25,
    }
    kinds.points(axes, peaks, "peak", "place", "measured_bytes", "total", **diamonds)
    axes.set_xlim(0, _end(here) / bytes_a_unit)


def _end(here: DataFrame) -> float:
    """End of a panel's axis, in bytes."""
    measured = here["measured_bytes"].astype(float).fillna(0)
    return 1.1 * max(here["total"].max(), measured.max())


def _cards_before(end: float) -> list[tuple[float, str]]:
    """Bytes and name of each card whose line is in view on an axis of `end` bytes. Cards too close
    to the previous one are skipped."""
    shown = []
    last = 0.0
    for capacity_gb, card in CAPACITIES:
        place = capacity_gb * 1e9
        if last + 0.06 * end < place < end:
            shown.append((place, card))
            last = place
    return shown


def _cards(axes: Axes, bytes_a_unit: float) -> int:
    """Draws a line at the memory of each card in view, with its name along it, and returns their
    number."""
    cards = _cards_before(axes.get_xlim()[1] * bytes_a_unit)
    for capacity, card in cards:
        x = capacity / bytes_a_unit
        axes.axvline(x, **style.LIMIT)
        axes.text(
            x,
            0.02,
            card,
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=7,
            color=style.MUTED,
            bbox=style.PAPER_BEHIND | {"alpha": 0.8, "pad": 0.5},
        )
    return len(cards)
