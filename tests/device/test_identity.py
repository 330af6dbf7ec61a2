"""The slug of a device, and which GPUs CUDA would see."""

import subprocess
import sys

import pytest

from mfulab.device import identity
from mfulab.device.identity import NoDeviceError
from mfulab.device.vendors import Gpu, nvidia, nvml, torch_build
from mfulab.device.vendors.torch_build import Build

H100 = Gpu("NVIDIA H100 80GB HBM3", "GPU-aaaa-1")
OTHER_H100 = Gpu("NVIDIA H100 80GB HBM3", "GPU-bbbb-2")
T4 = Gpu("Tesla T4", "GPU-cccc-3")
INSTANCE = Gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-dddd-4")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("AMD EPYC 9R14 96-Core Processor", "amd-epyc-9r14"),
        ("AMD Ryzen 7 5800H with Radeon Graphics", "amd-ryzen-7-5800h"),
        ("Apple M3 Pro", "apple-m3-pro"),
        ("", "unknown"),
    ],
)
def test_slug(name, slug):
    assert identity.slug(name) == slug


def visible(gpus, text, instances=None, in_bus_order=False):
    return nvidia.seen(
        [*zip(gpus, instances or [[] for _ in gpus], strict=True)], text, in_bus_order
    )


def test_visible_devices_by_index_and_uuid():
    assert visible([H100, OTHER_H100], None) == [H100, OTHER_H100]
    assert visible([H100, OTHER_H100], "1") == [OTHER_H100]
    assert visible([H100, OTHER_H100], "GPU-bbbb,GPU-aaaa") == [OTHER_H100, H100]


@pytest.mark.parametrize("hidden", ["", "-1", "7", "none"])
def test_hidden_devices(hidden):
    assert visible([H100], hidden) == []


def test_the_list_ends_at_its_first_invalid_entry():
    assert visible([H100, OTHER_H100], "0,9,1") == [H100]


def test_different_gpus_have_no_known_order():
    with pytest.raises(NoDeviceError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible([T4, H100], None)
    assert visible([T4, H100], "1", in_bus_order=True) == [H100]
    assert visible([T4, H100], "GPU-aaaa") == [H100]


def test_a_partitioned_gpu_is_seen_through_its_instances():
    assert visible([H100], None, [[INSTANCE]]) == [INSTANCE]
    assert visible([H100], "MIG-dddd-4", [[INSTANCE]]) == [INSTANCE]


def test_cuda_without_a_driver(monkeypatch):
    monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers: library not found")
    with pytest.raises(
        NoDeviceError, match=r"device=cuda: no NVIDIA driver answers.*choose device=cpu"
    ):
        identity.hardware_slug("cuda")
    assert identity.hardware_slug("auto") == identity.hardware_slug("cpu")


def test_the_first_visible_gpu_names_the_results(monkeypatch):
    monkeypatch.setattr(nvidia.Nvidia, "gpus", lambda self, environment: [H100])
    monkeypatch.setattr(torch_build, "installed", lambda: Build("2.13.0+cu130", "13.0", ""))
    assert identity.hardware_slug("auto") == "nvidia-h100-80gb-hbm3"
    assert identity.hardware_slug("cpu").endswith("c")


def test_asking_imports_nothing_heavy():
    code = "import sys; from mfulab.device.identity import hardware_slug; hardware_slug('auto'); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numba", "numpy", "pandas", "psutil"} & set(loaded)
