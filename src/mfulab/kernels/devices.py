"""Properties of the current GPU, default block sizes, and checks of blocks and grids."""

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
# a block gets more shared memory only if the launch requests it
STATIC_SHARED_BYTES = 48 << 10
DYNAMIC_SHARED_BYTES = 99 << 10  # maximum on request on every GPU since 8.0


@functools.cache
def properties() -> Any:
    """Properties of the current GPU, as torch reports them. None without a GPU, where kernels are
    only compiled."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device())
    return None


def generation() -> tuple[int, int]:
    """Compute capability of the current GPU, (0, 0) for AMD's. Without a GPU, where kernels are
    only compiled, that of Hopper."""
    if torch.cuda.is_available():
        return gpu.capability_of() or (0, 0)
    return HOPPER


def amd_architecture() -> str | None:
    """LLVM's name of the current AMD GPU, such as gfx942; empty if torch does not report it. None
    if torch is not built for AMD."""
    if not torch.version.hip:
        return None
    return str(getattr(properties(), "gcnArchName", "")).partition(":")[0]


def most_threads() -> int:
    """Maximum threads per block of the current GPU. 1024 if torch does not report it, as on all
    GPUs since 2.0."""
    return getattr(properties(), "max_threads_per_block", 1024)


def thread_block(block: tuple[int, ...] | None) -> tuple[int, int]:
    """Returns the chosen block, or by default the largest square of whole warps. Raises
    UnsupportedError if it has too many threads."""
    side = math.isqrt(most_threads())
    first, second = block or (side // WARP * WARP or side,) * 2
    if first * second > most_threads():
        raise UnsupportedError(
            Said(
                "block_too_large",
                block=str([first, second]),
                threads=str(first * second),
                most=str(most_threads()),
            )
        )
    return first, second


def current_stream() -> int:
    """Handle of torch's current stream; 0 is the default stream."""
    return torch.cuda.current_stream().cuda_stream


def require_capability(name: str, least: tuple[int, int]) -> None:
    """Raises UnsupportedError on a GPU with a lower compute capability, or without one (not
    NVIDIA's)."""
    if least == (0, 0):
        return
    have = gpu.capability_of()
    if have is None:
        raise UnsupportedError(Said("kernel_of_nvidia", name=name))
    if have < least:
        need, has = (".".join(map(str, pair)) for pair in (least, have))
        raise UnsupportedError(Said("capability_too_low", name=name, need=str(need), has=str(has)))


def require_grid(name: str, grid: tuple[int, ...]) -> None:
    """Raises UnsupportedError if a side of the grid exceeds CUDA's limit."""
    if any(blocks > most for blocks, most in zip(grid, LARGEST_GRID, strict=False)):
        raise UnsupportedError(
            Said("grid_too_large", name=name, grid=str(grid), most=str(LARGEST_GRID))
        )


def require_block(
    name: str,
    threads: int,
    loads: tuple[int, int],
    shared_bytes: int,
    most_bytes: int = STATIC_SHARED_BYTES,
) -> None:
    """Raises UnsupportedError for an invalid tiled block: number of threads, loads that do not
    divide evenly, or too much shared memory."""
    if not 0 < threads <= most_threads() or threads % WARP:
        raise UnsupportedError(
            Said(
                "threads_of_block",
                name=name,
                threads=str(threads),
                most=str(most_threads()),
                warp=str(WARP),
            )
        )
    if any(count % threads for count in loads):
        raise UnsupportedError(
            Said("loads_not_even", name=name, threads=str(threads), loads=str(loads))
        )
    if shared_bytes > most_bytes:
        raise UnsupportedError(
            Said(
                "shared_memory_lacks",
                name=name,
                needed=str(shared_bytes),
                most=str(most_bytes),
            )
        )
