"""Base of the Hopper kernels: tensor maps for the bulk copy engine (TMA), and the launch."""

import ctypes
from typing import Any, ClassVar, NamedTuple

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device import gpu
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC, LaunchError, check, handle_of
from mfulab.kernels.devices import current_stream, properties

TILE_M = 128
TILE_N = 256
STAGES = 4
BOX = 64  # columns of B or C per box
ROW_BYTES = 128  # per row of a box: the widest swizzle
THREADS = 3 * 128
H100_SMS = 132
RING_BYTES = STAGES * (TILE_M + TILE_N) * ROW_BYTES
ALIGNMENT = 1024  # period of the swizzle in bytes
PATCH_BYTES = BOX * ROW_BYTES  # buffer for a patch of C that is stored


class View(NamedTuple):
    """Description of a contiguous tensor for the copy engine. `extents` and `box` are innermost
    first."""

    tensor: Any
    extents: tuple[int, int, int]
    box: tuple[int, int, int]


class Hopper(CudaC):
    """fp16 and bf16 kernels with float32 accumulation. Rows of A and B must be multiples of 16
    bytes."""

    precisions: ClassVar[tuple[str, ...]] = ("fp16", "bf16")
    least_capability = (9, 0)
    cluster: ClassVar[int] = 1  # blocks per cluster, with tiles one below the other
    shared_memory_bytes: ClassVar[int] = RING_BYTES + 2 * STAGES * 8 + ALIGNMENT
    item_bytes: ClassVar[int] = 2
    source = "hopper.cu"
    stores: ClassVar[bool] = False  # whether the copy engine stores C
    ordered: ClassVar[bool] = False  # whether tiles are processed along a curve
    deferred: ClassVar[bool] = False  # whether C is stored while the next tile is multiplied

    def architecture(self, capability: tuple[int, int]) -> str:
        return "sm_90a"  # the only target with wgmma

    def defines(self) -> dict[str, str]:
        name = "f16" if self.precision == "fp16" else "bf16"
        return {
            "TYPE": name,
            "RESULT": name,
            "OPERAND_BYTES": str(self.item_bytes),
            "BLOCKS": str(self.cluster),
            "STORES": str(int(self.stores)),
            "ORDERED": str(int(self.ordered)),
            "DEFERRED": str(int(self.deferred)),
        }

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if device == "cuda" and gpu.capability_of() != (9, 0):
            raise UnsupportedError(Said("wgmma_on_hopper", kernel=str(self)))
        step = 16 // self.item_bytes
        if shape.n % 8 or shape.k % step:
            sides = f"n to be a multiple of 8 and k of {step}"
            if step == 8:
                sides = "n and k to be multiples of 8"
            raise UnsupportedError(
                Said("copy_engine_needs", kernel=str(self), sides=sides, shape=str(shape))
            )

    def launch(self, shape: Shape) -> Launch:
        down = ceil_div(shape.m, self.cluster * TILE_M)
        across = ceil_div(shape.n, TILE_N)
        sms = getattr(properties(), "multi_processor_count", H100_SMS)
        clusters = min(shape.batch * down * across, sms // self.cluster)
        blocks = self.cluster * clusters
        return Launch((THREADS, 1, 1), (blocks, 1, 1), self.shared_memory_bytes)

    def views(self, a: Any, b: Any, c: Any) -> list[View]:
        """Tensors that the copy engine loads and stores, in the order of the kernel's
        parameters."""
        batch, m, k = a.shape
        depth = ROW_BYTES // self.item_bytes
        n = c.shape[2]
        return [
            View(a, (k, m, batch), (depth, TILE_M, 1)),
            View(b, (n, k, batch), (BOX, depth, 1)),
            View(c, (n, m, batch), (BOX, BOX, 1)),
        ]

    def order(self, c: Any) -> Any:
        """Order of tiles as a tensor on the device. If the kernel does not use one, any tensor."""
        return c

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        views = self.views(a, b, c)
        pointers = [c, self.order(c)]
        sides = (a.shape[0], a.shape[1], c.shape[2], a.shape[2])
        maps = [tensor_map(view) for view in views]
        values: list[ctypes.c_void_p | ctypes.c_int] = []
        values += [ctypes.c_void_p(tensor.data_ptr()) for tensor in pointers]
        values += map(ctypes.c_int, sides)
        addresses = [encoded.address for encoded in maps]
        addresses += map(ctypes.addressof, values)
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        return arguments, (views, pointers, maps, values)  # kept alive with the arguments

    def run(self, *operands: Any, launch: Launch) -> None:
        from cuda.bindings import driver

        arguments, _ = operands
        kernel = self.loaded(launch)
        # cuda.core's launch cannot pass a tensor map by value. The driver's can, and accepts a
        # CUkernel as a CUfunction.
        function = driver.CUfunction(handle_of(kernel))
        stream = driver.CUstream(current_stream())
        try:
            sizes = (*launch.grid, *launch.block, launch.shared_memory_bytes)
            check(driver.cuLaunchKernel(function, *sizes, stream, ctypes.addressof(arguments), 0))
        except LaunchError as error:
            raise LaunchError(f"{error} ({self.source}, {launch})") from error


class TensorMap:
    """Memory for a tensor map of 128 bytes, aligned to 64. Those of cuda.bindings are aligned to 16
    only."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(128 + 63)
        self.address = (ctypes.addressof(self._memory) + 63) // 64 * 64


def tensor_map(view: View) -> TensorMap:
    """Encodes a view by the driver, with the 128-byte swizzle that hopper.cuh expects. Elements
    outside the extents read as zeros."""
    from cuda.bindings import driver

    library = ctypes.CDLL("libcuda.so.1")
    dtype = str(view.tensor.dtype)
    item = view.tensor.element_size()
    if item == 1:
        kind = "UINT8"
    elif "bfloat16" in dtype:
        kind = "BFLOAT16"
    else:
        kind = "FLOAT16"
    row = item * view.extents[0]
    plane = item * view.extents[0] * view.extents[1]
    made = TensorMap()
    error = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.address),
        ctypes.c_int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}")),
        ctypes.c_uint32(3),
        ctypes.c_void_p(view.tensor.data_ptr()),
        (ctypes.c_uint64 * 3)(*view.extents),
        (ctypes.c_uint64 * 2)(row, plane),
        (ctypes.c_uint32 * 3)(*view.box),
        (ctypes.c_uint32 * 3)(1, 1, 1),
        ctypes.c_int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        ctypes.c_int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        ctypes.c_int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        ctypes.c_int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    check((driver.CUresult(error),))
    return made
