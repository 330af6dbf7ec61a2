"""Models that keep a device busy or do useful work: tiny kernels, spinning on one SM or on all
cores, and wide matmuls."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mfulab.device import is_gpu, require_cuda

# Integer steps that a core of about 3 GHz does in one millisecond.
_SPINS_PER_MS = 1_000_000


class TinyKernels(nn.Module):
    """One small matmul, then `depth` element-wise operations, each a kernel of its own: [batch,
    width] → [batch, classes]."""

    def __init__(self, width: int = 64, depth: int = 200, classes: int = 10) -> None:
        super().__init__()
        self.depth = depth
        self.classifier = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = inputs
        for _ in range(self.depth):
            values = torch.sin(values)
        return self.classifier(values)


class Spinning(nn.Module):
    """One small matmul, then about `milliseconds` of waiting that counts as busy: [batch, width] →
    [batch, classes]. On a GPU one thread of one SM spins. On a CPU every thread runs an integer
    loop."""

    def __init__(self, width: int = 64, milliseconds: float = 20.0, classes: int = 10) -> None:
        super().__init__()
        self.milliseconds = milliseconds
        self.classifier = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if is_gpu(inputs.device):
            require_cuda(inputs.device, "a GPU kept busy")
            torch.cuda._sleep(int(self.milliseconds * gpu_clocks_per_ms(inputs.device)))
        elif inputs.device.type == "cpu":
            spin(torch.get_num_threads(), self.milliseconds)
        return self.classifier(inputs)


class WideLinear(nn.Module):
    """`depth` matmuls with ReLU between them: [batch, width] → [batch, width]. Forward takes 2 ·
    batch · width² · depth FLOPs."""

    def __init__(self, width: int = 4096, depth: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


@functools.cache
def gpu_clocks_per_ms(device: torch.device) -> float:
    """Clock cycles per millisecond that torch's spinning kernel counts on a GPU, measured once."""
    from mfulab.timing.device_timer import spin_clocks_per_s

    with torch.cuda.device(device):
        return spin_clocks_per_s() / 1e3


def spin(threads: int, milliseconds: float) -> None:
    """Keeps `threads` cores busy for about `milliseconds` with an integer loop."""
    import numba

    run = _spin()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    run(threads, int(milliseconds * _SPINS_PER_MS))


@functools.cache
def _spin() -> Callable[[int, int], Any]:
    import numba
    import numpy as np

    @numba.njit(parallel=True)
    def run(threads: int, steps: int) -> Any:
        ends = np.zeros(threads, np.uint64)
        for thread in numba.prange(threads):
            value = np.uint64(thread + 1)
            for _ in range(steps):
                # xorshift (Marsaglia 2003): each step needs the one before, so the compiler cannot
                # remove it.
                value ^= value << np.uint64(13)
                value ^= value >> np.uint64(7)
                value ^= value << np.uint64(17)
            ends[thread] = value
        return ends

    return run  # type: ignore[no-any-return]
