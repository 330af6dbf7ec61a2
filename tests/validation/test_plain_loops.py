"""Plain loops: FLOPs by hand against a published closed form, and the docs' command."""

import plain_loops
import pytest
from support.workflow_copy import ROOT

VOCABULARY, WIDTH = 50257, 768  # of GPT-2


def closed(tokens: int, length: int, layers: int) -> tuple[float, float]:
    """72 B s l h² (1 + s / 6 h + V / 12 l h), arXiv:2104.04473 without recomputation; and 6 for
    each bias and norm."""
    inner = 1 + length / (6 * WIDTH) + VOCABULARY / (12 * layers * WIDTH)
    return 72 * tokens * layers * WIDTH**2 * inner, 6.0 * tokens * (13 * layers + 2) * WIDTH


@pytest.mark.parametrize(("rows", "length", "layers"), [(2, 16, 1), (1, 48, 2)])
def test_gpt2_by_hand_is_megatron_s_formula_beside_biases_and_norms(rows, length, layers):
    flops = plain_loops.gpt2("cpu", rows, length, layers)[2]
    assert flops == pytest.approx(sum(closed(rows * length, length, layers)), rel=1e-12)


def test_two_layers_without_gradients_are_two_matmuls():
    assert plain_loops.linear("cpu", 8, 64)[2] == 2 * (2 * 8 * 64 * 64)


def test_the_docs_name_the_command_and_how_far_a_count_lies_below_it():
    told = " ".join((ROOT / "docs/gpu.md").read_text(encoding="utf-8").split())
    assert "`python validation/plain_loops.py`" in told
    matmuls, others = closed(16 * 1024, 1024, layers=12)
    assert f"FLOPs are {matmuls / (matmuls + others):.4f} of those by hand" in told
