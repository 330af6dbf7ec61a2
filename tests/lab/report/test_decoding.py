"""Decoding: the sentence about experts comes from the rows, and a dense model has none."""

import pandas as pd
import pytest
from support.drawn import overlaps, step, tables
from support.said import heard
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures, frames
from mfulab.lab.report.figures import decoding


def experts(tmp_path, imbalances: dict[int, float | None]) -> frames.Tables:
    """Tables of one model whose experts were so uneven at each batch size."""
    row = step("decoding", model="mixtral_small", sequence_length=64, time_s=0.1)
    row |= {"mbu_percent": 50.0, "mfu_percent": 2.0}
    rows = [
        row | {"batch_size": size, "expert_imbalance": uneven}
        for size, uneven in imbalances.items()
    ]
    return tables(tmp_path, *rows)


@pytest.mark.parametrize(
    ("imbalances", "key", "batch", "times"),
    [
        ({1: 4.0, 16: 1.5}, "experts", 16, "1.50"),
        ({1: 4.0, 16: None}, "experts", 1, "4.00"),
        ({1: 256.0, 2: 256.0}, "experts", 2, "256"),
        ({1: 1.0, 16: 1.0}, "experts_even", 16, "1.00"),
    ],
)
def test_the_busiest_expert_of_the_largest_batch_is_told(tmp_path, imbalances, key, batch, times):
    told = heard(decoding, experts(tmp_path, imbalances))
    assert told[key] == [{"model": "mixtral_small", "batch": batch, "times": times}]


def test_a_dense_model_has_no_experts_to_tell_of(tmp_path):
    dense, routed = (
        heard(decoding, experts(tmp_path, {1: uneven, 16: uneven})) for uneven in (None, 2.0)
    )
    assert routed.keys() - dense.keys() == {"experts"}


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_prompts_stand_beside_the_tokens_after_them(tmp_path, language):
    speeds = {"tokens_per_s": 50.0, "mbu_percent": 80.0}
    halves = {"prefill": (0.5, 60.0), "decoding": (0.02, 2.0)}
    rows = [
        step(mode, run=f"workload={mode},batch_size={batch},sequence_length={length}", model="gpt2",
             batch_size=batch, sequence_length=length, key_value_cache_bytes=4e6, **speeds,
             mfu_percent=mfu, time_s=time_s * length / 64)
        for mode, (time_s, mfu) in halves.items() for batch in (1, 4, 16) for length in (64, 256)
    ]  # fmt: skip
    drawn = figures.render("decoding", tables(tmp_path, *rows), language)
    assert overlaps(drawn.figure) == []
    told = heard(decoding, tables(tmp_path, *rows))
    prompt, cache = told["prompt"][0]["row"], told["cache"][0]["large"]
    numbers = ["sequence_length", "batch_size", "time_s", "mfu_percent"]
    assert [*prompt[numbers]] == [256, 1, 2.0, 60]
    tokens = ["time_s_token", "mbu_percent_token", "mfu_percent_token"]
    assert [*prompt[tokens]] == [0.08, 80, 2]
    kept = ["batch_size", "key_value_cache_bytes", "tokens_per_s"]
    assert [*cache[kept]] == [16, 4e6, 50]
    assert decoding.rows(tables(tmp_path, *rows[:6])).empty, "prompts alone"


def test_squares_are_explained_where_prompts_are_drawn(tmp_path):
    text = Texts("en", "decoding")
    alone = pd.DataFrame({"mode": ["decoding"]})
    both = pd.DataFrame({"mode": ["decoding", "prefill"]})
    assert text("squares") not in figures.reading(decoding, alone, text)
    assert text("squares") in figures.reading(decoding, both, text)
