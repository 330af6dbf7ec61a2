"""Ticks of logarithmic axes: as many as are easy to read, without overlap."""

import math
from collections.abc import Iterable

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, Locator, LogLocator, NullLocator

DIGIT = 0.66  # width of a digit ÷ font size; other characters are narrower
BETWEEN = 0.6  # least gap between two labels ÷ font size


def doublings(axes: Axes, values: Iterable[float], unit: str = "") -> None:
    """Makes the x axis logarithmic to base 2, with ticks at those of the `values` whose labels
    fit."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(_Fitting(values, unit))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: _named(value, unit))


def _named(value: float, unit: str) -> str:
    """Label of a value with its unit. Factors below 1 are fractions, shorter than their
    decimals."""
    if unit and 0 < value < 1:
        return f"1/{1 / value:g}{unit}"
    return f"{value:g}{unit}"


class _Fitting(Locator):
    """Locator for the values in view, if their labels fit. If not, it keeps only powers of two,
    then every second one, and so on."""

    def __init__(self, values: Iterable[float], unit: str) -> None:
        self._values = sorted(set(values))
        self._unit = unit
        self._points = float(rcParams["xtick.labelsize"])

    def __call__(self) -> list[float]:
        return self.tick_values(*sorted(self.axis.get_view_interval()))

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        values = [value for value in self._values if vmin <= value <= vmax]
        powers = [value for value in values if math.log2(value).is_integer()]
        thinned = powers if len(powers) > 1 else values
        # 1 is always kept: the smallest batch, or the baseline of ratios.
        start = thinned.index(1) if 1 in thinned else 0
        choices = [values]
        for step in range(1, len(thinned) + 1):
            choices.append(thinned[start % step :: step])
        for choice in choices:
            if self._fits(choice, vmin, vmax):
                return choice
        return []

    def _fits(self, values: list[float], vmin: float, vmax: float) -> bool:
        """True if the labels of these values do not overlap."""
        size = self._points * self.axis.axes.figure.dpi / 72
        widths = size * DIGIT * np.array([len(_named(value, self._unit)) for value in values])
        fractions = np.log2(np.array(values) / vmin) / np.log2(vmax / vmin)
        gaps = np.diff(self.axis.axes.bbox.width * fractions)
        needed = (widths[1:] + widths[:-1]) / 2 + size * BETWEEN
        return bool((gaps >= needed).all())


def decades(axis: Axis, most: int = 8) -> None:
    """Makes an axis logarithmic, with at most `most` ticks; over few decades also at 2 and 5, or 3.
    Call it when the limits are final."""
    if axis is axis.axes.xaxis:
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
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
    if low >= 1e-4 and high < 1e5:
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axis.set_major_formatter(_power)


def zero_at_left(axes: Axes, values: Iterable[float]) -> float:
    """Makes the x axis logarithmic. If a value is 0, the left edge stands for zero. Returns the
    position of the left edge."""
    distinct = {*values}
    positive = [value for value in distinct if value > 0] or [1e-16]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axes.set_xscale("log")
    if 0 in distinct:
        axes.set_xlim(edge, 3 * max(positive))
        decades(axes.xaxis)
        shown = axes.xaxis.get_major_formatter()
        away = edge * (axes.get_xlim()[1] / edge) ** 0.08
        others = [tick for tick in axes.get_xticks() if away < tick <= 3 * max(positive)]
        axes.set_xticks([edge, *others])
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
    """Makes the y axis, in TFLOP/s, logarithmic and labels it in FLOP/s with prefixes, as CPUs and
    GPUs differ by 10⁴."""
    decades(axes.yaxis)
    axes.yaxis.set_major_formatter(lambda tflop_s, _: EngFormatter().format_eng(tflop_s * 1e12))
    axes.set_ylabel("FLOP/s")
