"""Tolerances by format, and a gradient that only differences in wide formats confirm."""

import pytest
import torch

from mfulab.measurements.number_formats import rounding, rounding_modes
from mfulab.measurements.number_formats.rounding import ROUNDED


@pytest.mark.parametrize("name", ROUNDED)
def test_the_relative_tolerance_is_a_few_units_in_the_last_place(name):
    form = ROUNDED[name]
    found = rounding_modes.tolerances(form, rounding_modes.across_binades(form, 500, 1))
    assert 0 < found["relative_tolerance"] <= 2 * rounding.epsilon(form)
    assert 0 <= found["absolute_refuses_percent"] <= 100
    assert 0 <= found["absolute_accepts_percent"] <= 100


def test_an_absolute_tolerance_depends_on_the_size_of_numbers():
    form = ROUNDED["fp32"]
    small, large = (
        torch.full((1, 50), 2.0**-60),
        torch.linspace(1e6, 2e6, 200).double().unsqueeze(0),
    )
    assert (
        rounding_modes.tolerances(form, form.round(small.double()))["absolute_accepts_percent"]
        == 100
    )
    found = rounding_modes.tolerances(form, form.round(large))
    assert found["absolute_accepts_percent"] == 0
    assert found["absolute_refuses_percent"] > 0


def test_gradcheck_needs_a_wide_format():
    passes = {name: rounding_modes.gradcheck_passes(form) for name, form in ROUNDED.items()}
    assert passes["fp64"] is True
    assert passes["fp16"] is passes["bf16"] is False
    assert passes["fp8"] is passes["tf32"] is None


def test_the_sigmoid_s_gradient_is_its_derivative():
    x = torch.linspace(-6, 6, 13, dtype=torch.float64, requires_grad=True)
    rounding_modes.StableSigmoid.apply(x).sum().backward()
    assert torch.allclose(x.grad, torch.sigmoid(x) * torch.sigmoid(-x))
    assert torch.isfinite(rounding_modes.StableSigmoid.apply(torch.tensor([-1e6, 1e6]))).all()


def test_differences_vanish_in_narrow_formats():
    x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    errors = {name: rounding_modes.difference_error(form, x) for name, form in ROUNDED.items()}
    assert errors["fp64"] < 1e-6 < errors["fp32"]
    assert errors["bf16"] >= 1
    assert torch.isfinite(torch.tensor(list(errors.values()))).all()
