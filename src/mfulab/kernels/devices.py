"""Block sizes from device properties."""

import functools
import math

from mfulab.errors import UnsupportedError

WARP = 32


@functools.cache
def most_threads() -> int:
    """Threads that a block of the current GPU may have; 1024, as on all since 2.0, where torch does not tell."""
    import torch

    if not torch.cuda.is_available():
        return 1024
    return getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "max_threads_per_block", 1024)


def square_block(threads: int | None = None) -> tuple[int, int]:
    """The largest square of threads that a block may have, in whole warps across: 32×32 on every GPU so far."""
    side = math.isqrt(threads or most_threads())
    side = side // WARP * WARP or side
    return side, side


def require_threads(name: str, threads: int) -> None:
    """Raises UnsupportedError for a block of more threads than the GPU allows, or not in whole warps."""
    if not 0 < threads <= most_threads() or threads % WARP:
        raise UnsupportedError(f"{name}: {threads} threads a block; at most {most_threads()}, in whole warps of {WARP}")
