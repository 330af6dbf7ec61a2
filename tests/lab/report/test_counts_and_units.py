"""Sentences whose numbers name what they count: joules, bytes, counts left out, other models."""

import pandas as pd
import pytest
from support.said import heard_of

from mfulab.lab.report import frames, selection, trust
from mfulab.lab.report.drawing import relative
from mfulab.lab.report.figures import (
    counter_deviation,
    model_parallel,
    precision_speed,
    recompilations,
    tokens_per_joule,
)


def test_tokens_and_flops_per_joule_divide_by_the_same_energy(recorded):
    rows = tokens_per_joule.rows(recorded)
    assert len(rows) > 1
    per_token = rows["flops_per_j"] / rows["tokens_per_j"]
    tokens = rows["tokens_per_s"] * rows["time_s"]
    assert per_token.tolist() == pytest.approx((rows["flops"] / tokens).tolist(), rel=1e-3)


def test_counts_that_are_not_drawn_are_told():
    worst = {"model": "gpt2", "counter": "thop", "deviation_percent": -73.0, "explanation": ""}
    rows = pd.DataFrame([worst])
    told = heard_of(counter_deviation, rows.assign(synthetic=30, undrawn=2, agreeing=1))
    [said] = told["finding"]
    assert (said["agreeing"], said["count"]) == (1, 3)
    assert (told["synthetic"], told["others"]) == ([{"count": 30}], [{"count": 2}])
    none = heard_of(counter_deviation, rows.assign(synthetic=0, undrawn=0, agreeing=0))
    assert none.keys() == {"finding"}


def test_every_count_is_drawn_or_told_to_be_left_out(recorded):
    rows = counter_deviation.rows(recorded)
    counted = frames.ok(recorded["counters"], "deviation_percent")
    every = counted.drop_duplicates(["model", "counter"])
    left_out = rows[["synthetic", "undrawn"]].iloc[0].sum()
    agreeing = every["deviation_percent"].abs() <= counter_deviation.AGREES_WITHIN
    load = selection.is_synthetic(every)
    [said] = heard_of(counter_deviation, rows)["finding"]
    assert said["agreeing"] == (agreeing & ~load).sum()
    assert len(rows) + left_out == len(every)


def test_eager_of_other_models_stands_beside_that_of_the_named_one():
    made = {"varied_calls": 10.0, "graphs": 1.0, "graph_breaks": 0.0, "batch_size": 1.0}
    eager = {"execution": "eager", "recompilations": float("nan")}
    rows = [
        made | {"model": "a", "execution": "compile", "recompilations": 9.0, "varied_s": 2.0},
        made | eager | {"model": "a", "varied_s": 0.2},
        made | eager | {"model": "b", "varied_s": 0.0005},
        made | eager | {"model": "c", "varied_s": 0.0007},
    ]
    [told] = heard_of(recompilations, pd.DataFrame(rows))["eager_others"]
    assert (told["row"]["varied_s"], told["count"]) == (0.2, 2)
    assert (told["low"], told["high"]) == (0.0005, 0.0007)
    assert "eager_others" not in heard_of(recompilations, pd.DataFrame(rows[:2]))


def test_a_split_has_the_speed_of_the_times_and_the_bytes_that_were_measured(recorded):
    rows = model_parallel.rows(recorded)
    alone_s = rows.loc[rows["split"] == "none", "time_s"].iloc[0]
    assert rows["speedup"].tolist() == pytest.approx((alone_s / rows["time_s"]).tolist())
    [told] = heard_of(model_parallel, rows)["sends"]
    tensor = rows[rows["split"] == "tensor"].iloc[0]
    assert told["sent"] == tensor["sent_bytes"] > 0
    unmeasured = rows.assign(sent_bytes=float("nan"))
    [told] = heard_of(model_parallel, unmeasured)["sends"]
    assert told["sent"] == tensor["predicted_sent_bytes"]


def test_the_best_run_of_a_language_model_is_held_against_its_other_lengths(recorded):
    tables = trust.judged(recorded)
    timed = frames.with_machine(tables, frames.ok(tables["profile"], "samples_per_s"))
    rows = relative.ranked(relative.against(timed, "precision", "fp32"))
    model = rows[(rows["model"] == "gpt2") & (rows["mode"] == "decoding")]
    assert model["sequence_length"].nunique() > 1
    told = heard_of(precision_speed, model.assign(speedup=[2.0 + at for at in range(len(model))]))
    assert len(told["at_length"]) == len(model) - 1
    single = heard_of(precision_speed, model.head(1))
    assert "at_length" not in single
