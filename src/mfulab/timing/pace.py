"""Durations of a measurement: warm-up, windows and patience. Does not import torch, since planning
uses it."""

from dataclasses import dataclass, replace

from mfulab.core.groups import TimingConfig
from mfulab.device import ByKind, is_gpu


@dataclass(frozen=True)
class Pace:
    """Durations of a measurement, in seconds."""

    windows: int
    window_s: float
    warm_up_s: float
    tolerance: float  # relative spread up to which step times are steady
    # for further windows, if some were disturbed or the median is not precise yet
    patience_s: float = 0.0
    # required relative half-width of the median's confidence interval; None: no requirement
    precision: float | None = None
    # steps timed as one: the workers of a DataLoader deliver in turn, so every nth step waits
    turn: int = 1
    # length of the traced steps, whose events take a hundred times as long to read
    traced_s: float = 0.3
    # one traced pass for operators and modules, if two would take longer than all else
    is_traced_once: bool = False


# Per process. The energy counter ticks every 100 ms, and GPM needs more than that between samples:
# 3 s on a GPU.
CPU_PACE = Pace(windows=2, window_s=0.4, warm_up_s=1.0, tolerance=0.05, patience_s=1.0)
CUDA_PACE = Pace(windows=3, window_s=1.1, warm_up_s=5.0, tolerance=0.02, patience_s=3.0)
PACE = ByKind(cpu=CPU_PACE, gpu=CUDA_PACE)
# Values of the config section `timing` for one of many processes. A GPU's three windows take 1.2 s,
# which is enough for NVML's samples and GPM; the energy is empty with the reason. A matmul's window
# is one group of its calls.
_ON_A_CPU = {"window_time_s": 0.1, "warm_up_time_s": 0.3, "patience_s": 0.2}
SHORT: ByKind[dict[str, dict[str, float]]] = ByKind(
    cpu={"profile_step": _ON_A_CPU, "bench_matmul": _ON_A_CPU},
    gpu={
        "profile_step": {"window_time_s": 0.4, "warm_up_time_s": 0.8, "patience_s": 0.4},
        "bench_matmul": {
            "windows": 2,
            "window_time_s": 0.05,
            "warm_up_time_s": 0.1,
            "patience_s": 0.1,
        },
    },
)
# A launch-bound step has a hundred operators per millisecond, which take 50 ms to read. One traced
# step is enough for a GPU's shares: they are kernel time ÷ the untraced step.
TRACED_SHORT_S = 0.006


def is_short(device: str, timing: TimingConfig) -> bool:
    """True if a GPU's windows are shorter than its usual ones. Tracing is then shortened too."""
    return (
        is_gpu(device)
        and timing.window_time_s is not None
        and timing.window_time_s < CUDA_PACE.window_s
    )


def pace_for(device: str, timing: TimingConfig, usual: ByKind[Pace] = PACE) -> Pace:
    """Pace of a device kind, with values set in the config in place of the usual ones."""
    pace = usual[device]
    return replace(
        pace,
        windows=timing.windows or pace.windows,
        window_s=timing.window_time_s or pace.window_s,
        warm_up_s=timing.warm_up_time_s or pace.warm_up_s,
        patience_s=pace.patience_s if timing.patience_s is None else timing.patience_s,
        precision=timing.relative_precision,
        traced_s=TRACED_SHORT_S if is_short(device, timing) else pace.traced_s,
        is_traced_once=is_short(device, timing),
    )
