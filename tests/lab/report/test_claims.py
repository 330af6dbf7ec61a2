"""Claims of sentences, computed again from recorded rows, made faster and slower."""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import report_rows
from support.noise import slower
from support.said import Heard
from support.slow import few

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.lab.report import claims, figures, frames, selection, trust
from mfulab.lab.tables.merge import OF
from mfulab.mfu.models import is_load

Claim = Callable[[pd.DataFrame, dict[str, Any]], Any]
EXAMPLES = int(os.environ.get("MFULAB_EXAMPLES", "1"))
TABLES = ("profile", "matmul", "memory", "readings")
BYTES_SENT = ["sent_bytes", "predicted_sent_bytes"]


def plain_jobs(rows: pd.DataFrame) -> pd.DataFrame:
    """Jobs of the largest series of one batch per process, without those slowed on purpose."""
    plain = rows[rows["slowed_rank"].isna()]
    keys = ["machine", "model", "workload", "batch_size", "sequence_length", "precision", "ceiling"]
    sizes = plain.groupby(keys, dropna=False)["run"].transform("size")
    return plain[sizes == sizes.max()]


def changed(tables: frames.Tables, seed: int, spread: float) -> frames.Tables:
    """The tables with each row's times longer by a factor of its own, and its rates lower by it."""
    chance = np.random.default_rng(seed)
    made = dict(tables)
    for name in TABLES:
        table = tables[name]
        factor = np.exp(chance.normal(0, spread, len(table)))
        made[name] = slower(table, factor)
    return made


def with_energy(tables: frames.Tables) -> frames.Tables:
    """The tables as of a machine that draws 60 W, since no recorded one has a meter."""
    profile = tables["profile"]
    per_j = {
        "flops_per_j": profile["flops"] / profile["time_s"] / 60,
        "samples_per_j": profile["samples_per_s"] / 60,
    }
    return {**tables, "profile": profile.assign(**per_j)}


def of_two(tables: frames.Tables) -> frames.Tables:
    """The tables as of two participants with a device of one kind: what one machine measured, each
    with all of it."""
    made = dict(tables)
    for name in ("profile", "matmul"):
        kind = tables[name]["hardware"].iloc[0]
        here = tables[name][tables[name]["hardware"] == kind]
        made[name] = pd.concat(
            [here.assign(hardware=f"{kind}{OF}{who}") for who in ("ada", "bo")], ignore_index=True
        )
    return made


def of_eight_cards(tables: frames.Tables) -> frames.Tables:
    """The tables as if eight cards of a recorded machine with a GPU had measured each of its runs,
    one of them slower."""
    is_gpu = tables["environment"]["device"] == "cuda"
    hardware = tables["environment"].loc[is_gpu, "hardware"].iloc[0]
    return report_rows.cards(tables, hardware=hardware)


def with_gpu(tables: frames.Tables) -> frames.Tables:
    """The tables as if the recorded GPU had the CPU's sizes, fifty times as fast beside copies."""
    cpu, gpu = (
        tables["environment"].loc[tables["environment"]["device"] == kind, "hardware"]
        for kind in ("cpu", "cuda")
    )
    here = tables["matmul"][tables["matmul"]["hardware"].isin(cpu)]
    copies = {"host_to_device_s": 3e-5, "device_to_host_s": 3e-5}
    there = slower(here, np.full(len(here), 1 / 50)).assign(hardware=gpu.iloc[0], **copies)
    return {**tables, "matmul": pd.concat([here, there], ignore_index=True)}


def with_invented(tables: frames.Tables) -> frames.Tables:
    """The tables with invented rows of requests and of split models on the recorded CPU, as vague
    and as disturbed as its steps."""
    is_cpu = tables["environment"]["device"] == "cpu"
    cpu = tables["environment"].loc[is_cpu, "hardware"].iloc[0]
    made = {}
    for name, invented in (("serving", report_rows.serving), ("split", report_rows.split)):
        lines = [row.model_dump() for row in invented(cpu)]
        made[name] = pd.DataFrame(lines).assign(recorded=True, experiment=name)
    steps = tables["profile"]
    wide = np.log(steps["time_ci_high_s"] / steps["time_s"]).median()
    beside = 30.0 if steps["verdict_flags"].str.contains("beside").all() else 0.0
    noise = {frames.USUAL: wide, "other_processes_percent": beside}
    made["serving"] = trust.with_doubts(made["serving"].assign(**noise))
    return {**tables, **made}


# Tables in which a figure has rows that no recording has.
OTHERWISE = {
    "crossover": with_gpu,
    "energy_efficiency": with_energy,
    "equal_cards": of_eight_cards,
    "equal_devices": of_two,
    "model_parallel": with_invented,
    "serving": with_invented,
}


def near(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=1e-6))


def in_words(words: str, number: float) -> bool:
    """True if a text names this percentage as all sentences do."""
    return words == percent(number)


def same(rows: pd.DataFrame, row: pd.Series, *columns: str) -> pd.DataFrame:
    """The rows that are alike in these columns."""
    return rows[(rows[list(columns)] == row[list(columns)]).all(axis=1)]


def loses_most(rows: pd.DataFrame, row: pd.Series, points: float) -> bool:
    parts = [part for part in figures.modules()["headroom"].PARTS if part != "useful"]
    return (
        near(points, rows[parts].astype(float).to_numpy().max())
        and points == row[parts].astype(float).max()
    )


def roofs(rows: pd.DataFrame) -> pd.Series:
    return np.minimum(rows["arithmetic_intensity"] * rows["roof_gb_s"] / 1e3, rows["roof_tflop_s"])


def highest(rows: pd.DataFrame, above: bool) -> pd.Series:
    """The row that is closest to its roof, of those above memory's roof or of the others."""
    share = rows["tflop_s"] / roofs(rows)
    beyond = (roofs(rows) < rows["roof_tflop_s"]) & (share > 1.05)
    return (
        rows.assign(share=share)[beyond if above else ~beyond | beyond.all()]
        .sort_values("share")
        .iloc[-1]
    )


def counters_off(rows: pd.DataFrame) -> pd.DataFrame:
    columns = [
        name for name in figures.modules()["known_truth"].COUNTERS if rows[name].notna().any()
    ]
    return rows[columns].sub(rows["truth_percent"], axis=0).abs()


def differ_most(rows: pd.DataFrame, said: dict[str, Any]) -> bool:
    """The run told differs most between the participants, and the usual factor is the median over
    runs."""
    times = rows.groupby("run")["time_s"]
    factors = times.max() / times.min()
    slow, fast = said["slow"], said["fast"]
    told = slow["run"] == fast["run"] and near(slow["time_s"] / fast["time_s"], factors.max())
    return told and near(slow["range"], factors.max()) and near(said["usual"], factors.median())


def steps_to_pay(row: pd.Series, steps: float, saved: float) -> bool:
    enough = steps * saved >= row["compile_s"] * (1 - 1e-6)
    return enough and (steps == 1 or (steps - 1) * saved < row["compile_s"] * (1 + 1e-6))


def models_compiled(rows: pd.DataFrame, way: str) -> int:
    """Number of models that this way compiled."""
    made = rows[rows["compile_s"].notna()]
    ways = made["execution"].str.replace("compile.*", "torch.compile", regex=True)
    return made.loc[ways == way, "model"].nunique()


def end_to_end(rows: pd.DataFrame, size: int, column: str = "whole_s") -> bool:
    """From this size on a GPU wins by a column at every size that both were measured at, and not at
    the one before, whatever lies in their intervals."""
    cpu, gpu = sides(rows)
    sizes = sorted(cpu.index.intersection(gpu.index))
    fast = claims.ends_of(gpu, column)["high"]
    faster = fast[sizes] < claims.ends_of(cpu, column)["low"][sizes]
    return bool(
        faster[faster.index >= size].all() and not faster[faster.index < size].tail(1).any()
    )


def sides(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of a crossover's CPU and GPU, by size."""
    cpu, gpu = (rows[rows["side"] == side].set_index("n") for side in ("cpu", "gpu"))
    return cpu, gpu


def at_largest(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Times of a crossover's CPU and GPU at the largest size that both were measured at."""
    cpu, gpu = sides(rows)
    n = max(cpu.index.intersection(gpu.index))
    cpu_ends, gpu_ends = (claims.ends_of(rows, "whole_s") for rows in (cpu, gpu))
    return cpu_ends.loc[n], gpu_ends.loc[n]


def cpu_stays_below(rows: pd.DataFrame) -> bool:
    cpu, gpu = at_largest(rows)
    return cpu.high < gpu.low


def intervals_meet(rows: pd.DataFrame) -> bool:
    cpu, gpu = at_largest(rows)
    return cpu.low <= gpu.high and gpu.low <= cpu.high


def besides(rows: pd.DataFrame, told: pd.Series) -> bool:
    """The share of a size's time that is not its kernel's, on the machine that was told."""
    [row] = same(rows, told, "machine", "n").to_dict("records")
    total = sum(
        row[part] for part in figures.modules()["transfers"].TIMES if row[part] == row[part]
    )
    return near(told["share"], 100 * (total - row["time_s"]) / total)


def columns_cost(rows: pd.DataFrame, factor: float) -> bool:
    """No matrix costs more by columns, of those that were walked both ways."""
    by_rows, by_columns = (
        rows[rows["pattern"] == name].set_index("working_set_bytes") for name in ("rows", "columns")
    )
    ratios = by_columns["time_per_access_s"] / by_rows["time_per_access_s"]
    return bool(np.isclose(factor, ratios.max(), rtol=0.006))


def highest_rung(rows: pd.DataFrame, row: pd.Series) -> float:
    """The highest share of a machine's rungs in the format of one of them."""
    alike = (rows[["machine", "precision"]] == row[["machine", "precision"]]).all(axis=1)
    return rows.loc[alike & (rows["family"] != "library"), "share_of_reference_percent"].max()


def losses_are_within(rows: pd.DataFrame, share: str, tolerance: str) -> bool:
    """Of a case, no step's losses differ by more than was told, in percent; the recorded ones do
    not vanish."""
    case = rows[rows["losses"].fillna("") != ""]
    curves = np.array(
        [json.loads(losses) for losses in same(case, case.iloc[0], "model", "batch_size")["losses"]]
    )
    apart = 100 * (curves.max(axis=0) / curves.min(axis=0) - 1).max()
    return float(share) <= float(tolerance) and bool(np.isclose(float(share), apart, rtol=0.06))


# What a sentence claims, by figure and key of its text: true of the figure's rows and of the values
# that it names.
CLAIMS: dict[tuple[str, str], Claim] = {
    ("attention_length", "finding"): lambda rows, said: (
        said["long"]["sequence_length"] == rows.loc[rows["status"] == "ok", "sequence_length"].max()
        and said["short"]["sequence_length"] < said["long"]["sequence_length"]
        and said["short"]["model"] == said["long"]["model"]
    ),
    ("attention_length", "slower"): lambda _, said: near(
        said["times"], said["math"].time_s / said["flash"].time_s
    ),
    ("attention_length", "faster"): lambda _, said: near(
        said["times"], said["flash"].time_s / said["math"].time_s
    ),
    ("attention_length", "equal"): lambda _, said: (
        0.9 < said["math"].time_s / said["flash"].time_s < 1.11
    ),
    ("autograd", "slower"): lambda rows, said: (
        said["row"]["apart"]
        and near(said["share"], 100 * (said["row"].time_s / said["row"].time_s_no_grad - 1))
        and said["share"]
        >= (rows.loc[(rows["autograd"] == "recorded") & rows["apart"], "relative"] - 100).max()
        - 1e-9
    ),
    ("autograd", "faster"): lambda _, said: (
        said["row"]["apart"]
        and near(said["share"], 100 * (1 - said["row"].time_s / said["row"].time_s_no_grad))
    ),
    ("autograd", "leaks"): lambda rows, said: (
        said["row"]["graph_bytes"] == rows["graph_bytes"].max()
    ),
    ("block_sizes", "finding"): lambda rows, said: (
        said["best"]["tflop_s"] == rows["tflop_s"].max()
        and said["worst"]["tflop_s"] == rows["tflop_s"].min()
        and near(said["factor"], rows["tflop_s"].max() / rows["tflop_s"].min())
    ),
    ("block_sizes", "finding_one"): lambda rows, said: (
        said["best"]["tflop_s"] == rows["tflop_s"].max()
    ),
    ("ceilings", "finding"): lambda rows, said: (
        said["best"]["measured_tflop_s"] == rows["measured_tflop_s"].max()
        and near(
            said["share"], 100 * said["best"]["measured_tflop_s"] / said["best"]["computed_tflop_s"]
        )
    ),
    ("convolution", "finding"): lambda rows, said: said["most"]["flops"] == rows["flops"].max(),
    ("counter_deviation", "finding"): lambda rows, said: (
        abs(said["worst"]["deviation_percent"]) == rows["deviation_percent"].abs().max()
        and said["agreeing"]
        == sum(abs(each) <= said["within"] for each in rows["deviation_percent"])
        + rows["agreeing"].iloc[0]
        and said["count"] == len(rows) + rows["undrawn"].iloc[0]
    ),
    ("data_parallel", "finding"): lambda rows, said: (
        said["best"]["efficiency"] == plain_jobs(rows)["efficiency"].max()
        and near(
            said["best"]["samples_per_s"]
            / said["best"]["processes"]
            / said["best"]["samples_per_s_alone"],
            said["best"]["efficiency"] / 100,
        )
    ),
    ("data_parallel", "worst"): lambda rows, said: (
        said["worst"]["efficiency"] == plain_jobs(rows)["efficiency"].min()
    ),
    ("data_parallel", "sharded"): lambda _, said: said["ratio"] > 1,
    ("decoding", "finding"): lambda _, said: (
        said["small"]["batch_size"] < said["large"]["batch_size"]
        and said["small"]["model"] == said["large"]["model"]
        and near(said["slower"], said["large"]["time_s"] / said["small"]["time_s"])
    ),
    ("decoding", "prompt"): lambda rows, said: (
        said["row"]["time_s"] in set(rows.loc[rows["mode"] == "prefill", "time_s"])
        and said["row"]["time_s_token"] in set(rows.loc[rows["mode"] == "decoding", "time_s"])
    ),
    ("energy_efficiency", "finding"): lambda rows, said: (
        near(said["best"]["flops_per_j"], rows["flops_per_j"].max())
        and near(said["best"]["sample_j"] * said["best"]["samples_per_j"], 1)
    ),
    ("energy_efficiency", "within"): lambda rows, said: (
        said["factor"] > 1
        and near(said["factor"], said["high"]["flops_per_j"] / said["low"]["flops_per_j"])
        and all(said["high"][key] == said["low"][key] for key in ("machine", "model", "precision"))
        and said["high"]["batch_size"] != said["low"]["batch_size"]
    ),
    ("equal_cards", "finding"): lambda rows, said: (
        said["count"] == rows["card"].nunique()
        and said["runs"] == (rows["label"] == said["card"]).sum()
        and near(said["factor"], rows.groupby("label")["relative"].median().max())
        and near(said["factor"], rows.loc[rows["label"] == said["card"], "relative"].median())
    ),
    ("equal_devices", "finding"): lambda rows, said: (
        said["participants"] == 2
        and said["runs"] == rows["run"].nunique()
        and differ_most(rows, said)
    ),
    ("equal_devices", "finding_alike"): lambda rows, said: (
        said["participants"] == 2 and said["runs"] == rows["run"].nunique()
    ),
    ("execution_speed", "finding"): lambda rows, said: extremes(rows, said),
    ("execution_speed", "pays"): lambda rows, said: (
        steps_to_pay(said["row"], said["steps"], said["saved"])
        and said["count"] <= said["total"] == models_compiled(rows, said["way"])
    ),
    ("execution_speed", "never"): lambda rows, said: (
        said["total"] == models_compiled(rows, said["way"])
    ),
    ("precision_speed", "finding"): lambda rows, said: extremes(rows, said),
    ("precision_speed", "beyond"): lambda _, said: said["row"]["speedup"] > said["row"]["possible"],
    ("flops_versus_time", "finding"): lambda _, said: (
        near(said["flops"], per_sample(said["large"], "flops") / per_sample(said["small"], "flops"))
        and near(
            said["time"], per_sample(said["large"], "time_s") / per_sample(said["small"], "time_s")
        )
        and said["flops"] >= 1
    ),
    ("frameworks", "finding"): lambda rows, said: (
        said["longer"] > said["row"]["time_s"]
        and said["row"]["time_s"]
        == same(rows, said["row"], "model", "workload", "batch_size")["time_s"].min()
    ),
    ("frameworks", "compiled"): lambda rows, said: said["time"] == rows["compile_s"].max(),
    ("frameworks", "losses"): lambda rows, said: losses_are_within(
        rows, float(said["share"]), float(said["tolerance"])
    ),
    ("fusion", "finding"): lambda rows, said: (
        said["factor"] > 1
        and said["row"]["apart"]
        and near(said["row"]["factor"] * said["factor"], 1)
        and not claims.differs(rows.loc[rows["time_s"].idxmin()], said["row"], "time_s")
    ),
    ("fusion", "compiled"): lambda _, said: (
        said["factor"] > 1
        and said["row"]["execution"] == "compile"
        and near(said["row"]["time_s"] * said["factor"], said["row"]["time_s_by_hand"])
    ),
    ("headroom", "finding"): lambda rows, said: loses_most(rows, said["worst"], said["points"]),
    ("input", "finding"): lambda rows, said: (
        said["worst"]["loader_workers"] == rows.loc[rows["usual"], "loader_workers"].min()
        and said["worst"]["input_wait_percent"]
        == rows.loc[
            rows["usual"] & (rows["loader_workers"] == said["worst"]["loader_workers"]),
            "input_wait_percent",
        ].max()
    ),
    ("input", "tracks"): lambda rows, said: in_words(
        said["deviation"], (100 - rows["input_wait_percent"] - rows["kept"]).median()
    ),
    ("kernel_ladder", "finding"): lambda _, said: (
        said["factor"] >= 1
        and near(
            said["factor"],
            said["high"]["share_of_reference_percent"] / said["low"]["share_of_reference_percent"],
        )
        and said["high"]["machine"] == said["low"]["machine"]
        and said["high"]["n"] == said["low"]["n"]
    ),
    ("kernel_ladder", "finding_beside"): lambda rows, said: (
        said["row"]["share_of_reference_percent"] == highest_rung(rows, said["row"])
    ),
    ("kernel_ladder", "out_of_order"): lambda rows, said: (
        shares(rows, said["rung"]).min() <= shares(rows, said["below"]).max()
    ),
    ("known_truth", "finding"): lambda rows, said: near(
        abs(said["reading"] - said["truth"]), np.nanmax(counters_off(rows).to_numpy())
    ),
    ("known_truth", "finding_one"): lambda rows, said: (
        near(abs(said["reading"] - said["truth"]), np.nanmax(counters_off(rows).to_numpy()))
        and len(counters_off(rows).columns) == 1
    ),
    ("known_truth", "best"): lambda rows, said: in_words(
        said["points"], counters_off(rows).max().min()
    ),
    ("known_truth", "after"): lambda _, said: (
        said["row"]["after_percent"] < said["row"]["mfulab_percent"]
    ),
    ("matmul_precision", "finding"): lambda rows, said: (
        said["fast"]["tflop_s"] == same(rows, said["fast"], "machine")["tflop_s"].max()
        and said["exact"]["error"] == same(rows, said["fast"], "machine")["error"].min()
        and said["exact"]["error"] > 0
    ),
    ("matmul_precision", "finding_tied"): lambda rows, said: (
        said["fast"]["tflop_s"] == same(rows, said["fast"], "machine")["tflop_s"].max()
        and said["exact"]["error"] == same(rows, said["fast"], "machine")["error"].min()
        and set(said["others"].split(", ")) < {*rows["precision"]} - {said["fast"]["precision"]}
    ),
    ("matmul_precision", "finding_once"): lambda rows, said: (
        said["fast"]["tflop_s"] == same(rows, said["fast"], "machine")["tflop_s"].max()
        and said["exact"]["error"] == same(rows, said["fast"], "machine")["error"].min()
        and said["others"]
    ),
    ("matmul_shapes", "finding"): lambda rows, said: (
        said["best"]["kernel"] == said["worst"]["kernel"]
        and said["best"]["share_of_measured_percent"] == rows["share_of_measured_percent"].max()
        and said["worst"]["share_of_measured_percent"]
        == same(rows, said["best"], "kernel")["share_of_measured_percent"].min()
    ),
    ("matmul_throughput", "finding"): lambda rows, said: (
        said["best"]["tflop_s"] == same(rows, said["best"], "machine", "n")["tflop_s"].max()
        and said["worst"]["tflop_s"] == same(rows, said["best"], "machine", "n")["tflop_s"].min()
        and near(said["factor"], said["best"]["tflop_s"] / said["worst"]["tflop_s"])
    ),
    ("matmul_throughput", "finding_one"): lambda rows, said: (
        said["best"]["tflop_s"] == same(rows, said["best"], "machine", "n")["tflop_s"].max()
    ),
    ("memory_breakdown", "measured_above"): lambda rows, said: in_words(
        said["deviation"], (100 * (rows["measured_bytes"] / rows["total"] - 1)).dropna().median()
    ),
    ("memory_hierarchy", "finding"): lambda rows, said: (
        near(said["factor"], said["last"]["time_per_access_s"] / said["first"]["time_per_access_s"])
        and said["last"]["working_set_bytes"]
        == same(rows, said["last"], "pattern")["working_set_bytes"].max()
        and said["first"]["working_set_bytes"]
        == same(rows, said["last"], "pattern")["working_set_bytes"].min()
    ),
    ("memory_hierarchy", "orders"): lambda rows, said: columns_cost(
        rows, float(said["factor"].replace(",", ""))
    ),
    ("model_parallel", "finding"): lambda rows, said: (
        said["best"]["idle_percent"] == same(rows, said["first"], "split")["idle_percent"].min()
        and said["first"]["split"] == "pipeline"
    ),
    ("model_parallel", "fastest"): lambda rows, said: (
        said["row"]["speedup"] == rows.loc[rows["split"] != "none", "speedup"].max()
    ),
    ("model_parallel", "sends"): lambda rows, said: (
        said["sent"] in {*rows.loc[rows["split"] == "tensor", BYTES_SENT].to_numpy().flat}
        and said["in_pipeline"]
        in {*rows.loc[rows["split"] == "pipeline", BYTES_SENT].to_numpy().flat}
    ),
    ("mfu_versus_utilization", "finding"): lambda rows, said: lead(rows, said),
    ("mfu_versus_utilization", "finding_same"): lambda rows, said: (
        lead(rows, said) and said["low"] == said["high"]
    ),
    ("number_formats", "finding"): lambda rows, said: (
        said["worst"]["naive_sum_error"] == rows["naive_sum_error"].max()
    ),
    ("serving", "finding"): lambda rows, said: (
        said["best"]["offered_load"] == said["one"]["offered_load"] == rows["offered_load"].max()
        and said["one"]["largest_batch"] == 1 < said["best"]["largest_batch"]
    ),
    ("serving", "waiting"): lambda rows, said: (
        said["first"]["longest_wait_ms"] < said["last"]["longest_wait_ms"]
        and said["first"]["offered_load"] == said["last"]["offered_load"]
    ),
    ("pruning", "finding"): lambda _, said: said["best"]["apart"],
    ("pruning", "finding_alike"): lambda _, said: not said["best"]["apart"],
    ("published_mfu", "finding"): lambda _, said: (
        said["mfu_bf16_percent_many"] < said["mfu_bf16_percent_few"]
        and said["accelerators_few"] < said["accelerators_many"]
    ),
    ("published_mfu", "above"): lambda rows, said: (
        said["above"] <= (rows["mfu_bf16_percent"] > 100).sum()
    ),
    ("quality", "finding"): lambda _, said: said["row"]["faster"] and not said["row"]["worse"],
    ("quality", "worst"): lambda rows, said: (
        said["row"]["worse"]
        and near(-said["lost"], rows.loc[rows["worse"].astype(bool), "change"].min())
    ),
    ("quality", "among_worst"): lambda rows, said: (
        near(-said["lost"], rows.loc[rows["worse"].astype(bool), "change"].min())
        and bool(said["others"])
    ),
    ("quality", "fewer"): lambda _, said: (
        said["row"]["flops_percent"] < 100 and not said["row"]["faster"]
    ),
    ("quantised", "finding"): lambda rows, said: (
        said["factor"] > 1
        and said["row"]["apart"]
        and near(100 * said["factor"], rows.loc[rows["apart"], "relative"].max())
    ),
    ("quantised", "finding_slower"): lambda rows, _: (
        not (rows["apart"] & (rows["relative"] > 100)).any()
    ),
    ("quantised", "slowest"): lambda rows, said: (
        said["factor"] < 1 and near(100 * said["factor"], rows.loc[rows["apart"], "relative"].min())
    ),
    ("quantised", "error"): lambda rows, said: said["row"]["error"] == rows["error"].max(),
    ("recompilations", "finding"): lambda rows, said: (
        said["row"]["recompilations"] == rows["recompilations"].max()
    ),
    ("repeatability", "spread"): lambda rows, said: (
        said["worst"]["spread_percent"]
        == same(rows, said["worst"], "machine")["spread_percent"].max()
    ),
    ("roofline", "finding"): lambda rows, said: (
        said["limited"] == int((roofs(rows) * rows["bandwidth_reach"] < rows["roof_tflop_s"]).sum())
        and said["total"] == len(rows)
        and near(said["share"], 100 * highest(rows, above=False)["share"])
        and said["run"].startswith(highest(rows, above=False)["model"])
    ),
    ("roofline", "finding_near"): lambda rows, said: (
        said["limited"] == int((roofs(rows) * rows["bandwidth_reach"] < rows["roof_tflop_s"]).sum())
        and 0 < said["near"] <= said["total"] - said["limited"]
        and near(said["share"], 100 * highest(rows, above=False)["share"])
    ),
    ("roofline", "finding_open"): lambda rows, said: (
        not (roofs(rows) * rows["bandwidth_reach"] < rows["roof_tflop_s"]).any()
        and 0 < said["near"] <= said["total"] == len(rows)
    ),
    ("roofline", "above"): lambda rows, said: (
        near(said["share"], 100 * highest(rows, above=True)["share"])
        and said["run"].startswith(highest(rows, above=True)["model"])
        and said["share"] > 100
    ),
    ("run_in_time", "finding"): lambda rows, said: (
        near(said["busy"], rows.loc[rows["in_window"], "utilization_percent"].mean())
        and rows["utilization_percent"].min() <= said["busy"] <= rows["utilization_percent"].max()
    ),
    ("seminar_matmul", "errors"): lambda rows, said: (
        said["own"] in set(rows["max_absolute_error"])
        and said["other_error"] in set(rows["max_absolute_error"])
    ),
    ("subnormals", "finding"): lambda rows, said: (
        said["row"]["factor"] == rows.loc[rows["numbers"] == "subnormal", "factor"].max()
        and near(said["row"]["factor"], said["row"]["time_s"] / said["row"]["time_s_normal"])
    ),
    ("time_by_batch_size", "finding"): lambda _, said: said["gain"] > 1 and gains(said),
    ("time_by_batch_size", "least_same"): lambda _, said: 0 < said["count"] <= said["total"],
    ("time_by_batch_size", "least_loses"): lambda _, said: (
        said["gain"] < 1 and gains(said) and near(said["gain"] * said["loss"], 1)
    ),
    ("time_by_batch_size", "finding_tied"): lambda _, said: (
        said["gain"] > 1 and gains(said) and 1 <= said["tied"] < said["count"]
    ),
    ("time_by_batch_size", "least_gains"): lambda _, said: said["gain"] > 1 and gains(said),
    ("tokens_per_joule", "finding"): lambda _, said: (
        said["small"]["batch_size"] < said["large"]["batch_size"]
        and said["small"]["model"] == said["large"]["model"]
        and near(said["small"]["tokens_per_j"] * said["factor"], said["large"]["tokens_per_j"])
        and near(
            said["large"]["tokens_per_j"] * said["large"]["energy_j"],
            said["large"]["tokens_per_s"] * said["large"]["time_s"],
        )
    ),
    ("training_phases", "faster"): lambda _, said: (
        said["row"]["apart"]
        and near(said["factor"], said["row"]["samples_per_s"] / said["row"]["samples_per_s_plain"])
        and said["factor"] > 1
    ),
    ("training_phases", "no_faster"): lambda rows, said: (
        not (
            same(
                rows[~rows["is_plain"] & rows["mfu_percent"].notna()],
                said["row"],
                *figures.modules()["training_phases"].CASE,
            )
            .query("apart and relative < 100")
            .size
        )
    ),
    ("transfers", "finding"): lambda rows, said: (
        said["small"]["n"] < said["large"]["n"]
        and said["small"]["machine"] == said["large"]["machine"]
        and all(besides(rows, said[end]) for end in ("small", "large"))
    ),
    ("crossover", "wins"): lambda rows, said: end_to_end(rows, int(said["size"])),
    ("crossover", "never"): lambda rows, _: cpu_stays_below(rows),
    ("crossover", "alike"): lambda rows, _: intervals_meet(rows),
    ("crossover", "kernel_wins"): lambda rows, said: end_to_end(rows, int(said["size"]), "time_s"),
    ("latency_pyramid", "finding"): lambda rows, said: near(
        said["factor"], rows["time_per_access_s"].max() / rows["time_per_access_s"].min()
    ),
    ("latency_pyramid", "step"): lambda rows, said: near(
        said["factor"],
        max(slow / fast for fast, slow in itertools.pairwise(sorted(rows["time_per_access_s"]))),
    ),
    ("utilization_ladder", "finding"): lambda rows, said: (
        near(
            said["worst"]["utilization_percent"] - said["worst"]["mfu_percent"],
            (rows["utilization_percent"] - rows["mfu_percent"]).max(),
        )
        and said["drop"].above.percent > said["drop"].below.percent
    ),
}


def extremes(rows: pd.DataFrame, said: dict[str, Any]) -> bool:
    """The best and the worst are those of the rows, in the words for a factor above one or below;
    without a number where the interval holds one."""
    rows = frames.preferred(rows, frames.comparable(rows) & frames.comparable(rows, "_base"))
    ends = {"best": rows["speedup"].idxmax(), "worst": rows["speedup"].idxmin()}
    return all(factor_of(rows.loc[place], said[end]) for end, place in ends.items())


def factor_of(row: pd.Series, words: str) -> bool:
    told = re.search(r"([\d.,]+)×", words)
    if row["speedup_low"] < 1 < row["speedup_high"]:
        return told is None
    factor = max(row["speedup"], 1 / row["speedup"])
    return told is not None and bool(
        np.isclose(float(told[1].replace(",", "")), factor, rtol=0.006)
    )


def per_sample(row: pd.Series, column: str) -> float:
    return float(row[column] / row["batch_size"])


def lead(rows: pd.DataFrame, said: dict[str, Any]) -> bool:
    """The run told is the lowest of the busy sound ones of models; the best is of its machine."""
    sound = frames.preferred(rows, rows["mfu_percent"] > 0)
    sound = frames.preferred(sound, ~frames.emulated(sound))
    sound = frames.preferred(sound, ~trust.doubtful(sound))
    sound = frames.preferred(sound, ~sound["model"].map(is_load))
    low = frames.preferred(sound, ~(sound["matmul_percent"] < frames.MATMULS))
    low = frames.preferred(low, low["utilization_percent"] >= 90)
    low = low[low["mfu_percent"] == low["mfu_percent"].min()].iloc[0]
    high = sound.loc[sound["machine"] == low["machine"], "mfu_percent"].max()
    low_told, high_told = (said[name].removeprefix("≥ ").split(" ")[0] for name in ("low", "high"))
    return (
        said["busy"] == low["utilization_percent"]
        and in_words(low_told, low["mfu_percent"])
        and in_words(high_told, high)
        and said["low_run"].startswith(low["model"])
    )


def shares(rows: pd.DataFrame, kernel: str) -> pd.Series:
    return rows.loc[rows["kernel"] == kernel, "share_of_reference_percent"]


def gains(said: dict[str, Any]) -> bool:
    small, large = said["small"], said["large"]
    return small["batch_size"] < large["batch_size"] and near(
        said["gain"], large["samples_per_s"] / small["samples_per_s"]
    )


def made(rows: pd.DataFrame, name: str) -> set[str]:
    """Checks every claim of a figure's sentence about these rows; the keys of those that it
    made."""
    text = Heard(name)
    sentence = figures.modules()[name].finding(rows, text)
    keys = {key for key in text.heard if (name, key) in CLAIMS}
    for key in keys:
        for values in text.heard[key]:
            assert CLAIMS[name, key](rows, values), (key, sentence)
    return keys


def by_fourths(names: Iterable[str]) -> list[Any]:
    """Every fourth of these names by day, spread over the alphabet; the others at night."""
    ordered = sorted(names)
    by_day = ordered[::4]
    return few([*by_day, *(name for name in ordered if name not in by_day)], len(by_day))


@pytest.mark.parametrize("name", by_fourths({name for name, _ in CLAIMS}))
def test_what_a_sentence_claims_is_so_in_its_rows(recorded, name):
    heard: set[str] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(seed=st.integers(0, 2**16), spread=st.sampled_from([0.0, 0.05, 0.7]))
    def holds(seed: int, spread: float) -> None:
        tables = OTHERWISE.get(name, dict)(recorded)
        rows = figures.modules()[name].rows(changed(tables, seed, spread))
        assert len(rows), f"the recordings have no rows of {name}"
        heard.update(made(rows, name))

    holds()
    assert heard, f"no sentence of {name} made a claim that is checked"


# Texts that tell how far two rows are apart, by figure.
APART = {
    "attention_length": {"slower", "faster"},
    "autograd": {"slower", "faster"},
    "block_sizes": {"finding"},
    "convolution": {"way"},
    "data_parallel": {"finding", "worst", "sharded", "sharded_faster"},
    "decoding": {"finding"},
    "crossover": {"wins", "never"},
    "energy_efficiency": {"within"},
    "execution_speed": {"as_fast", "as_long", "pays"},
    "flops_versus_time": {"finding"},
    "frameworks": {"finding"},
    "fusion": {"finding", "compiled"},
    "input": {"finding", "best", "beyond"},
    "kernel_ladder": {"finding"},
    "matmul_shapes": {"finding"},
    "matmul_throughput": {"finding"},
    "precision_speed": {"as_fast", "as_long", "beyond"},
    "pruning": {"finding", "finding_slower"},
    "serving": {"finding", "waiting"},
    "quantised": {"finding", "finding_slower", "slowest", "bandwidth"},
    "subnormals": {"finding", "zero", "least"},
    "time_by_batch_size": {"finding", "finding_tied", "least_gains", "least_loses"},
    "tokens_per_joule": {"finding"},
    "training_phases": {"faster", "traded"},
}
WIDE = 1e6  # a factor that no two recorded times are apart
NOISY = ("profile", "matmul")


def told(name: str, tables: frames.Tables) -> set[str]:
    """The texts of a figure's sentence on these tables, as on the page."""
    module = figures.modules()[name]
    rows = module.rows(OTHERWISE.get(name, dict)(tables))
    assert len(rows), f"the recordings have no rows of {name}"
    text = Heard(name)
    figures.finding(module, trust.with_doubts(rows), text)
    return set(text.heard)


@pytest.fixture(scope="module")
def vague(recorded) -> frames.Tables:
    """The recorded tables with intervals that hold every other time."""
    made = dict(recorded)
    for name in NOISY:
        rows = recorded[name]
        ends = {"time_ci_low_s": rows["time_s"] / WIDE, "time_ci_high_s": rows["time_s"] * WIDE}
        made[name] = rows.assign(**ends)
    return made


@pytest.fixture(scope="module")
def disturbed(recorded) -> frames.Tables:
    """The recorded tables as if other load had run beside all of it."""
    flags = '{"beside": {"share": 30.0}}'
    noisy = {name: recorded[name].assign(verdict_flags=flags) for name in NOISY}
    return trust.judged({**recorded, **noisy})


@pytest.mark.parametrize("name", by_fourths(APART))
def test_a_difference_within_the_intervals_has_no_number(vague, recorded, name):
    assert told(name, recorded) & APART[name], "a sentence on exact times tells one"
    assert not told(name, vague) & APART[name]


@pytest.mark.parametrize("name", by_fourths(APART))
def test_a_ratio_of_doubtful_rows_is_none(disturbed, name):
    assert not told(name, disturbed) & APART[name]


@pytest.mark.parametrize(
    "name",
    ["block_sizes", "counter_deviation", "matmul_throughput", "roofline", "utilization_ladder"],
)
def test_a_sentence_about_the_wrong_row_is_noticed(recorded, name, monkeypatch):
    rows = figures.modules()[name].rows(recorded)
    largest, smallest = pd.Series.idxmax, pd.Series.idxmin
    monkeypatch.setattr(pd.Series, "idxmax", smallest)
    monkeypatch.setattr(pd.Series, "idxmin", largest)
    with pytest.raises(AssertionError):
        made(rows, name)


def test_public_runs_above_the_peak_of_16_bits_are_told(recorded):
    module = figures.modules()["published_mfu"]
    rows = selection.drawable(module, trust.judged(recorded))
    text = Heard("published_mfu")
    figures.finding(module, rows, text)
    drawn = int((rows["mfu_bf16_percent"] > 100).sum())
    assert drawn > 0
    assert [said["above"] for said in text.heard["above"]] == [drawn]


def test_a_ceiling_of_a_quick_search_says_so(recorded):
    drawn = figures.render("ceilings", trust.judged(recorded))
    rows = figures.modules()["ceilings"].rows(recorded)
    quick = Texts(section="ceilings")("quick")
    labels = [label for axes in drawn.figure.axes for label in axes.get_yticklabels()]
    told = sum(quick in label.get_text() for label in labels)
    assert told == rows["run"].str.contains("search=quick").sum() > 0


def test_a_machine_of_two_sizes_is_told_before_recorded_curves(recorded):
    matmul = recorded["matmul"]
    curve = matmul[matmul["hardware"].str.startswith("nvidia") & (matmul["n"] == matmul["m"])]
    sizes = sorted(curve["n"].dropna().unique())[:2]
    own = curve[curve["n"].isin(sizes)].assign(hardware="tesla-t4", recorded=False)
    rows = figures.modules()["matmul_throughput"].rows(
        {**recorded, "matmul": pd.concat([matmul, own])}
    )
    assert set(frames.own_or_recorded(rows)["hardware"]) == {"tesla-t4"}
    assert rows["recorded"].any(), "recorded curves stay beside it"
