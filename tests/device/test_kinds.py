"""The kind of a device is asked of one place."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.workflow_copy import ROOT

from mfulab import device
from mfulab.device import ByKind, identity, is_gpu, kind_of, synchronise
from mfulab.device.vendors import Gpu, of_kind

# The package's files that still name the kind, beside device/ and kernels/, and why.
NAMED = {
    "lab/tables/recording.py": "the column of CUDA's version",
    "lab/tables/seminar.py": "a Python package of that name",
    "lab/tables/statements.py": "a Python package of that name",
    "peaks/detection.py": "torch's module of a kind, in a package that imports nothing of ours",
    "loop/interactive/split.py": "the method of tensors, whose copies are timed",
}


def test_a_gpu_is_known_by_torch_s_device_or_kind_and_meta_is_none():
    assert is_gpu("cuda")
    assert is_gpu(torch.device("cuda", 1))
    assert not any(map(is_gpu, (None, "cpu", torch.device("cpu"), torch.device("meta"))))
    synchronise(torch.device("cpu"))


@pytest.mark.parametrize(
    ("hardware", "kind"),
    [
        *(
            (each, "cuda")
            for each in (
                "nvidia-h100-80gb-hbm3",
                "amd-instinct-mi300x",
                "tesla-t4",
                "quadro-rtx-6000",
                "orin",
                "mi300x-o",
                "radeon-rx-7900-xtx",
                "gb10",
            )
        ),
        ("amd-epyc-4c", "cpu"),
        ("radeon-of-a-cpu-8c", "cpu"),
        ("", "cpu"),
    ],
)
def test_a_slug_tells_the_kind(hardware, kind):
    assert kind_of(hardware) == kind


def test_a_name_that_tells_no_maker_is_asked_of_the_driver_and_is_no_cpu_s(monkeypatch):
    assert kind_of("prototype-7") == "cuda"
    [apple] = of_kind("mps")
    monkeypatch.setattr(
        type(apple), "gpus", lambda self, environment: [Gpu("Prototype 7", "MPS-0")]
    )
    assert kind_of("prototype-7") == "mps"
    assert kind_of("prototype-7c") == "cpu"


def test_a_kind_without_a_module_counts_as_a_gpu_but_is_refused_with_the_choices():
    assert is_gpu("xpu")
    assert ByKind(cpu=3, gpu=2)["xpu"] == 2
    with pytest.raises(
        identity.NoDeviceError, match=r"device\.type=xpu: no such kind; choose auto, cpu, cuda, mps"
    ):
        identity.resolve("xpu")


STAND_IN = """
from mfulab.device.vendors import Gpu, GpuProperties, Vendor


class Intel(Vendor):
    KIND, PREFIX, SLUG, SOURCE = "xpu", "XPU-", "intel-.*-gpu", "Level Zero"
    FORMATS, HAS_TF32 = ("fp32", "bf16"), False
    samplers = probe = describe_all = why_unusable = uuid_of = None

    def owns(self, device):
        return device.type == self.KIND

    def why_absent(self):
        return ""

    def gpus(self, environment):
        return [Gpu("Intel Max 1550 GPU", f"{self.PREFIX}0")]

    def properties(self, uuid, name, sms=None):
        return GpuProperties(name, 128, 1600.0)

    def visible(self, uuids):
        return {"ZE_AFFINITY_MASK": ",".join(uuid.removeprefix(self.PREFIX) for uuid in uuids)}
"""


def test_a_vendor_is_added_by_one_module(tmp_path):
    shutil.copytree(ROOT / "src/mfulab/device", tmp_path / "device")
    (tmp_path / "device/vendors/intel.py").write_text(STAND_IN)
    code = f"""
import mfulab, sys
sys.modules.pop("mfulab.device", None)
mfulab.__path__.insert(0, {str(tmp_path)!r})
from mfulab.device import identity, kind_of, visible
from mfulab.lab.planning import keys
print(identity.resolve("xpu"), identity.resolve("auto"), identity.hardware_slug("auto"), kind_of("intel-max-1550-gpu"))
print(visible(["XPU-1"]), "xpu" in keys.choices(__import__("pathlib").Path("config"), "device"))
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    expected = ["xpu xpu intel-max-1550-gpu xpu", "{'ZE_AFFINITY_MASK': '1'} True"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_no_other_file_names_a_vendor():
    package = Path(device.__file__).parents[1]
    named = re.compile(r"vendors(\.| import .*\b)(amd|apple|nvidia)\b|\bAPPLE\b|\"mps\"")
    files = {
        path.relative_to(package): path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
    }
    assert [
        path
        for path, text in files.items()
        if named.search(text) and path.parts[1:2] != ("vendors",)
    ] == []


def test_no_other_file_names_a_kind():
    package = Path(device.__file__).parents[1]
    files = (path for path in package.rglob("*.py") if '"cuda"' in path.read_text(encoding="utf-8"))
    found = {path.relative_to(package).as_posix() for path in files}
    assert {name for name in found if not name.startswith(("device/", "kernels/"))} == set(NAMED)
