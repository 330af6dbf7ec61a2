"""Directed rounding against exact fractions."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.measurements.number_formats import rounding, rounding_modes
from mfulab.measurements.number_formats.rounding import ROUNDED

NARROW = ("fp32", "fp16", "bf16", "tf32")


def exactly(form, exact, mode):
    """The rounded value by its definition, from all candidates around it."""
    near = form.of(float(exact))
    step = max(abs(near) * rounding.epsilon(form), rounding.smallest_subnormal(form))
    around = {Fraction(form.of(near + move * step / 2)) for move in range(-6, 7)}
    above = min(value for value in around if value >= exact)
    below = max(value for value in around if value <= exact)
    if mode in ("up", "down"):
        return above if mode == "up" else below
    return min((above, below), key=abs)


@given(
    st.sampled_from(NARROW),
    st.sampled_from(rounding_modes.MODES),
    *[st.integers(-(2**30), 2**30)] * 2,
    *[st.integers(-24, 6)] * 2,
)
def test_every_mode_rounds_as_it_is_defined(name, mode, a, b, low, high):
    form = ROUNDED[name]
    a, b = form.of(math.ldexp(a, low - 24)), form.of(math.ldexp(b, high - 24))
    total, lost = rounding_modes.two_sum(
        *(torch.tensor([each], dtype=torch.float64) for each in (a, b))
    )
    exact = Fraction(a) + Fraction(b)
    assert Fraction(float(total)) + Fraction(float(lost)) == exact
    rounded = rounding_modes.rounded(form, total, lost, mode)
    assert Fraction(float(rounded)) == exactly(form, exact, mode)


def test_float64_itself_is_rounded_by_what_its_sum_lost():
    one, tiny = torch.ones(1, dtype=torch.float64), torch.tensor([2.0**-60], dtype=torch.float64)
    found = {}
    for sign in (1, -1):
        both = rounding_modes.two_sum(one, sign * tiny)
        found[sign] = {
            mode: float(rounding_modes.rounded(ROUNDED["fp64"], *both, mode))
            for mode in rounding_modes.MODES
        }
    under = 1 - 2.0**-53
    assert found[1] == {"toward_zero": 1, "down": 1, "up": 1 + 2.0**-52}
    assert found[-1] == {"toward_zero": under, "down": under, "up": 1}


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_directed_sums_lie_on_their_sides(name):
    form = ROUNDED[name]
    values = rounding.terms(form, 200, 0)
    exact = rounding.exact_sum(values)
    found = rounding_modes.sums(form, values)
    assert bool((found["down"] <= exact).all())
    assert bool((exact <= found["up"]).all())
    assert torch.equal(found["toward_zero"], found["down"])  # all terms are positive


@pytest.mark.parametrize("name", ROUNDED)
def test_the_relative_tolerance_is_a_few_units_in_the_last_place(name):
    form = ROUNDED[name]
    scattered = rounding_modes.across_binades(form, 500, 1)
    found = rounding_modes.relative_tolerance(form, scattered)
    assert 0 < found <= 2 * rounding.epsilon(form)
