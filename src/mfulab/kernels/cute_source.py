"""The CuTe DSL's kernel, which NVIDIA's compiler reads from this module: layouts, copies and products by hand."""

import functools
from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute import runtime
from cutlass.cute.nvgpu import cpasync, warp

TILE = (128, 128, 32)
STAGES = 3
WARPS = (2, 2, 1)
THREADS = 128
PRODUCT = (16, 8, 16)  # of one `mma.sync`


@cute.kernel  # type: ignore[untyped-decorator]
def matmul(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    copy_a: cute.TiledCopy,
    copy_b: cute.TiledCopy,
    mma: cute.TiledMma,
):
    """A block a tile of C: two tiles of A and B are on their way to shared memory while one is multiplied."""
    thread, _, _ = cute.arch.thread_idx()
    column, row, matrix = cute.arch.block_idx()
    place = (row, column, None)
    global_a = cute.local_tile(a[None, None, matrix], tiler=TILE, coord=place, proj=(1, None, 1))
    global_b = cute.local_tile(b[None, None, matrix], tiler=TILE, coord=place, proj=(None, 1, 1))
    global_c = cute.local_tile(c[None, None, matrix], tiler=TILE, coord=place, proj=(1, 1, None))
    shared = cutlass.utils.SmemAllocator()
    shared_a = shared.allocate_tensor(a.element_type, layout_a, 16)
    shared_b = shared.allocate_tensor(b.element_type, layout_b, 16)
    own_a, own_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
    from_a, to_a = own_a.partition_S(global_a), own_a.partition_D(shared_a)
    from_b, to_b = own_b.partition_S(global_b), own_b.partition_D(shared_b)
    steps = cute.size(from_a, mode=[3])

    own = mma.get_slice(thread)
    part_a = mma.make_fragment_A(own.partition_A(shared_a)[None, None, None, 0])
    part_b = mma.make_fragment_B(own.partition_B(shared_b)[None, None, None, 0])
    part_c = own.partition_C(global_c)
    total = mma.make_fragment_C(part_c)
    total.fill(0.0)
    # Rows of A are contiguous along the inner dimension, those of B are not: its fragments are transposed as they load.
    load_a = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), a.element_type), mma)
    load_b = cute.make_tiled_copy_B(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), b.element_type), mma)
    seen_a, into_a = load_a.get_slice(thread).partition_S(shared_a), load_a.get_slice(thread).retile(part_a)
    seen_b, into_b = load_b.get_slice(thread).partition_S(shared_b), load_b.get_slice(thread).retile(part_b)

    for stage in cutlass.range_constexpr(STAGES - 1):
        if stage < steps:
            cute.copy(copy_a, from_a[None, None, None, stage], to_a[None, None, None, stage])
            cute.copy(copy_b, from_b[None, None, None, stage], to_b[None, None, None, stage])
        cute.arch.cp_async_commit_group()
    for step in range(steps):
        cute.arch.cp_async_wait_group(STAGES - 2)
        cute.arch.sync_threads()  # the tile has come, and all have read the one that the next copy overwrites
        ahead = step + STAGES - 1
        if ahead < steps:
            cute.copy(copy_a, from_a[None, None, None, ahead], to_a[None, None, None, ahead % STAGES])
            cute.copy(copy_b, from_b[None, None, None, ahead], to_b[None, None, None, ahead % STAGES])
        cute.arch.cp_async_commit_group()
        for block in cutlass.range_constexpr(cute.size(part_a, mode=[2])):
            cute.copy(load_a, seen_a[None, None, block, step % STAGES], into_a[None, None, block])
            cute.copy(load_b, seen_b[None, None, block, step % STAGES], into_b[None, None, block])
            cute.gemm(mma, total, part_a[None, None, block], part_b[None, None, block], total)
    rounded = cute.make_fragment_like(total, c.element_type)
    rounded.store(total.load().to(c.element_type))
    cute.autovec_copy(rounded, part_c)


@cute.jit  # type: ignore[untyped-decorator]
def launch(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: CUstream):
    """C[m,n,batch] = A[m,k,batch] · B[n,k,batch]ᵀ on a stream."""
    kind = a.element_type
    product = warp.MmaF16BF16Op(kind, cutlass.Float32, PRODUCT)
    mma = cute.make_tiled_mma(product, cute.make_layout(WARPS), permutation_mnk=(WARPS[0] * 16, WARPS[1] * 16, 16))
    rows, columns, batch = (cute.size(c, mode=[side]) for side in range(3))
    matmul(
        a,
        b,
        c,
        _shared(TILE[0], inner_first=True),
        _shared(TILE[1], inner_first=False),
        _copier(kind, TILE[0], inner_first=True),
        _copier(kind, TILE[1], inner_first=False),
        mma,
    ).launch(grid=(columns // TILE[1], rows // TILE[0], batch), block=(THREADS, 1, 1), stream=stream)


@functools.cache
def compiled(precision: str, batch: int, m: int, n: int, k: int) -> Any:
    """Compiles `launch` for a shape of whole tiles, for the GPU at hand or the one that CUTE_DSL_ARCH names."""
    kind = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}[precision]
    shapes = ((m, k, batch), (1, 0, 2)), ((n, k, batch), (0, 1, 2)), ((m, n, batch), (1, 0, 2))
    tensors = [
        runtime.make_fake_compact_tensor(kind, shape, stride_order=order, assumed_align=16) for shape, order in shapes
    ]
    return cute.compile(launch, *tensors, runtime.make_fake_stream())


def _shared(rows: int, inner_first: bool) -> cute.ComposedLayout:
    """[rows, inner, stages] in shared memory, swizzled along the contiguous side: no two threads meet in a bank."""
    side = min(64, TILE[2] if inner_first else rows)
    shape, stride = ((8, side), (side, 1)) if inner_first else ((side, 8), (1, side))
    bits = {32: 2, 64: 3}[side]
    atom = cute.make_composed_layout(cute.make_swizzle(bits, 3, 3), 0, cute.make_layout(shape, stride=stride))
    return cute.tile_to_shape(atom, (rows, TILE[2], STAGES), (0, 1, 2))


def _copier(kind: Any, rows: int, inner_first: bool) -> cute.TiledCopy:
    """Asynchronous copies of 128 bits, the threads side by side along the contiguous side."""
    copy = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
    atom = cute.make_copy_atom(copy, kind, num_bits_per_copy=128)
    pack = 128 // kind.width
    across = (TILE[2] if inner_first else rows) // pack
    if inner_first:
        threads, values = cute.make_layout((THREADS // across, across), stride=(across, 1)), (1, pack)
    else:
        threads, values = cute.make_layout((across, THREADS // across), stride=(1, across)), (pack, 1)
    return cute.make_tiled_copy_tv(atom, threads, cute.make_layout(values))
