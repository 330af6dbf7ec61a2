"""Memory by what holds it: each way's parts from counts, the sentence, no overlaps."""

from itertools import pairwise

import pandas as pd
import pytest
from support.drawn import overlaps, step, tables
from support.said import heard_of
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import memory_breakdown
from mfulab.lab.report.page import why


def counted(parameters: float = 1e9, **changes) -> dict:
    """A model of a billion parameters: 8 GB of activations, 1 GB checkpointed, 2 GB of cache, each
    in fp32."""
    saved = {
        "activation_bytes": 8e9,
        "activation_fixed_bytes": 0,
        "checkpointed_activation_bytes": 1e9,
    }
    shape = {"batch_size": 1, "sequence_length": 1024, "key_value_cache_bytes": 2e9}
    every = {"parameters": parameters, "trainable_parameters": parameters, **saved, **shape}
    return {
        "run": "counted",
        "model": "large",
        "status": "ok",
        "recorded": "False",
        **every,
        **changes,
    }


def trained(**changes) -> dict:
    asked = {"dtype": "float32", "optimizer": "adam", "autocast": False, "checkpointing": False}
    counts = {"model": "large", "flops_run": "counted", "memory_bytes": 20e9}
    return {**step(), **asked, **counts, **changes}


def rows(tmp_path, *flops: dict, steps: tuple[dict, ...] = ()) -> pd.DataFrame:
    return memory_breakdown.rows(tables(tmp_path, *steps, flops=flops)).set_index("way", drop=False)


def test_the_parts_of_each_way_are_the_textbooks(tmp_path):
    found = rows(tmp_path, counted())
    giga = found[list(memory_breakdown.COLORS)] / 1e9
    assert list(giga.loc["fp32_adam"]) == [4, 0, 4, 8, 8, 0]
    assert list(giga.loc["fp32_sgd"]) == [4, 0, 4, 0, 8, 0]
    # the 16 bytes a parameter of ZeRO's paper
    assert list(giga.loc["mixed_adam"]) == [2, 4, 2, 8, 4, 0]
    assert list(giga.loc["autocast_adam"]) == [6, 0, 4, 8, 4, 0]
    assert list(giga.loc["bf16_adam"]) == [2, 0, 2, 4, 4, 0]
    assert list(giga.loc["fp32_checkpointed"]) == [4, 0, 4, 8, 1, 0]
    assert list(giga.loc["mixed_8_devices"]) == [0.25, 0.5, 0.25, 1, 0.5, 0]
    assert list(giga.loc["bf16_inference"]) == [2, 0, 0, 0, 0, 1]


def test_only_a_step_of_the_same_way_is_measured(tmp_path):
    steps = (
        trained(),
        trained(memory_bytes=9e9, optimizer="sgd"),
        trained(memory_bytes=7e9, autocast=True, dtype="bfloat16"),
    )
    other = trained(memory_bytes=1.0, gradient_accumulation=4)
    known = rows(tmp_path, counted(), steps=(*steps, other))["measured_bytes"].dropna()
    assert known.to_dict() == {"fp32_adam": 20e9, "fp32_sgd": 9e9, "autocast_adam": 7e9}


def test_the_sentence_names_cards_that_suffice(tmp_path):
    told = heard_of(memory_breakdown, rows(tmp_path, counted(3e9)))
    assert told["fits"] == [{"card": "H100 SXM5 80GB"}]
    assert told["least"][0]["needed"] == "1.250 GB"
    assert told["fits_all"] == [{"gigabytes": 16.0}], "the leanest way"


def test_a_card_within_the_error_of_the_count_only_may_suffice(tmp_path):
    told = heard_of(memory_breakdown, rows(tmp_path, counted(2e9)))  # 40 GB
    [near] = told["fits_near"]
    assert (near["card"], near["sure"]) == ("A100 SXM4 40GB", "H100 SXM5 80GB")
    assert near["error"] == "10"
    measured = rows(tmp_path, counted(), steps=(trained(),))
    [near] = heard_of(memory_breakdown, measured)["fits_near"]
    assert (near["card"], near["sure"]) == ("GeForce RTX 4090", "A100 SXM4 40GB")
    assert near["error"] == "17", "the deviation of the measured peak"
    most = memory_breakdown.CAPACITIES[-1][0]
    told = heard_of(memory_breakdown, rows(tmp_path, counted((1.05 * most - 8) / 16 * 1e9)))
    assert told["fits_perhaps"][0]["card"] == "Instinct MI300X"


def test_where_the_smallest_card_suffices_no_leaner_way_is_told(tmp_path):
    told = heard_of(
        memory_breakdown, rows(tmp_path, counted(2e8), steps=(trained(memory_bytes=12e9),))
    )
    [adam], [measured] = told["finding"], told["measured_above"]
    assert (adam["needed"], adam["state"]) == ("11.20 GB", "21")
    assert told["fits_all"] == [{"gigabytes": 16.0}]
    assert "least" not in told
    assert (measured["count"], measured["deviation"]) == (1, "7.1")


def test_what_fits_no_card_says_so(tmp_path):
    told = heard_of(memory_breakdown, rows(tmp_path, counted(4e11)))
    assert told["fits_none"] == [{"card": "Instinct MI300X"}]
    assert not any(key.startswith("measured") for key in told)


def test_the_figure_and_the_table_of_batch_sizes_have_the_same_cards():
    capacities = [gigabytes for gigabytes, _ in memory_breakdown.CAPACITIES]
    assert list(why.CARDS_GB) == capacities[: len(why.CARDS_GB)]


@pytest.mark.parametrize(("parameters", "has_lines"), [(1e7, False), (3e9, True)])
def test_below_the_bars_is_room_for_names_of_cards_alone(tmp_path, parameters, has_lines):
    flops = counted(parameters, activation_bytes=8e6, checkpointed_activation_bytes=1e6)
    drawn = figures.render("memory_breakdown", tables(tmp_path, flops=[flops]))
    [axes] = drawn.figure.axes
    bars = len(axes.get_yticks())
    room = max(axes.get_ylim()) - (bars - 0.5)
    assert bool(axes.texts) == has_lines
    text = Texts("en", "memory_breakdown")
    found = rows(tmp_path, flops)
    assert (text("cards") in figures.reading(memory_breakdown, found, text)) == has_lines
    assert (room > 1) == has_lines


@pytest.mark.parametrize("parameters", [1e7, 1e9, 8e9])
def test_setups_that_save_little_are_not_drawn(tmp_path, parameters):
    every = rows(tmp_path, counted(parameters), steps=(trained(checkpointing=True),))
    drawn = memory_breakdown.shown(every)
    assert {"fp32_adam", "fp32_checkpointed", "bf16_inference"} <= set(drawn["way"]), "measured"
    totals = drawn.drop(index=["fp32_checkpointed", "bf16_inference"])["total"].tolist()
    for above, below in pairwise(totals):
        assert below <= (1 - memory_breakdown.SAVES) * above
    fits_any = every.loc["fp32_adam", "total"] < 14e9
    assert ("mixed_64_devices" in drawn.index) != fits_any


def test_a_model_without_blocks_to_recompute_is_not_drawn(tmp_path):
    assert memory_breakdown.rows(
        tables(tmp_path, flops=[counted(checkpointed_activation_bytes=None)])
    ).empty


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_everything_fits(tmp_path, language):
    sizes = {"small": 1.2e8, "middle": 1.2e9, "large": 8e9}
    flops = [counted(size, model=name, run=name) for name, size in sizes.items()]
    drawn = figures.render(
        "memory_breakdown", tables(tmp_path, trained(flops_run="small"), flops=flops), language
    )
    assert overlaps(drawn.figure) == []
