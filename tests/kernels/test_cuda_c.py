import pytest
import torch
from support.cuda_on_host import HostError, run_on_host
from support.ladders import LADDER
from support.shape_classes import shape_classes
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_coalesced import CudaCoalesced
from mfulab.kernels.cuda_double_buffered import CudaDoubleBuffered
from mfulab.kernels.cuda_elementwise import CudaElementwise
from mfulab.kernels.cuda_naive import CudaNaive
from mfulab.kernels.cuda_register_1d import CudaRegister1D
from mfulab.kernels.cuda_register_2d import CudaRegister2D
from mfulab.kernels.cuda_shared import CudaShared
from mfulab.kernels.cuda_vectorised import CudaVectorised
from mfulab.kernels.cuda_warp_tile import CudaWarpTile
from mfulab.kernels.cuda_wide import CudaWide
from mfulab.kernels.cuda_wmma import CudaWmma
from mfulab.kernels.verification import check, exact_product, random_operands

RUNGS = [(kind, precision) for kind in LADDER for precision in kind.precisions]
# The first, and those of which each takes another way to shared memory or to the tensor cores.
BY_DAY = [
    (kind, kind.precisions[0]) for kind in (CudaNaive, CudaVectorised, CudaWarpTile, CudaWmma)
]
SHAPES = {"uneven": Shape(2, 129, 133, 49), "single": Shape(1, 1, 1, 1)} | shape_classes(128, 48)


def product_on_host(kernel, shape):
    form = FORMATS[kernel.precision]
    operands = random_operands(shape, form, "cpu", seed=5)
    operands.poison()
    run_on_host(kernel, operands.a, operands.b, operands.c, shape)
    return check(operands.c, exact_product(operands.a, operands.b), form, shape.k)


@pytest.mark.parametrize(
    ("kind", "precision"), few(sorted(RUNGS, key=lambda rung: rung not in BY_DAY), len(BY_DAY))
)
@pytest.mark.parametrize("shape", few(SHAPES))
def test_every_rung_is_right_on_the_host(kind, precision, shape):
    result = product_on_host(kind(precision), SHAPES[shape])
    assert result.correct, str(result)
    assert result.effective_precision == precision


@pytest.mark.parametrize(
    ("kind", "block"),
    few(
        [
            (CudaShared, (16, 16)),
            (CudaRegister2D, (64, 64, 8)),
            (CudaNaive, (8, 32)),
            (CudaCoalesced, (32, 4)),
            (CudaRegister1D, (32, 32, 4)),
            (CudaVectorised, (64, 128, 16)),
            (CudaDoubleBuffered, (64, 64, 16)),
            (CudaWarpTile, (64, 128, 8)),
            (CudaWide, (64, 128, 8)),
            (CudaWide, (256, 128, 8)),
        ],
        2,
    ),
)
def test_other_blocks_are_right_too(kind, block):
    assert product_on_host(kind("fp32", block), Shape(1, 70, 132, 40)).correct


@pytest.mark.parametrize(
    ("kind", "block", "said"),
    [
        (CudaShared, (16, 32), "square"),
        (CudaRegister2D, (60, 64, 8), "no multiple of the 8×8"),
        (CudaRegister2D, (128, 256, 6), "evenly"),
        (CudaVectorised, (128, 128, 6), "multiple of the 4 elements"),
        (CudaVectorised, (256, 128, 32), "shared memory"),
        (
            CudaDoubleBuffered,
            (256, 128, 16),
            "49664 B of shared memory",
        ),  # 48 KiB but for the padding
        (CudaRegister2D, (512, 512, 8), "threads per block"),
        (CudaWarpTile, (32, 64, 8), "64×32"),
        (CudaWide, (128, 96, 16), "64×64"),
        (CudaWide, (256, 256, 32), "101376 B are there"),
        (CudaWmma, (100, 128), "64×32"),
        (CudaWmma, (192, 32), "evenly"),
        (CudaWmma, (128, 256), "shared memory"),
        (CudaNaive, (32, 32, 8), "needs 2 numbers"),
    ],
)
def test_a_block_that_cannot_be_is_said(kind, block, said):
    with pytest.raises(UnsupportedError, match=said):
        kind(kind.precisions[0], block)


@pytest.mark.parametrize("kind", [CudaNaive, CudaCoalesced, CudaShared])
def test_a_block_of_too_many_threads_is_said(kind):
    with pytest.raises(UnsupportedError, match="4096 threads; at most 1024"):
        kind("fp32", (64, 64)).launch(Shape(1, 8, 8, 8))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_element_wise_product_is_right_on_the_host(precision):
    kernel, shape = CudaElementwise(precision), Shape(1001, 1, 1, 1)
    operands = random_operands(shape, FORMATS[precision], "cpu", seed=5)
    operands.poison()
    run_on_host(kernel, operands.a, operands.b, operands.c, shape)
    assert torch.equal(operands.c, operands.a * operands.b)


@pytest.mark.parametrize("waits", ["threadIdx.x != 7", "blockIdx.x == 1 && threadIdx.y < 4"])
def test_a_barrier_that_not_all_threads_reach_fails_one_test_alone(tmp_path, waits):
    parameters = "const REAL* a, const REAL* b, REAL* c, int m, int n, int k"
    (tmp_path / "stuck.cu").write_text(
        f"void matmul({parameters}) {{ if ({waits}) __syncthreads(); }}"
    )

    class Stuck(CudaNaive):
        source = str(tmp_path / "stuck.cu")

    with pytest.raises(HostError, match="deadlock"):
        product_on_host(Stuck("fp32"), Shape(1, 64, 64, 8))
    assert product_on_host(CudaShared("fp32"), Shape(1, 33, 33, 33)).correct
