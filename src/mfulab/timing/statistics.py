"""Statistics of repeated measurements: median, spread, and confidence intervals over independent
windows."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

# 97.5 % quantiles of Student's t for 1 … 30 degrees of freedom. Beyond, the normal distribution is
# used.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

# With fewer windows their spread is hardly known: for two, Student's t makes the interval six times
# as wide.
FEWEST_WINDOWS = 5

# Percentile over the processes of a run that is taken as the undisturbed time.
UNDISTURBED = 10
FEWEST_FAST = 5  # if half of all processes are slow, this many are all slow once in 32 times
# Standard error of that quantile of n normal values, relative to deviation ÷ √n: √(p·(1−p)) ÷ the
# density at the quantile.
QUANTILE_ERROR = 0.3 / 0.1755

# Weight of the machine's usual variance against a run's own, in degrees of freedom, and the fewest
# runs to estimate it from.
PRIOR_DEGREES = 4
FEWEST_RUNS = 8
# Median of χ² with d degrees of freedom, ÷ d. Dividing the median of sample variances by it
# estimates their common variance.
MEDIAN_OF_CHI_SQUARE = {1: 0.4549, 2: 0.6931, 3: 0.7887, 4: 0.8392}


class Stats:
    """Statistics of finite values in any unit."""

    def __init__(self, values: Iterable[float]) -> None:
        self.values = sorted(float(value) for value in values)
        if not self.values:
            raise ValueError("statistics of no values")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError("statistics of values that are not finite")

    def percentile(self, percent: float) -> float:
        """Value below which `percent` of the values lie, interpolated linearly between ranks."""
        rank = (len(self.values) - 1) * percent / 100
        floor = math.floor(rank)
        below = self.values[floor]
        above = self.values[math.ceil(rank)]
        return below + (above - below) * (rank - floor)

    @cached_property
    def median(self) -> float:
        return self.percentile(50)

    @cached_property
    def standard_deviation(self) -> float | None:
        """Sample standard deviation (n − 1); None for a single value."""
        if len(self.values) < 2:
            return None
        count = len(self.values)
        mean = math.fsum(self.values) / count
        squares = math.fsum((value - mean) ** 2 for value in self.values)
        return math.sqrt(squares / (count - 1))


def relative_half_width(values: Sequence[float], usual: float | None = None) -> float | None:
    """Half-width of the 95 % confidence interval of the median, on a log scale: t·√(π/2)·s/√n. None
    for a single value. Values must be positive. `usual` is a prior variance from other runs."""
    if any(value <= 0 for value in values):
        raise ValueError("a confidence interval of times that are not positive")
    spread = Stats(map(math.log, values)).standard_deviation
    if spread is None:
        return None
    return interval_half_width(
        spread**2, len(values) - 1, len(values), math.sqrt(math.pi / 2), usual
    )


def usual_variance(spreads: Sequence[tuple[float, int]]) -> float | None:
    """Typical variance between processes on a machine, from the (variance, degrees of freedom) of
    each run. None for fewer than FEWEST_RUNS runs."""
    if len(spreads) < FEWEST_RUNS:
        return None
    scaled = [variance / _median_of_chi_square(degrees) for variance, degrees in spreads]
    return Stats(scaled).median  # robust against a few disturbed runs


def _median_of_chi_square(degrees: int) -> float:
    """Median of χ² divided by its degrees of freedom. Uses the approximation of Wilson and Hilferty
    (1931) for more than 4 degrees."""
    return MEDIAN_OF_CHI_SQUARE.get(degrees, (1 - 2 / (9 * degrees)) ** 3)


def mean_half_width(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % confidence interval of the mean of independent values, in their unit.
    None for a single value."""
    spread = Stats(values).standard_deviation
    if spread is None:
        return None
    return interval_half_width(spread**2, len(values) - 1, len(values))


def undisturbed(times: Iterable[float]) -> float:
    """Estimated time without disturbance: a low quantile, since neighbours only add time."""
    return Stats(times).percentile(UNDISTURBED)


def fast_variance(times: Sequence[float]) -> tuple[float, int]:
    """Returns (variance, degrees of freedom) of the logarithms of two or more times. Uses only the
    half below the median, because slow times are disturbed. Uses all if there are fewer than
    `FEWEST_FAST`."""
    logarithms = Stats(map(math.log, times))
    if len(times) < FEWEST_FAST:
        return (logarithms.standard_deviation or 0.0) ** 2, len(times) - 1
    median = logarithms.median
    below = [value for value in logarithms.values if value < median]
    squares = math.fsum((value - median) ** 2 for value in below)
    return 2 * squares / (len(times) - 1), len(times) // 2


def undisturbed_half_width(times: Sequence[float], usual: float | None = None) -> float | None:
    """Half-width of the 95 % interval of the `undisturbed` time, on a log scale. None for fewer
    than two times."""
    if len(times) < 2:
        return None
    return interval_half_width(*fast_variance(times), len(times), QUANTILE_ERROR, usual)


def interval_half_width(
    variance: float,
    degrees: int,
    count: float,
    error: float = 1.0,
    usual: float | None = None,
) -> float:
    """Half-width of a 95 % interval by Student's t: t·error·√(variance/count). `error` is the
    estimator's standard error relative to deviation ÷ √count. `usual` is a prior variance with
    `PRIOR_DEGREES` degrees of freedom."""
    if usual is not None:
        own = degrees * variance
        degrees += PRIOR_DEGREES
        variance = (own + PRIOR_DEGREES * usual) / degrees
    t = 1.96
    if degrees <= len(_T_975):
        t = _T_975[degrees - 1]
    return t * error * math.sqrt(variance / count)


def median_interval(window_medians: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median of independent windows' medians: median · exp(± half-width). None
    for fewer than FEWEST_WINDOWS windows."""
    half = relative_half_width(window_medians)
    if half is None or len(window_medians) < FEWEST_WINDOWS:
        return None
    middle = Stats(window_medians).median
    return middle * math.exp(-half), middle * math.exp(half)
