"""CUDA C for Hopper: tiles by the bulk copy engine (TMA), warpgroup products (wgmma), warps with different jobs."""

import ctypes
from typing import Any

from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC, LaunchError, check, handle_of
from mfulab.schema.errors import UnsupportedError

TILE_M, TILE_N, TILE_K, STAGES = 128, 256, 64, 4
BOX = 64  # elements of 2 bytes in the widest swizzle
THREADS = 3 * 128
SHARED_MEMORY_BYTES = STAGES * (TILE_M + TILE_N) * TILE_K * 2 + 2 * STAGES * 8 + 1024  # stages, barriers, alignment


class CudaHopper(CudaC):
    """fp16 and bf16 with float32 accumulation. Rows of A and B must be multiples of 16 bytes."""

    rung, adds = 10, "Hopper: bulk copies by one warp, products by two warpgroups, blocks that stay for tile after tile"
    precisions = ("fp16", "bf16")
    source = "hopper.cu"
    least_capability = (9, 0)

    def architecture(self, capability: tuple[int, int]) -> str:
        return "sm_90a"  # wgmma exists for this one target only

    def defines(self) -> dict[str, str]:
        return {"TYPE": {"fp16": "f16", "bf16": "bf16"}[self.precision]}

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if device == "cuda":
            import torch

            if torch.cuda.get_device_capability()[0] != 9:
                raise UnsupportedError(f"{self}: wgmma exists on compute capability 9.0 only")
        if shape.n % 8 or shape.k % 8:
            raise UnsupportedError(f"{self}: the copy engine needs n and k to be multiples of 8, not {shape}")

    def launch(self, shape: Shape) -> Launch:
        tiles = shape.batch * ceil_div(shape.m, TILE_M) * ceil_div(shape.n, TILE_N)
        return Launch((THREADS, 1, 1), (min(tiles, _multiprocessors()), 1, 1), SHARED_MEMORY_BYTES)

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        batch, m, k = a.shape
        n = b.shape[-1]
        map_a = tensor_map(a, (k, m, batch), (BOX, TILE_M, 1))
        map_b = tensor_map(b, (n, k, batch), (BOX, TILE_K, 1))
        return map_a, map_b, c, Shape(batch, m, n, k)

    def run(self, *operands: Any, launch: Launch) -> None:
        import torch
        from cuda.bindings import driver

        map_a, map_b, c, shape = operands
        sides = [ctypes.c_int(side) for side in shape]
        pointer = ctypes.c_void_p(c.data_ptr())
        addresses = [map_a.address, map_b.address, *(ctypes.addressof(one) for one in (pointer, *sides))]
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        kernel = self.loaded(launch)
        # cuda.core's launch takes no tensor map by value; the driver's does, and takes a CUkernel for a CUfunction.
        function = driver.CUfunction(handle_of(kernel))
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        try:
            check(
                driver.cuLaunchKernel(
                    function,
                    *launch.grid,
                    *launch.block,
                    launch.shared_memory_bytes,
                    stream,
                    ctypes.addressof(arguments),
                    0,
                )
            )
        except LaunchError as error:
            raise LaunchError(f"{error} ({self.source}, {launch})") from error


class TensorMap:
    """128 bytes that describe a tensor to the copy engine, at a multiple of 64 as the driver demands.

    Those that cuda.bindings makes lie inside Python objects, which CPython aligns to 16 bytes only.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(128 + 63)
        self.address = (ctypes.addressof(self._memory) + 63) // 64 * 64


def tensor_map(matrix: Any, extents: tuple[int, int, int], box: tuple[int, int, int], library: Any = None) -> TensorMap:
    """How the copy engine sees a contiguous 3-D tensor of 2-byte elements; extents and box innermost first.

    Outside the extents it reads zeros; the 128-byte swizzle is the one that `descriptor` in hopper.cuh names.
    """
    from cuda.bindings import driver

    library = library or ctypes.CDLL("libcuda.so.1")
    kind = "BFLOAT16" if "bfloat16" in str(matrix.dtype) else "FLOAT16"
    row, plane = 2 * extents[0], 2 * extents[0] * extents[1]
    made = TensorMap()
    error = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.address),
        ctypes.c_int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}")),
        ctypes.c_uint32(3),
        ctypes.c_void_p(matrix.data_ptr()),
        (ctypes.c_uint64 * 3)(*extents),
        (ctypes.c_uint64 * 2)(row, plane),
        (ctypes.c_uint32 * 3)(*box),
        (ctypes.c_uint32 * 3)(1, 1, 1),
        ctypes.c_int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        ctypes.c_int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        ctypes.c_int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        ctypes.c_int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    check((driver.CUresult(error),))
    return made


def _multiprocessors() -> int:
    """SMs of the GPU at hand; an H100's 132 where the kernel is only compiled."""
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 132
