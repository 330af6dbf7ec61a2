"""How sure a count is: two counts that agree, and what is said where they do not."""

import pytest
import torch
from support.models import read
from torch import nn

from mfulab.flops.count import count
from mfulab.flops.model import count_model
from mfulab.flops.operators import FORMULAS, register


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "lstm", "mobilenet_v2"])
def test_the_second_count_by_layers_agrees(name):
    found = count_model(read(name), 1, 64 if name == "gpt2" else None).count.certainty
    assert found.deviation == 0
    assert found.worst_layer == ""
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.second_share > 0.9
    assert "every operator has a formula" in str(found)


def test_a_formula_that_is_wrong_is_seen_by_the_second_count():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    right = FORMULAS["aten::addmm"]
    try:
        register("aten::addmm", lambda bias, a, b: 2 * a.numel() * (b.shape[-1] if b.shape[-1] == 8 else 1))
        found = count(model, lambda: model(torch.randn(2, 8)).sum(), fused=False).certainty
    finally:
        FORMULAS["aten::addmm"] = right
    assert found.deviation == pytest.approx((2 * 2 * 8 * 4 - 2 * 2 * 8) / (2 * 2 * 8 * 8 + 2 * 2 * 8))
    assert found.worst_layer == "1"


def test_what_is_a_bound_and_what_has_no_formula_is_told():
    class Masked(nn.Module):
        def forward(self, x, mask):
            torch.linalg.svd(x[0, 0])
            return nn.functional.scaled_dot_product_attention(x, x, x, mask)

    with torch.device("meta"):
        model, x = Masked(), torch.randn(1, 2, 8, 4)
        found = count(model, lambda: model(x, torch.ones(8, 8)).sum()).certainty
    assert found.bound_share == 1
    assert found.shares["attention"] == 1
    assert found.deviation is None
    assert found.uncounted == {"aten::_linalg_svd": 1}
    assert "upper bound" in str(found)
    assert "aten::_linalg_svd (1 calls)" in str(found)
