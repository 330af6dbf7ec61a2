"""Tolerances by which two numbers of a format count as equal, and a gradient that is checked by differences."""

import warnings
from typing import Any

import torch

from mfulab.measurements.number_formats import rounding_modes
from mfulab.measurements.number_formats.rounding import NumberFormat, epsilon

ABSOLUTE = 1e-8  # the default of numpy.isclose and torch.isclose
OFF = 8  # units in the last place of a result that is called wrong
DIFFERENCE = 1e-6  # the step of torch.autograd.gradcheck
NATIVE = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def tolerances(form: NumberFormat, values: torch.Tensor) -> dict[str, float]:
    """Columns of the least relative tolerance for x · 1.5 / 1.5, and of what 1e-8 refuses of it, and accepts of
    results eight last places off."""
    right = form.round(form.round(values * 1.5) / 1.5)
    wrong = form.round(values * (1 + OFF * epsilon(form)))
    off, differs = (right - values).abs(), wrong != values
    return {
        "relative_tolerance": float((off / values.abs()).max()),
        "absolute_refuses_percent": 100 * float((off > ABSOLUTE).double().mean()),
        "absolute_accepts_percent": 100 * float(((wrong - values).abs()[differs] <= ABSOLUTE).double().mean()),
    }


class StableSigmoid(torch.autograd.Function):
    """The logistic function in the form that never overflows, with its derivative s·(1 − s) given by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """1 / (1 + exp(−x)) from 0 on, exp(x) / (1 + exp(x)) below it."""
        small = torch.exp(-x.abs())
        result = torch.where(x >= 0, 1 / (1 + small), small / (1 + small))
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The gradient times s·(1 − s)."""
        (result,) = ctx.saved_tensors
        return gradient * result * (1 - result)


def gradcheck_passes(form: NumberFormat) -> bool | None:
    """Result of torch.autograd.gradcheck of StableSigmoid in the format; None if torch does not compute in it."""
    if form.name not in NATIVE:
        return None
    x = torch.linspace(-4, 4, 9, dtype=NATIVE[form.name], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of all formats but fp64, which is the point
        return torch.autograd.gradcheck(StableSigmoid.apply, (x,), eps=DIFFERENCE, raise_exception=False)


def difference_error(form: NumberFormat, x: torch.Tensor) -> float:
    """Median relative error of (σ(x + h) − σ(x − h)) / 2h with gradcheck's h, each operation rounded."""
    step = form.of(DIFFERENCE)
    high, low = (rounding_modes.sigmoid(form, form.round(x + each), stable=True) for each in (step, -step))
    exact = torch.sigmoid(x) * torch.sigmoid(-x)
    rise = form.round(high - low)
    slope = form.round(rise / form.of(2 * step)) if step else torch.zeros_like(rise)
    return float(((slope - exact).abs() / exact).median())
