"""Every implementation on a real GPU: right for every shape that it takes, and the timer's answers make sense."""

import pytest
import torch
from support.shape_classes import KERNELS, kernel_class

from mfulab.kernels.base import Shape
from mfulab.kernels.formats import FORMATS
from mfulab.kernels.verification import check, exact_product, random_operands
from mfulab.schema.errors import UnsupportedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none"),
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
]


def _cases():
    for path in KERNELS:
        try:
            kind = kernel_class(path)
        except ModuleNotFoundError as missing:
            yield pytest.param(
                None, None, id=path.stem, marks=pytest.mark.skip(reason=f"{missing.name} is not installed")
            )
            continue
        if "cuda" in kind.devices:
            yield from (pytest.param(kind, precision, id=f"{path.stem}-{precision}") for precision in kind.precisions)


@pytest.mark.parametrize(("kind", "precision"), list(_cases()))
def test_every_implementation_is_right_for_every_shape(kind, precision):
    form, done = FORMATS[precision], 0
    for sides in SHAPES:
        shape, kernel = Shape(*sides), kind(precision)
        try:
            kernel.require("cuda", shape)
        except UnsupportedError:
            continue
        operands = random_operands(shape, form, "cuda", seed=17)
        operands.poison()
        prepared = kernel.prepare(operands.a, operands.b, operands.c)
        launch = kernel.launch(shape)
        for _ in range(3):  # a moving result is a race
            returned = kernel.run(*prepared, launch=launch)
        torch.cuda.synchronize()
        c = operands.c if returned is None else returned.view_as(operands.c)
        result = check(c, exact_product(operands.a, operands.b), form, shape.k)
        assert result.correct, f"{shape}: {result}"
        done += 1
    if not done:
        pytest.skip(f"this GPU has no {precision} product of this kind")


@pytest.mark.parametrize("cycles", [2_000_000, 8_000_000])
def test_the_device_timer_sees_a_known_delay(cycles):
    from mfulab.timing.device_timer import DeviceTimer

    timer = DeviceTimer()
    expected = cycles / timer._spin_per_s

    def spin():
        torch.cuda._sleep(cycles)

    times = [time_s for _ in range(5) if (time_s := timer.time(spin, 3)) is not None]
    assert times
    assert sorted(times)[len(times) // 2] == pytest.approx(expected, rel=0.1)


def test_a_cold_product_takes_no_less_than_a_hot_one():
    from mfulab.kernels.torch_matmul import Torch
    from mfulab.timing.device_timer import DeviceTimer
    from mfulab.timing.repetitions import Budget, interleave, summarise

    kernel, shape = Torch("fp32"), Shape(1, 512, 512, 512)
    operands = random_operands(shape, FORMATS["fp32"], "cuda", seed=1)
    prepared = kernel.prepare(operands.a, operands.b, operands.c)
    call = lambda: kernel.run(*prepared, launch=kernel.launch(shape))  # noqa: E731
    repetitions = interleave({"torch": call}, DeviceTimer(), Budget(0.2, 0.5, 5))
    assert summarise(repetitions, "torch", "cold").median_s > 0.9 * summarise(repetitions, "torch", "hot").median_s


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
