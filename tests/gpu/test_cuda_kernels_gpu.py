"""Every implementation on a real GPU, for every shape; one GPU serves several: `-n 8`."""

import pytest
import torch
from support.shape_classes import KERNELS, kernel_class

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import check, exact_product, random_operands

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none"
    ),
]

SHAPES = [
    (1, 1, 1, 1),
    (1, 128, 128, 128),
    (1, 256, 512, 1024),
    (1, 255, 257, 129),
    (1, 1, 4096, 1024),
    (1, 16, 264, 520),
    (1, 2048, 24, 40),
    (5, 130, 136, 72),
    (1, 1000, 1000, 1000),
    (1, 1664, 3328, 320),  # more tiles than SMs: a persistent kernel takes a second one
]
# a tuned implementation takes half a minute for each
TUNED_SHAPES = [(1, 255, 257, 129), (5, 130, 136, 72)]
TUNED = ("torch_compiled", "triton_autotuned")
# others read outside
WHOLE_TILES = {"numba_cuda_seminar_shared": [(1, 64, 96, 128), (3, 128, 32, 64)]}


def _cases():
    for name in KERNELS:
        try:
            kind = kernel_class(name)
        except ModuleNotFoundError as missing:
            reason = f"{missing.name} is not installed"
            yield pytest.param(None, None, None, id=name, marks=pytest.mark.skip(reason=reason))
            continue
        if "cuda" in kind.devices:
            shapes = WHOLE_TILES.get(name, TUNED_SHAPES if name in TUNED else SHAPES)
            marks = [pytest.mark.gpu(limit_s=300)] if name in TUNED else []
            for precision in kind.precisions:
                yield pytest.param(kind, precision, shapes, id=f"{name}-{precision}", marks=marks)


@pytest.mark.parametrize(("kind", "precision", "shapes"), list(_cases()))
def test_every_implementation_is_right_for_every_shape(kind, precision, shapes):
    form, done = FORMATS[precision], 0
    for sides in shapes:
        torch._dynamo.reset()  # beyond a few recompilations torch.compile runs eagerly
        shape, kernel = Shape(*sides), kind(precision)
        try:
            kernel.require("cuda", shape)
            operands = random_operands(shape, form, "cuda", seed=17)
            operands.poison()
            prepared = kernel.prepare(operands.a, operands.b, operands.c)
            launch = kernel.launch(shape)
            for _ in range(3):  # a moving result is a race
                returned = kernel.run(*prepared, launch=launch)
        except UnsupportedError:
            continue
        except ModuleNotFoundError as missing:  # of those that are imported with the first call
            if missing.name.startswith("mfulab"):
                raise
            pytest.skip(f"{missing.name} is not installed")
        torch.cuda.synchronize()
        c = operands.c if returned is None else returned.view_as(operands.c)
        result = check(c, exact_product(operands.a, operands.b), form, shape.k)
        assert result.correct, f"{shape}: {result}"
        done += 1
    if not done:
        pytest.skip(f"this GPU has no {precision} matmul of this kind")


def test_a_launch_that_cannot_be_names_the_error_and_the_configuration():
    from mfulab.kernels.base import Launch
    from mfulab.kernels.cuda_c import LaunchError
    from mfulab.kernels.cuda_naive import CudaNaive

    operands = random_operands(Shape(1, 8, 8, 8), FORMATS["fp32"], "cuda", seed=1)
    kernel = CudaNaive("fp32")
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_INVALID_VALUE.*naive\.cu.*block=\(64, 64\)"):
        kernel.run(operands.a, operands.b, operands.c, launch=Launch((64, 64), (1, 1)))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_smallest_kernel_multiplies_element_by_element(precision):
    from mfulab.kernels.cuda_elementwise import CudaElementwise

    kernel, shape = CudaElementwise(precision), Shape(37_001, 1, 1, 1)
    operands = random_operands(shape, FORMATS[precision], "cuda", seed=1)
    operands.poison()
    kernel.run(operands.a, operands.b, operands.c, launch=kernel.launch(shape))
    assert torch.equal(operands.c, operands.a * operands.b)
