"""Decoding: the sentence about experts comes from the rows, and a dense model has none."""

import pytest
from support.drawn import overlaps, tables
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import decoding


def said(tmp_path, language: str, imbalances: dict[int, float | None]) -> str:
    """The sentence for one model whose experts were so uneven at each batch size."""
    row = {
        "status": "ok",
        "hardware": "here",
        "recorded": "False",
        "execution": "eager",
        "precision": "fp32",
    }
    row |= {"mode": "decoding", "workload": "decoding", "sequence_length": 64, "time_s": 0.1}
    row |= {"model": "mixtral_small", "mbu_percent": 50.0, "mfu_percent": 2.0}
    rows = [
        row | {"batch_size": size, "expert_imbalance": uneven}
        for size, uneven in imbalances.items()
    ]
    return decoding.finding(decoding.rows(tables(tmp_path, *rows)), Texts(language, "decoding"))


@pytest.mark.parametrize(
    ("imbalances", "told"),
    [
        (
            {1: 4.0, 16: 1.5},
            "In mixtral_small at batch 16, the busiest expert of a layer gets 1.50× the tokens",
        ),
        ({1: 4.0, 16: None}, "at batch 1, the busiest expert of a layer gets 4.00× the tokens"),
        ({1: 256.0, 2: 256.0}, "gets 256× the tokens"),
        ({1: 1.0, 16: 1.0}, "at batch 16, each expert gets as many tokens as any other."),
    ],
)
def test_the_busiest_expert_of_the_largest_batch_is_told(tmp_path, imbalances, told):
    assert told in said(tmp_path, "en", imbalances)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_dense_model_has_no_experts_to_tell_of(tmp_path, language):
    dense, routed = (said(tmp_path, language, {1: uneven, 16: uneven}) for uneven in (None, 2.0))
    assert routed.startswith(dense)
    assert "mixtral_small" in routed.removeprefix(dense)


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_prompts_stand_beside_the_tokens_after_them(tmp_path, language):
    common = {
        "status": "ok",
        "hardware": "here",
        "recorded": "False",
        "execution": "eager",
        "precision": "fp32",
    }
    common |= {
        "model": "gpt2",
        "key_value_cache_bytes": 4e6,
        "tokens_per_s": 50.0,
        "mbu_percent": 80.0,
    }
    halves = {"prefill": (0.5, 60.0), "decoding": (0.02, 2.0)}
    rows = [
        common | {"run": f"workload={mode},batch_size={batch},sequence_length={length}",
                  "mode": mode, "workload": mode, "batch_size": batch, "sequence_length": length, "mfu_percent": mfu,
                  "time_s": time_s * length / 64}
        for mode, (time_s, mfu) in halves.items() for batch in (1, 4, 16) for length in (64, 256)
    ]  # fmt: skip
    drawn = figures.render("decoding", tables(tmp_path, *rows), language)
    assert overlaps(drawn.figure) == []
    if language == "en":
        assert (
            "gpt2 reads a prompt of 256 tokens in 2.00 s (TTFT) at 60 % MFU; each further token takes 80.0 ms (TPOT) "
            "at 80 % MBU and 2.0 % MFU (prompt at batch 1, tokens at batch 1)."
        ) in drawn.finding
        assert (
            "Decoding 16 sequences holds 4.00 MB of keys and values and gives 50.0 tokens/s."
            in drawn.finding
        )
    assert decoding.rows(tables(tmp_path, *rows[:6])).empty, "prompts alone"
