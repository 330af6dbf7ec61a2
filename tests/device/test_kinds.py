"""The kind of a device is asked of one place."""

from pathlib import Path

import pytest
import torch

from mfulab import device
from mfulab.device import ByKind, is_gpu, kind_of, synchronise

# The package's files that still name the kind, beside device/ and kernels/, and why.
NAMED = {
    "core/groups.py": "a value of the config, which imports nothing above it",
    "lab/tables/recording.py": "the column of CUDA's version",
    "lab/tables/seminar.py": "a Python package of that name",
}


def test_a_gpu_is_known_by_torch_s_device_or_kind_and_meta_is_none():
    assert is_gpu("cuda")
    assert is_gpu(torch.device("cuda", 1))
    assert not any(map(is_gpu, (None, "cpu", torch.device("cpu"), torch.device("meta"))))
    synchronise(torch.device("cpu"))


@pytest.mark.parametrize(
    ("hardware", "kind"),
    [
        *((each, "cuda") for each in ("nvidia-h100-80gb-hbm3", "amd-instinct-mi300x", "tesla-t4", "quadro-rtx-6000")),
        ("amd-epyc-4c", "cpu"),
    ],
)
def test_a_slug_tells_the_kind(hardware, kind):
    assert kind_of(hardware) == kind


def test_a_vendor_whose_gpus_torch_names_otherwise_is_one_more_kind(monkeypatch):
    monkeypatch.setattr(device, "GPUS", ("cuda", "xpu"))
    assert is_gpu("xpu")
    assert ByKind(cpu=3, gpu=2) == {"cpu": 3, "cuda": 2, "xpu": 2}


def test_no_other_file_names_a_kind():
    package = Path(device.__file__).parents[1]
    files = (path for path in package.rglob("*.py") if '"cuda"' in path.read_text(encoding="utf-8"))
    found = {path.relative_to(package).as_posix() for path in files}
    assert {name for name in found if not name.startswith(("device/", "kernels/"))} == set(NAMED)
