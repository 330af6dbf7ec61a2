"""Ticks of logarithmic axes: as many as are read with ease, none that touches another."""

import math
from collections.abc import Iterable

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, Locator, LogLocator, NullLocator

DIGIT = 0.66  # of a font's size: the width of a digit, the widest of what these labels hold
BETWEEN = 0.6  # of a font's size: what is free between two labels


def doublings(axes: Axes, values: Iterable[float], unit: str = "") -> None:
    """A logarithmic x axis in powers of two, with ticks at those of the values that fit beside one
    another."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(_Fitting(values, unit))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: _named(value, unit))


def _named(value: float, unit: str) -> str:
    """A value with its unit; a factor below 1 as a fraction, which reads better than its six
    digits."""
    if unit and 0 < value < 1:
        return f"1/{1 / value:g}{unit}"
    return f"{value:g}{unit}"


class _Fitting(Locator):
    """All values in view that fit the axis's final width; else powers of two, else each second of
    them, and so on."""

    def __init__(self, values: Iterable[float], unit: str) -> None:
        self._values = sorted(set(values))
        self._unit = unit
        self._points = float(rcParams["xtick.labelsize"])

    def __call__(self) -> list[float]:
        return self.tick_values(*sorted(self.axis.get_view_interval()))

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        values = []
        for value in self._values:
            if vmin <= value <= vmax:
                values.append(value)
        powers = []
        for value in values:
            if math.log2(value).is_integer():
                powers.append(value)
        thinned = powers if len(powers) > 1 else values
        # the start of batch sizes, the baseline of ratios
        start = 0
        if 1 in thinned:
            start = thinned.index(1)
        size = self._points * self.axis.axes.figure.dpi / 72
        for choice in [
            values,
            *(thinned[start % step :: step] for step in range(1, len(thinned) + 1)),
        ]:
            widths = size * DIGIT * np.array([len(_named(value, self._unit)) for value in choice])
            places = (
                self.axis.axes.bbox.width * np.log2(np.array(choice) / vmin) / np.log2(vmax / vmin)
            )
            if (np.diff(places) >= (widths[1:] + widths[:-1]) / 2 + size * BETWEEN).all():
                return choice
        return []


def decades(axis: Axis, most: int = 8) -> None:
    """Makes an axis logarithmic, with at most so many ticks, at 1, 2 and 5 too in few decades; its
    limits are final."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    between: tuple[int, ...]
    if high / low < 10**1.7:
        between = (1, 2, 5)
    elif high / low < 10**2.7:
        between = (1, 3)
    else:
        between = (1,)
    axis.set_major_locator(LogLocator(subs=between, numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        (lambda value, _: f"{value:g}") if low >= 1e-4 and high < 1e5 else _power
    )


def zero_at_left(axes: Axes, values: Iterable[float]) -> float:
    """Makes the x axis logarithmic, its left edge standing for zero where a value is zero; returns
    the edge."""
    distinct = {*values}
    positive = [value for value in distinct if value > 0] or [1e-16]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axes.set_xscale("log")
    if 0 in distinct:
        axes.set_xlim(edge, 3 * max(positive))
        decades(axes.xaxis)
        shown = axes.xaxis.get_major_formatter()
        away = edge * (axes.get_xlim()[1] / edge) ** 0.08
        axes.set_xticks(
            [edge, *(tick for tick in axes.get_xticks() if away < tick <= 3 * max(positive))]
        )
        axes.xaxis.set_major_formatter(
            lambda value, tick: "0" if math.isclose(value, edge) else shown(value, tick)
        )
    return edge


def _power(value: float, _: object) -> str:
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**exponent:.0f}"
    if factor == "1":
        return f"$10^{{{exponent}}}$"
    return rf"${factor}\cdot10^{{{exponent}}}$"


def speeds(axes: Axes) -> None:
    """A logarithmic y axis that holds TFLOP/s says FLOP/s with prefixes: CPU and GPU are a factor
    of 10⁴ apart."""
    decades(axes.yaxis)
    axes.yaxis.set_major_formatter(lambda tflop_s, _: EngFormatter().format_eng(tflop_s * 1e12))
    axes.set_ylabel("FLOP/s")
