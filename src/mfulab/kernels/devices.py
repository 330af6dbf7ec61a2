"""Block sizes from device properties, and what a block may not be."""

import functools
import math
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device import gpu

WARP = 32
AMPERE = (8, 0)
HOPPER = (9, 0)
# CUDA C++ programming guide, "Technical specifications per compute capability"
LARGEST_GRID = (2**31 - 1, 65535, 65535)
# a block may have more of its SM only where it asks for it at launch
STATIC_SHARED_BYTES = 48 << 10
DYNAMIC_SHARED_BYTES = 99 << 10  # what every GPU since 8.0 gives a block that asks


@functools.cache
def properties() -> Any:
    """The current GPU's properties, as torch reports them; None without one, where a kernel is only
    compiled."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device())
    return None


def generation() -> tuple[int, int]:
    """Compute capability of the current GPU: Hopper's without one, where a kernel is only compiled,
    and (0, 0) of AMD's."""
    if torch.cuda.is_available():
        return gpu.capability_of() or (0, 0)
    return HOPPER


def most_threads() -> int:
    """Threads that a block of the current GPU may have; 1024, as on all since 2.0, if torch does
    not report it."""
    return getattr(properties(), "max_threads_per_block", 1024)


def thread_block(block: tuple[int, ...] | None) -> tuple[int, int]:
    """The chosen block, else the largest square in whole warps; raises UnsupportedError for too
    many threads."""
    side = math.isqrt(most_threads())
    first, second = block or (side // WARP * WARP or side,) * 2
    if first * second > most_threads():
        raise UnsupportedError(
            Said(
                "block_too_large",
                {
                    "block": str([first, second]),
                    "threads": str(first * second),
                    "most": str(most_threads()),
                },
            )
        )
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
        raise UnsupportedError(Said("kernel_of_nvidia", {"name": name}))
    if have < least:
        need, has = (".".join(map(str, pair)) for pair in (least, have))
        raise UnsupportedError(
            Said("capability_too_low", {"name": name, "need": str(need), "has": str(has)})
        )


def require_grid(name: str, grid: tuple[int, ...]) -> None:
    """Raises UnsupportedError for more blocks along a side than any GPU launches."""
    if any(blocks > most for blocks, most in zip(grid, LARGEST_GRID, strict=False)):
        raise UnsupportedError(
            Said("grid_too_large", {"name": name, "grid": str(grid), "most": str(LARGEST_GRID)})
        )


def require_block(
    name: str,
    threads: int,
    loads: tuple[int, int],
    shared_bytes: int,
    most_bytes: int = STATIC_SHARED_BYTES,
) -> None:
    """Raises UnsupportedError for a tiled block that cannot be: its threads, their loads of each
    tile, its bytes."""
    if not 0 < threads <= most_threads() or threads % WARP:
        raise UnsupportedError(
            Said(
                "threads_of_block",
                {
                    "name": name,
                    "threads": str(threads),
                    "most": str(most_threads()),
                    "warp": str(WARP),
                },
            )
        )
    if any(count % threads for count in loads):
        raise UnsupportedError(
            Said("loads_not_even", {"name": name, "threads": str(threads), "loads": str(loads)})
        )
    if shared_bytes > most_bytes:
        raise UnsupportedError(
            Said(
                "shared_memory_lacks",
                {"name": name, "needed": str(shared_bytes), "most": str(most_bytes)},
            )
        )
