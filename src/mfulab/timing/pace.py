"""Lengths of a measurement: of its warm-up, its windows and its patience. Needs no torch, since
planning reads them."""

from dataclasses import dataclass, replace

from mfulab.core.groups import TimingConfig
from mfulab.device import ByKind, is_gpu


@dataclass(frozen=True)
class Pace:
    """Length of a measurement, in seconds."""

    windows: int
    window_s: float
    warm_up_s: float
    tolerance: float  # relative spread at which step times are steady
    # for further windows: where some were disturbed, or their median is not precise yet
    patience_s: float = 0.0
    # relative half-width of the median's confidence interval; None: not asked for
    precision: float | None = None
    # steps timed as one: processes of a loader deliver in turn, and each nth step waits
    turn: int = 1
    # of steps under the profiler, whose events take a hundred times as long to read
    traced_s: float = 0.3
    # one traced pass tells operators and modules, where two would cost more than the rest
    is_traced_once: bool = False


# Of each process. The energy counter ticks each 100 ms and GPM wants more than that between
# samples: 3 s on a GPU.
CPU_PACE = Pace(windows=2, window_s=0.4, warm_up_s=1.0, tolerance=0.05, patience_s=1.0)
CUDA_PACE = Pace(windows=3, window_s=1.1, warm_up_s=5.0, tolerance=0.02, patience_s=3.0)
PACE = ByKind(cpu=CPU_PACE, gpu=CUDA_PACE)
# Seconds of the section timing of a process that is one of many. A GPU's three windows are 1.2 s: a
# second for NVML's samples and GPM together, and an energy that says why it is empty. A matmul's
# window is one group of its calls.
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
# Of a launch-bound step each millisecond holds a hundred operators: 50 ms of reading them. A GPU's
# shares are its kernels' time ÷ the untraced step, which one traced step tells.
TRACED_SHORT_S = 0.006


def is_short(device: str, timing: TimingConfig) -> bool:
    """True where a GPU's windows are shorter than the device's own: what goes around them is then
    short, too."""
    return (
        is_gpu(device)
        and timing.window_time_s is not None
        and timing.window_time_s < CUDA_PACE.window_s
    )


def pace_for(device: str, timing: TimingConfig, usual: ByKind[Pace] = PACE) -> Pace:
    """The pace of `cpu` or `cuda`, with what the config sets in place of what is usual."""
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
