"""Theoretical occupancy: resident warps ÷ the maximum per SM, from registers, shared memory and
block size."""

from dataclasses import dataclass
from math import prod

from mfulab.kernels.base import Launch, Resources, ceil_div
from mfulab.kernels.devices import WARP, properties

REGISTER_UNIT = 256  # granularity of registers per warp (cuda_occupancy.h)
SM_PARTS = 4  # parts of an SM, each with a quarter of the registers
SHARED_UNIT = 128  # granularity of shared memory in bytes
# bytes reserved by the system per block, since compute capability 8.0
SHARED_RESERVED = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one SM, from the device's properties."""

    threads: int
    blocks: int
    registers: int
    shared_memory_bytes: int
    reserved_bytes: int = SHARED_RESERVED  # of shared memory per block


# Maximum resident blocks per SM, if not 32 (CUDA C++ programming guide, "Technical specifications
# per compute capability").
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (11, 0): 24, (12, 0): 24, (12, 1): 24}


def multiprocessor() -> Multiprocessor | None:
    """Limits of one SM of the current GPU; None without a GPU."""
    if (device := properties()) is None:
        return None
    return Multiprocessor(
        threads=device.max_threads_per_multi_processor,
        blocks=_BLOCKS.get((device.major, device.minor), 32),
        # 65536 on every GPU since 5.2
        registers=getattr(device, "regs_per_multiprocessor", 65536),
        shared_memory_bytes=device.shared_memory_per_multiprocessor,
        reserved_bytes=SHARED_RESERVED if device.major >= 8 else 0,
    )


def occupancy_percent(
    resources: Resources, launch: Launch, sm: Multiprocessor | None = None
) -> float | None:
    """Theoretical occupancy of an SM in percent. None without a GPU, or if the compiler reports no
    registers."""
    if resources.registers is None or not (launch.block or resources.threads):
        return None
    if (sm := sm or multiprocessor()) is None:
        return None
    # The number of blocks is limited by threads, blocks, registers and shared memory.
    warps = ceil_div(resources.threads or prod(launch.block), WARP)
    most_warps = sm.threads // WARP
    registers = ceil_div(max(1, resources.registers) * WARP, REGISTER_UNIT) * REGISTER_UNIT
    warps_of_part = sm.registers // SM_PARTS // registers
    static_bytes = resources.shared_memory_bytes or 0
    needed = static_bytes + launch.shared_memory_bytes + sm.reserved_bytes
    shared = ceil_div(needed, SHARED_UNIT) * SHARED_UNIT
    blocks = min(
        most_warps // warps,
        sm.blocks,
        warps_of_part * SM_PARTS // warps,
        sm.shared_memory_bytes // max(1, shared),
    )
    return 100 * blocks * warps / most_warps
