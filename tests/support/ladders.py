"""Ladders of kernels under test: CUDA C, Numba CUDA, and all that run on a CPU."""

from support.shape_classes import kernel_classes

from mfulab.kernels.cuda_async_copies import CudaAsyncCopies
from mfulab.kernels.cuda_coalesced import CudaCoalesced
from mfulab.kernels.cuda_double_buffered import CudaDoubleBuffered
from mfulab.kernels.cuda_grouped import CudaGrouped
from mfulab.kernels.cuda_naive import CudaNaive
from mfulab.kernels.cuda_prefetched import CudaPrefetched
from mfulab.kernels.cuda_register_1d import CudaRegister1D
from mfulab.kernels.cuda_register_2d import CudaRegister2D
from mfulab.kernels.cuda_shared import CudaShared
from mfulab.kernels.cuda_vectorised import CudaVectorised
from mfulab.kernels.cuda_warp_tile import CudaWarpTile
from mfulab.kernels.cuda_wide import CudaWide
from mfulab.kernels.cuda_wmma import CudaWmma
from mfulab.kernels.numba_cpu_elementwise import NumbaCpuElementwise
from mfulab.kernels.numba_cuda_async import NumbaCudaAsync
from mfulab.kernels.numba_cuda_coalesced import NumbaCudaCoalesced
from mfulab.kernels.numba_cuda_naive import NumbaCudaNaive
from mfulab.kernels.numba_cuda_register import NumbaCudaRegister
from mfulab.kernels.numba_cuda_seminar import NumbaCudaSeminar
from mfulab.kernels.numba_cuda_seminar_guarded import NumbaCudaSeminarGuarded
from mfulab.kernels.numba_cuda_seminar_shared import NumbaCudaSeminarShared
from mfulab.kernels.numba_cuda_seminar_transposed import NumbaCudaSeminarTransposed
from mfulab.kernels.numba_cuda_shared import NumbaCudaShared
from mfulab.kernels.numba_cuda_tensor_core import NumbaCudaTensorCore
from mfulab.kernels.numba_cuda_transposed import NumbaCudaTransposed
from mfulab.kernels.numba_cuda_unrolled import NumbaCudaUnrolled
from mfulab.kernels.numba_cuda_wide import NumbaCudaWide
from mfulab.kernels.torch_compiled import TorchCompiled

LADDER = (
    CudaNaive,
    CudaCoalesced,
    CudaShared,
    CudaRegister1D,
    CudaRegister2D,
    CudaVectorised,
    CudaDoubleBuffered,
    CudaWarpTile,
    CudaAsyncCopies,
    CudaPrefetched,
    CudaGrouped,
    CudaWide,
    CudaWmma,
)

# (block, tile of C, depth): tests use shapes around this tile and depth. Small, because the
# simulator runs a Python thread per CUDA thread.
KINDS = {
    NumbaCudaNaive: ((8, 4), 8, 8),
    NumbaCudaTransposed: ((8, 4), 8, 8),
    NumbaCudaCoalesced: ((8, 4), 8, 8),
    NumbaCudaShared: ((8, 8), 8, 8),
    NumbaCudaRegister: (None, 128, 8),
    NumbaCudaUnrolled: (None, 128, 8),
    NumbaCudaTensorCore: (None, 128, 8),
    NumbaCudaAsync: (None, 128, 16),
    NumbaCudaWide: (None, 128, 8),
}

# Kernels as written in the seminar, which would be mistakes on the ladders.
SEMINAR = {
    NumbaCudaSeminar: ((8, 4), 8, 8),
    NumbaCudaSeminarTransposed: ((8, 4), 8, 8),
    NumbaCudaSeminarGuarded: ((8, 8), 8, 8),
    NumbaCudaSeminarShared: ((8, 8), 8, 8),
}

CPU_CLASSES = [
    kind
    for kind in kernel_classes().values()
    if "cpu" in kind.devices and kind not in (TorchCompiled, NumbaCpuElementwise)
]
