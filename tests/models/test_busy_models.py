"""Models made to look busy: what they compute, and that they keep the CPU busy."""

import time

import pytest
import torch

from mfulab.device.samplers.cpu_sampler import cpu_sampler
from mfulab.models import busy
from mfulab.models.busy import Spinning, TinyKernels, WideLinear


@pytest.mark.parametrize(
    ("model", "width", "shape"),
    [
        (TinyKernels(8, 3, 5), 8, (2, 5)),
        (Spinning(8, 0.1, 5), 8, (2, 5)),
        (WideLinear(16, 3), 16, (2, 16)),
    ],
    ids=["tiny_kernels", "spinning", "wide_linear"],
)
def test_shapes_on_the_cpu_and_on_the_meta_device(model, width, shape):
    assert model(torch.randn(2, width)).shape == shape
    assert model.to("meta")(torch.empty(2, width, device="meta")).shape == shape


def test_tiny_kernels_is_a_chain_of_sines():
    model, values = TinyKernels(8, 2, 5), torch.randn(3, 8)
    assert torch.allclose(model(values), model.classifier(torch.sin(torch.sin(values))))


def test_spinning_takes_longer_the_longer_it_is_asked_to():
    short, long, values = Spinning(8, 0.1), Spinning(8, 30.0), torch.randn(1, 8)
    short(values)  # compiles

    def seconds(model: torch.nn.Module) -> float:
        began = time.process_time()
        model(values)
        return time.process_time() - began

    assert seconds(long) > seconds(short)


def test_spinning_reads_as_busy():
    model, values = Spinning(8, 20.0), torch.randn(1, 8)
    model(values)
    sampler = cpu_sampler(cores=1.0)
    sampler.start()
    for _ in range(3):
        model(values)
    assert sampler.stop()["utilization_percent"].value > 1


def test_the_useful_one_has_no_work_but_products():
    found = [type(layer).__name__ for layer in WideLinear(16, 3).layers]
    assert found == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("clocks_per_s", [100e6, 1.98e9])
def test_a_gpu_spins_as_long_as_asked_whatever_clock_its_kernel_counts(clocks_per_s, monkeypatch):
    spun = []
    monkeypatch.setattr(busy, "is_gpu", lambda device: True)
    monkeypatch.setattr(busy, "require_cuda", lambda device, what: None)
    monkeypatch.setattr(busy, "gpu_clocks_per_ms", lambda device: clocks_per_s / 1e3)
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append, raising=False)
    Spinning(8, 20.0)(torch.randn(1, 8))
    assert spun == [pytest.approx(0.020 * clocks_per_s)]
