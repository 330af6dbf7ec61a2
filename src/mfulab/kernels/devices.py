"""Block sizes from device properties, and what a block may not be."""

import functools
import math
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.device import gpu

WARP = 32
# CUDA C++ programming guide, "Technical specifications per compute capability"
LARGEST_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED_BYTES = 48 << 10  # a block may have more of its SM only where it asks for it at launch
DYNAMIC_SHARED_BYTES = 99 << 10  # what every GPU since 8.0 gives a block that asks


@functools.cache
def properties() -> Any:
    """The current GPU's properties, as torch reports them; None without one, where a kernel is only compiled."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None


def most_threads() -> int:
    """Threads that a block of the current GPU may have; 1024, as on all since 2.0, if torch does not report it."""
    return getattr(properties(), "max_threads_per_block", 1024)


def thread_block(block: tuple[int, ...] | None) -> tuple[int, int]:
    """The chosen block, else the largest square in whole warps; raises UnsupportedError for too many threads."""
    side = math.isqrt(most_threads())
    first, second = block or (side // WARP * WARP or side,) * 2
    if first * second > most_threads():
        raise UnsupportedError(f"block={[first, second]}: {first * second} threads; at most {most_threads()} fit")
    return first, second


def current_stream() -> int:
    """The handle of torch's current stream; 0 is the default one's."""
    return torch.cuda.current_stream().cuda_stream


def require_capability(name: str, least: tuple[int, int]) -> None:
    """Raises UnsupportedError on a GPU of a lower compute capability, or of none: not NVIDIA's."""
    if least == (0, 0):
        return
    have = gpu.capability_of()
    if have is None:
        raise UnsupportedError(f"{name} runs on NVIDIA GPUs, and torch is built for AMD's")
    if have < least:
        need, has = (".".join(map(str, pair)) for pair in (least, have))
        raise UnsupportedError(f"{name} needs compute capability {need}, this GPU has {has}")


def require_grid(name: str, grid: tuple[int, ...]) -> None:
    """Raises UnsupportedError for more blocks along a side than any GPU launches."""
    if any(blocks > most for blocks, most in zip(grid, LARGEST_GRID, strict=False)):
        raise UnsupportedError(f"{name} needs a grid of {grid}; {LARGEST_GRID} is the largest")


def require_block(
    name: str, threads: int, loads: tuple[int, int], shared_bytes: int, most_bytes: int = STATIC_SHARED_BYTES
) -> None:
    """Raises UnsupportedError for a tiled block that cannot be: its threads, their loads of each tile, its bytes."""
    if not 0 < threads <= most_threads() or threads % WARP:
        raise UnsupportedError(f"{name}: {threads} threads a block; at most {most_threads()}, in whole warps of {WARP}")
    if any(count % threads for count in loads):
        raise UnsupportedError(f"{name}: {threads} threads cannot share the loads of its tiles evenly, {loads}")
    if shared_bytes > most_bytes:
        raise UnsupportedError(f"{name} needs {shared_bytes} B of shared memory; {most_bytes} B are there")
