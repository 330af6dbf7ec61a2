"""The device timer's answers on a real GPU, which nothing else uses meanwhile."""

import statistics

import pytest
import torch

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.torch_matmul import Torch
from mfulab.kernels.verification import random_operands
from mfulab.timing.clocks import EventClock
from mfulab.timing.device_timer import DeviceTimer
from mfulab.timing.pace import Pace
from mfulab.timing.repetitions import Budget, interleave, summarise
from mfulab.timing.windows import observe

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")


@pytest.mark.parametrize("cycles", [2_000_000, 8_000_000])
def test_the_device_timer_sees_a_known_delay(cycles):
    timer = DeviceTimer(DEVICE)
    expected = cycles / timer._spin_per_s

    def spin():
        torch.cuda._sleep(cycles)

    times = [timer.time(spin, 3).time_s for _ in range(5)]
    assert statistics.median(times) == pytest.approx(expected, rel=0.1)


def test_the_host_keeps_ahead_of_calls_that_its_queue_cannot_hold():
    timer, cycles = DeviceTimer(DEVICE), 100_000
    expected = cycles / timer._spin_per_s
    found = timer.time(lambda: torch.cuda._sleep(cycles), 2000)
    assert (found.calls, found.held) == (2000, True)
    assert found.time_s == pytest.approx(expected, rel=0.1)


def test_a_cold_product_takes_no_less_than_a_hot_one():
    kernel, shape = Torch("fp32"), Shape(1, 512, 512, 512)
    operands = random_operands(shape, FORMATS["fp32"], "cuda", seed=1)
    prepared = kernel.prepare(operands.a, operands.b, operands.c)
    call = lambda: kernel.run(*prepared, launch=kernel.launch(shape))  # noqa: E731
    repetitions = interleave({"torch": call}, DeviceTimer(DEVICE), Budget(0.2, 0.5, 5)).repetitions
    found = summarise(repetitions, "torch", "cold").median_s
    assert found > 0.9 * summarise(repetitions, "torch", "hot").median_s


def test_a_group_takes_as_long_a_call_as_a_model_s_window():
    """Both sustain the work, so that the power limit holds the clock alike."""
    kernel, shape = Torch("bf16"), Shape(1, 8192, 8192, 8192)
    operands = random_operands(shape, FORMATS["bf16"], "cuda", seed=1)
    prepared = kernel.prepare(operands.a, operands.b, operands.c)
    call = lambda: kernel.run(*prepared, launch=kernel.launch(shape))  # noqa: E731
    group_s = summarise(
        interleave({"torch": call}, DeviceTimer(DEVICE), Budget(0.3, 1.0, 10)).repetitions,
        "torch",
        "hot",
    ).median_s
    window_s = observe(call, EventClock(torch.device("cuda", 0)), Pace(3, 1.1, 2.0, 0.02)).time_s
    assert group_s == pytest.approx(window_s, rel=0.01)
