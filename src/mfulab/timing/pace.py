"""Lengths of a measurement: of its warm-up, its windows and its patience. Needs no torch, since planning reads them."""

from dataclasses import dataclass, replace

from mfulab.core.groups import TimingConfig
from mfulab.device import is_gpu


@dataclass(frozen=True)
class Pace:
    """Length of a measurement, in seconds."""

    windows: int
    window_s: float
    warm_up_s: float
    tolerance: float  # relative spread at which step times are steady
    patience_s: float = 0.0  # for further windows: where some were disturbed, or their median is not precise yet
    precision: float | None = None  # relative half-width of the median's confidence interval; None: not asked for


# Of each process. The energy counter ticks each 100 ms and GPM wants more than that between samples: 3 s on a GPU.
CPU_PACE = Pace(windows=2, window_s=0.4, warm_up_s=1.0, tolerance=0.05, patience_s=1.0)
CUDA_PACE = Pace(windows=3, window_s=1.1, warm_up_s=5.0, tolerance=0.02, patience_s=3.0)


def pace_for(device: str, timing: TimingConfig) -> Pace:
    """The pace of `cpu` or `cuda`, with what the config sets in its place."""
    pace = CUDA_PACE if is_gpu(device) else CPU_PACE
    return replace(
        pace,
        windows=timing.windows or pace.windows,
        window_s=timing.window_time_s or pace.window_s,
        warm_up_s=timing.warm_up_time_s or pace.warm_up_s,
        patience_s=pace.patience_s if timing.patience_s is None else timing.patience_s,
        precision=timing.relative_precision,
    )
