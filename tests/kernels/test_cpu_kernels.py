import pytest
import torch
from support.ladders import CPU_CLASSES
from support.said import refused
from support.shape_classes import KERNELS, kernel_class, shape_classes
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import MatmulKernel, Shape
from mfulab.kernels.numba_cpu_blocked import NumbaCpuBlocked
from mfulab.kernels.numba_cpu_elementwise import NumbaCpuElementwise
from mfulab.kernels.torch_compiled import TorchCompiled
from mfulab.kernels.verification import check, exact_product, random_operands

SHAPES = shape_classes(64, 64) | {
    "single": Shape(1, 1, 1, 1),
    "wider_than_a_block": Shape(1, 64, 2050, 70),
}
CASES = [
    (kind, precision)
    for kind in CPU_CLASSES
    for precision in kind.precisions
    if precision != "tf32"
]
SLOW = ("fp64",)  # which Numba compiles as it compiles fp32
BY_DAY = sum(precision not in SLOW for _, precision in CASES)


def run(kernel, shape, seed=0):
    form = FORMATS[kernel.precision]
    kernel.require("cpu", shape)
    operands = random_operands(shape, form, "cpu", seed)
    operands.poison()
    returned = kernel.run(
        *kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape)
    )
    c = operands.c if returned is None else returned.view_as(operands.c)
    return check(c, exact_product(operands.a, operands.b), form, shape.k)


@pytest.mark.parametrize("name", KERNELS)
def test_every_config_names_a_kernel(name):
    assert KERNELS[name]["name"] == name
    kind = kernel_class(name)
    assert issubclass(kind, MatmulKernel)
    assert set(kind.precisions) <= set(FORMATS)
    assert kind.family
    assert kind.adds


@pytest.mark.parametrize(
    ("kind", "precision"), few(sorted(CASES, key=lambda case: case[1] in SLOW), BY_DAY)
)
@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_every_cpu_kernel_is_right_for_every_shape(kind, precision, shape):
    result = run(kind(precision), SHAPES[shape])
    assert result.correct, str(result)
    assert result.effective_precision == precision


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:TypedStorage is deprecated:UserWarning"
)
@pytest.mark.parametrize("shape", few(["batched", "one_over", "one_row", "tall"], 0))
def test_the_compiled_product_is_right_though_it_returns_it(shape):
    assert run(TorchCompiled("fp32"), SHAPES[shape]).correct


@pytest.mark.parametrize("block", [(4, 16), (5, 7), (1, 1), (64, 4096)])
def test_the_blocked_kernel_takes_any_block(block):
    assert run(NumbaCpuBlocked("fp32", block), Shape(1, 67, 71, 73)).correct


def test_a_precision_that_a_kernel_lacks_is_said():
    with pytest.raises(UnsupportedError, match=r"NumbaCpuBlocked: no bf16; has fp64, fp32"):
        NumbaCpuBlocked("bf16")


def test_a_device_that_a_kernel_lacks_is_said():
    with refused(UnsupportedError, "kernel_runs_on", devices="cpu", device="cuda"):
        NumbaCpuBlocked("fp32").require("cuda", Shape(1, 8, 8, 8))


def test_a_block_of_the_wrong_length_is_said():
    with pytest.raises(UnsupportedError, match="needs 2 numbers"):
        NumbaCpuBlocked("fp32", (32, 32, 8))


def test_the_result_is_the_product_and_not_its_transpose():
    kernel = NumbaCpuBlocked("fp32")  # of which the tests above have compiled it
    a = torch.arange(6.0).reshape(1, 2, 3)
    b = torch.arange(12.0).reshape(1, 3, 4)
    c = torch.empty(1, 2, 4)
    kernel.run(*kernel.prepare(a, b, c), launch=kernel.launch(Shape(1, 2, 4, 3)))
    assert c[0].tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]]


@pytest.mark.parametrize("precision", NumbaCpuElementwise.precisions)
def test_the_element_wise_product_takes_vectors_alone(precision):
    kernel = NumbaCpuElementwise(precision)
    assert run(kernel, Shape(1001, 1, 1, 1)).effective_precision == precision
    with refused(UnsupportedError, "elementwise_shape", shape="4×4×4"):
        kernel.require("cpu", Shape(1, 4, 4, 4))
