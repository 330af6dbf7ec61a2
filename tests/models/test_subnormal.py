"""Element-wise operations on subnormal numbers: what they give, and that flushing is undone."""

import pytest
import torch

from mfulab.models.subnormal import Elementwise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operation", ["product", "quotient", "root"])
def test_numbers_are_subnormal_or_flushed(dtype, operation):
    inputs, tiny = torch.randn(1, 8, dtype=dtype), torch.finfo(dtype).smallest_normal
    result = Elementwise(operation, subnormal=True, depth=1)(inputs)
    assert bool(((result > 0) & (result < (tiny**0.5 if operation == "root" else tiny))).all())
    assert bool((Elementwise(operation, depth=1)(inputs) > 0.01).all())
    mixed = Elementwise(operation, zeros=True, depth=1)(inputs)
    assert torch.equal(mixed == 0, inputs <= 0)
    assert torch.equal(mixed[inputs > 0], Elementwise(operation, depth=1)(inputs)[inputs > 0])
    if torch.set_flush_denormal(False) and operation != "root":  # MKL's goes its own way
        assert not Elementwise(operation, subnormal=True, flushed=True, depth=1)(inputs).any()
        assert bool((torch.tensor([1e-320], dtype=torch.float64) * 0.5 > 0).all()), (
            "as it was before"
        )
