"""Cards that torch, driver or container cannot use: what is measured instead, and what is said."""

import json
import shutil
import subprocess
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from support import amd_stand_in
from support.nvml_stand_in import Gpu, StandIn
from support.said import numbers

from mfulab.cli import watch
from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Said, as_json, as_told, of_source
from mfulab.device import identity, local_peak, system
from mfulab.device.samplers import selection
from mfulab.device.vendors import (
    NoDeviceError,
    RefusedError,
    amd,
    cuda_driver,
    nvidia,
    nvml,
    torch_build,
)
from mfulab.device.vendors.torch_build import Build
from mfulab.lab.planning.workflow import Workflow
from mfulab.lab.runtime import budget

UUID = "GPU-00000000-0000-0000-0000-000000000001"
WHEEL, CPU, CONDA = (
    Build("2.13.0+cu130", "13.0", ""),
    Build("2.13.0+cpu", "", ""),
    Build("2.13.0", "", "", by_conda=True),
)
PIP = "pip uninstall -y torch && pip install torch==2.13.0"
OLD = f"{PIP} --index-url https://download.pytorch.org/whl/cu126"
NO_CODE = as_told("no code")
NEWEST = "pip uninstall -y torch && pip install torch"
MIDDLE = f"{NEWEST} --index-url https://download.pytorch.org/whl/cu128"
T4, V100, B200, RTX_5090 = (7, 5), (7, 0), (10, 0), (12, 0)


@pytest.fixture(autouse=True)
def forget():
    yield
    for each in (
        nvml.why_absent,
        torch_build.installed,
        cuda_driver._asked,
        nvidia._asked_of_torch,
    ):
        each.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """A machine with GPUs under NVML, a driver of some CUDA, and a build of torch."""

    def made(build, *gpus, cuda=13000):
        stand_in = StandIn(*gpus).install(monkeypatch)
        stand_in.cuda = cuda
        monkeypatch.setattr(torch_build, "installed", lambda: build)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return made


@pytest.mark.parametrize(
    ("version", "text", "installer", "build"),
    [
        ("2.13.0+cpu", "cuda: Optional[str] = None\nhip: Optional[str] = None", "pip", CPU),
        ("2.13.0", "cuda: Optional[str] = None\nhip: Optional[str] = None", "conda\n", CONDA),
        ("2.13.0+cu130", "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "pip", WHEEL),
        ("2.9.0+rocm6.4", 'cuda = None\nhip = "6.4"', "pip", Build("2.9.0+rocm6.4", "", "6.4")),
        ("2.13.0", "nothing that is known", None, Build("2.13.0")),
    ],
    ids=["CPU wheel", "conda-forge", "CUDA wheel", "ROCm", "unknown"],
)
def test_the_build_is_read_from_its_files(version, text, installer, build, tmp_path, monkeypatch):
    information = tmp_path / "torch.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
    if installer:
        (information / "INSTALLER").write_text(installer)
    (tmp_path / "version.py").write_text(f"__version__ = '{version}'\n{text}\n")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(
        metadata, "distribution", lambda name: metadata.PathDistribution(information)
    )
    monkeypatch.setattr(torch_build, "find_spec", lambda name: spec)
    assert torch_build.installed() == build


def test_this_torch_is_read_as_it_says_of_itself():
    assert torch_build.installed().cuda == (torch.version.cuda or "")
    # Wheels of the package index leave `+cu132` out of their metadata.
    assert torch_build.installed().version.split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.parametrize(
    ("build", "cuda", "install"),
    [
        (Build("2.6.0+cu124", "12.4", ""), 13000, NEWEST),
        (Build("2.6.0+cu124", "12.4", ""), 12080, MIDDLE),
        (Build("2.5.1+cu121", "12.1", ""), 13010, NEWEST),
        (Build("2.8.0+cu126", "12.6", ""), 13000, f"{NEWEST}==2.8.0"),
    ],
)
@pytest.mark.parametrize("capability", [B200, RTX_5090])
def test_a_torch_older_than_the_card_is_replaced(
    build, cuda, install, capability, machine, monkeypatch
):
    machine(build, Gpu(capability=capability), cuda=cuda)
    monkeypatch.setattr(nvidia, "_asked_of_torch", lambda uuid: NO_CODE)
    monkeypatch.setattr(nvidia.Nvidia, "why_unusable", lambda self, uuid: NO_CODE)
    why = identity.why_not("cuda")
    assert numbers(why, "other_torch")["command"] == install
    assert why.numbers["reason"] == as_told("no code")


@pytest.mark.parametrize(
    ("build", "capability", "cuda", "says"),
    [
        (CPU, T4, 13000, f"torch 2.13.0+cpu is built for CPUs alone. To measure the GPU: {PIP}"),
        (CPU, T4, 12020, f"torch 2.13.0+cpu is built for CPUs alone. To measure the GPU: {OLD}"),
        (CPU, V100, 13000, f"torch 2.13.0+cpu is built for CPUs alone. To measure the GPU: {OLD}"),
        (CONDA, T4, 13000, "CPUs alone. To measure the GPU: conda install -c conda-forge 'pytorch=2.13.0=cuda*'"),
        (WHEEL, T4, 12020, "535.104.05 runs CUDA 12.2, and torch 2.13.0+cu130 needs 13.0. "
         f"To measure the GPU: {OLD}, or a newer driver"),
        (WHEEL, B200, 12080, "535.104.05 runs CUDA 12.8, and torch 2.13.0+cu130 needs 13.0. "
         f"To measure the GPU: {MIDDLE}, or a newer driver"),
        (WHEEL, B200, 12040, "535.104.05 runs CUDA 12.4, and torch 2.13.0+cu130 needs 13.0. "
         "To measure the GPU: a newer driver"),
        (CPU, B200, 12080, f"torch 2.13.0+cpu is built for CPUs alone. To measure the GPU: {MIDDLE}"),
        (Build("2.6.0", "", "", by_conda=True), B200, 13000, "conda install -c conda-forge 'pytorch=*=cuda*'"),
        (Build("2.13.0+cu126", "12.6", ""), T4, 11040, "535.104.05 runs CUDA 11.4, and torch 2.13.0+cu126 needs 12.6. "
         "To measure the GPU: a newer driver"),
        (WHEEL, V100, 11080, "runs CUDA 11.8, and torch 2.13.0+cu130 needs 13.0. "
         f"To measure the GPU: a newer driver, and {OLD}"),
        (CPU, T4, 11040, f"torch 2.13.0+cpu is built for CPUs alone. To measure the GPU: a newer driver, and {PIP}"),
        (Build("2.9.0+rocm6.4", "", "6.4"), T4, 13000, f"for AMD's GPUs. To measure the GPU: {PIP[:-4]}9.0"),
        (WHEEL, T4, 13000, ""),
        (WHEEL, B200, 13010, ""),
        (Build("2.13.0+cu126", "12.6", ""), V100, 12020, ""),
        (Build("2.13.0+cu126", "12.6", ""), T4, 12000, ""),
        (Build("2.13.0"), V100, 12000, ""),
    ],
)  # fmt: skip
def test_why_a_torch_leaves_a_card_and_what_to_install(
    build, capability, cuda, says, machine, monkeypatch
):
    machine(build, Gpu(capability=capability), cuda=cuda)
    monkeypatch.setattr(nvidia.Nvidia, "why_unusable", lambda self, uuid: None)
    assert str(identity.why_not("cuda") or "").endswith(says)
    assert bool(identity.why_not("cuda")) == bool(says)
    assert identity.resolve("auto") == ("cpu" if says else "cuda")
    unused = of_source("NVIDIA H100 80GB HBM3", identity.why_not("cuda")) if says else None
    assert identity.unused() == unused
    if says:
        with pytest.raises(NoDeviceError, match="choose device=cpu or device=auto"):
            identity.resolve("cuda")


@pytest.mark.parametrize(
    ("architectures", "capability", "has"),
    [
        (["sm_75", "sm_80", "sm_90"], (7, 5), True),
        (["sm_75", "sm_80", "sm_86", "sm_90"], (8, 9), True),
        (["sm_75", "sm_80", "sm_90"], (7, 0), False),
        (["sm_75", "sm_80", "sm_90"], (12, 0), False),
        (["sm_60"], (6, 1), True),
        (["sm_75", "compute_75"], (12, 0), True),
        (["sm_100"], (10, 3), True),
        (["sm_100f"], (10, 3), True),
        (["sm_100a"], (10, 3), False),
        (["sm_90a", "compute_90a"], (10, 0), False),
        (["sm_90a"], (9, 0), True),
        ([], (9, 0), False),
    ],
)
def test_code_runs_on_its_generation_and_ptx_on_later_ones(architectures, capability, has):
    assert nvidia.has_code(architectures, capability) is has


def test_a_card_that_torch_has_no_code_for_leaves_the_cpu(machine, monkeypatch):
    machine(WHEEL, Gpu(name="Tesla V100-SXM2-16GB", capability=V100))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_120"])
    assert identity.resolve("auto") == "cpu"
    told = identity.unused()
    assert numbers(told, "of_source")["source"] == "Tesla V100-SXM2-16GB"
    assert numbers(told, "no_code_for_gpu")["codes"] == "sm_75, sm_80, sm_120"
    assert numbers(told, "no_code_for_gpu")["torch"] == torch.__version__
    assert numbers(told, "other_torch")["command"] == OLD
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70", "sm_75"])
    assert identity.resolve("auto") == "cuda"


def test_planning_asks_torch_of_an_old_card_in_a_process_of_its_own(machine, monkeypatch):
    machine(WHEEL, Gpu(capability=V100))
    monkeypatch.setattr(nvidia, "sys", SimpleNamespace(modules={}, executable="python"))
    asked = []
    answer = SimpleNamespace(
        stdout=json.dumps(as_json(Said("no_code_for_gpu", {"torch": "2.13", "codes": "sm_75"})))
    )
    monkeypatch.setattr(
        nvidia.subprocess, "run", lambda command, **_: asked.append(command) or answer
    )
    why = identity.why_not("cuda")
    assert why.numbers["reason"].key == "no_code_for_gpu"
    assert numbers(why, "other_torch")["command"] == OLD
    assert identity.resolve("auto") == "cpu"
    assert len(asked) == 1
    machine(WHEEL, Gpu(capability=T4))
    assert identity.resolve("auto") == "cuda"
    assert len(asked) == 1, "no card of today costs an import"


def test_an_amd_gpu_beside_a_torch_for_nvidia_s(monkeypatch):
    monkeypatch.setattr(torch_build, "installed", lambda: WHEEL)
    why = amd.Amd().why_unfit("HIP-0")
    assert (why.key, why.numbers["kind"]) == ("built_for", Said("for_nvidia"))
    monkeypatch.setattr(torch_build, "installed", lambda: Build("2.9.0+rocm6.4", "", "6.4"))
    assert amd.Amd().why_unfit("HIP-0") is None


@pytest.mark.parametrize("loaded", ["580.95.05", None])
def test_a_container_given_no_gpu_is_told_and_a_machine_without_one_is_not(loaded, monkeypatch):
    monkeypatch.setattr(
        nvml, "why_absent", lambda: Said("no_nvidia_driver", {"error": "Not Found"})
    )
    monkeypatch.setattr(cuda_driver, "devices", lambda environment=None: [])
    monkeypatch.setattr(
        system, "text", lambda path: loaded if path == "proc/driver/nvidia/version" else None
    )
    unused = identity.unused()
    assert (unused and unused.key) == ("driver_shows_no_gpu" if loaded else None)


def test_a_gpu_in_mig_mode_without_an_instance_is_left_with_what_to_do(machine, monkeypatch):
    machine(WHEEL, Gpu(mig_instances=[]))
    says = "NVIDIA H100 80GB HBM3 is in MIG mode without an instance: nvidia-smi mig -cgi 0 -C makes one"
    assert identity.gpus() == []
    assert identity.resolve("auto") == "cpu"
    assert str(identity.unused()) == str(identity.why_not("cuda")) == says
    with pytest.raises(NoDeviceError, match="makes one; choose device=cpu"):
        identity.resolve("cuda")
    machine(WHEEL, Gpu(mig_instances=[]), Gpu("Tesla T4", UUID[:-1] + "2", T4))
    assert [gpu.name for gpu in identity.gpus()] == ["Tesla T4"]
    assert identity.resolve("auto") == "cuda"


def test_a_gpu_that_the_user_hides_is_no_news(machine, monkeypatch):
    machine(CPU, Gpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert identity.unused() is None


DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned f) { return getenv("CUDA_TEST_ERROR") ? 803 : 0; }
int cuDriverGetVersion(int *v) { *v = 12060; return 0; }
int cuDeviceGetCount(int *n) { char *v = getenv("CUDA_VISIBLE_DEVICES"); *n = v && !*v ? 0 : 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strcpy(s, d ? "Tesla T4" : "Orin"); return 0; }
int cuDeviceGetUuid(unsigned char *u, int d) { memset(u, 0, 16); u[15] = OLDER ? d + 1 : 9; return 0; }
#if !OLDER
int cuDeviceGetUuid_v2(unsigned char *u, int d) { memset(u, 0, 16); u[15] = d + 1; return 0; }
#endif
int cuDeviceTotalMem_v2(size_t *b, int d) { *b = 16000000000; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 16 ? 16 : a == 75 ? (d ? 7 : 8) : (d ? 5 : 7); return 0; }
"""


@pytest.fixture(params=[0, 1], ids=["driver of today", "driver before CUDA 11.4"])
def cuda(tmp_path_factory, monkeypatch, request):
    """CUDA's library with two unlike devices, found by its path. The older call tells the whole
    GPU's identifier, not a MIG instance's."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    path = folder / "libcuda.so.1"
    options = [f"-DOLDER={request.param}", "-shared", "-fPIC", "-o", str(path)]
    subprocess.run(["cc", *options, str(folder / "driver.c")], check=True)
    monkeypatch.setattr(
        cuda_driver, "_ASK", cuda_driver._ASK.replace(cuda_driver.LIBRARY, str(path))
    )
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(path))


def test_without_nvml_cuda_is_asked_and_what_nvml_knows_is_empty_with_the_reason(cuda, monkeypatch):
    monkeypatch.setattr(
        nvml, "why_absent", lambda: Said("no_nvidia_driver", {"error": "Not Found"})
    )
    monkeypatch.setattr(torch_build, "installed", lambda: Build("2.13.0+cu126", "12.6", ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [(one.name, one.uuid[-4:]) for one in identity.gpus()]
    assert found == [("Orin", "0001"), ("Tesla T4", "0002")]
    assert identity.resolve("auto") == "cuda"
    assert identity.hardware_slug() == "orin"
    assert identity.unused() is None
    assert identity.memory_bytes("cuda") == 16e9
    assert nvidia.Nvidia().capability(UUID) == (8, 7)
    assert nvidia.Nvidia().describe_all()[0]["compute_capability"] == "8.7"
    assert nvidia.Nvidia().clock_reader(UUID)() is None
    with pytest.raises(
        RefusedError, match=r"though CUDA does .*NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    ):
        nvidia.Nvidia().samplers(UUID, ())
    with pytest.raises(ConfigurationError, match=rf"{UUID} cannot be watched: no NVIDIA driver"):
        next(watch.frames("cuda", UUID, lambda: None))
    monkeypatch.setattr(selection.gpu, "uuid_of", lambda device: UUID)
    absent, _ = selection.samplers_for(torch.device("cuda"))
    absent.start()
    assert {one.value for one in absent.stop().values()} == {None}
    monkeypatch.setattr(torch_build, "installed", lambda: WHEEL)
    old = numbers(identity.unused(), "driver_too_old")
    assert (old["has"], old["torch"], old["needs"]) == ("12.6", "2.13.0+cu130", "13.0")


@pytest.mark.parametrize(
    ("name", "value"), [("CUDA_VISIBLE_DEVICES", ""), ("CUDA_TEST_ERROR", "1")]
)
def test_a_cuda_that_shows_nothing_or_fails_is_no_gpu(name, value, cuda, monkeypatch):
    monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers")
    monkeypatch.setenv(name, value)
    assert identity.gpus() == []
    assert identity.resolve("auto") == "cpu"


def test_unlike_gpus_come_in_cuda_s_own_order(cuda, machine):
    machine(
        Build("2.13.0+cu126", "12.6", ""),
        Gpu("Tesla T4", UUID[:-1] + "2", T4),
        Gpu("Orin", UUID, (8, 7)),
    )
    assert [one.name for one in identity.gpus()] == ["Orin", "Tesla T4"]
    assert local_peak.local_name() == "Orin"


def test_unlike_gpus_whose_order_nobody_tells_are_one_message(machine, monkeypatch):
    machine(WHEEL, Gpu("Tesla T4", UUID), Gpu(uuid=UUID[:-1] + "2"))
    monkeypatch.setattr(cuda_driver, "LIBRARY", "no such library")
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(local_peak.local_peak("fp32").reason)
    assert local_peak.local_name() == "one of several GPUs"
    assert identity.unused() is None, "a CPU can be measured beside them"


@pytest.mark.parametrize(("hardware", "says"), [("amd-epyc-4c", True), ("nvidia-t4", False)])
def test_the_terminal_says_first_that_a_gpu_is_left(hardware, says, machine, monkeypatch, capsys):
    machine(CPU, Gpu())
    run = SimpleNamespace(folder=f"{hardware}/environment")
    monkeypatch.setattr(budget, "rest", None)
    rest = SimpleNamespace(estimate_s=lambda gpus: 60.0)
    sweep = SimpleNamespace(rest=lambda runs, has_page: rest, budget_min=3.5)
    here = SimpleNamespace(
        inputs=SimpleNamespace(runs={run.folder: run}),
        plans=[SimpleNamespace(hardware=hardware)],
        _sweep=sweep,
        gpu=0,
    )
    job = SimpleNamespace(
        rule=SimpleNamespace(name="environment"), wildcards_dict={"hardware": hardware}
    )
    Workflow.say_estimate(here, [job])
    first, *rest = capsys.readouterr().err.splitlines()
    assert (
        first.startswith("mfulab: the CPU is measured, not the GPU. NVIDIA H100 80GB HBM3: torch")
        is says
    )
    assert len(rest) == says
    Workflow.say_estimate(here, [])
    assert capsys.readouterr().err == ""


def on_the_bus(root, monkeypatch, address, maker, kind):
    """Makes `system` see one PCI device."""
    place = root / "sys/bus/pci/devices" / address
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{maker}\n")
    (place / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(system, "ROOT", str(root))


@pytest.mark.parametrize(
    ("kind", "hip", "is_told"),
    [
        ("0x120000", "7.0", True),
        ("0x120000", "", True),
        ("0x030000", "7.0", True),
        ("0x030000", "", False),
        ("0x020000", "7.0", False),
    ],
    ids=[
        "Instinct, torch for ROCm",
        "Instinct, torch for CPUs",
        "Radeon, torch for ROCm",
        "Radeon that draws the screen",
        "a network card",
    ],
)
def test_an_amd_gpu_without_its_library_is_told_and_not_silently_the_cpu(
    kind, hip, is_told, tmp_path, monkeypatch
):
    amd_stand_in.StandIn(fails=ImportError("No module named 'amdsmi'")).install(monkeypatch)
    monkeypatch.setattr(torch_build, "installed", lambda: Build("2.13.0", "", hip))
    on_the_bus(tmp_path, monkeypatch, "0000:c1:00.0", "0x1002", kind)
    told = identity.unused()
    if is_told:
        expected = {"address": "0000:c1:00.0", "why": Said("no_amdsmi")}
        assert told == Said("amd_shows_no_gpu", expected)
    else:
        assert told is None
    assert identity.resolve("auto") == "cpu"


@pytest.mark.parametrize(
    ("address", "maker", "kind", "says"),
    [
        ("0000:03:00.0", "0x8086", "0x030000", "Intel accelerator at 0000:03:00.0"),
        ("0000:29:00.0", "0x8086", "0x038000", "Intel accelerator at 0000:29:00.0"),
        ("0000:81:00.0", "0x19e5", "0x120000", "Huawei Ascend accelerator at 0000:81:00.0"),
        ("0000:00:02.0", "0x8086", "0x030000", ""),
        ("0000:05:00.0", "0x8086", "0x020000", ""),
        ("0000:05:00.0", "0x1a03", "0x030000", ""),
    ],
    ids=["Arc", "Max", "Ascend", "a CPU's graphics", "a network card", "a board's console"],
)
def test_an_accelerator_of_another_maker_is_told_and_not_silently_the_cpu(
    address, maker, kind, says, tmp_path, monkeypatch
):
    on_the_bus(tmp_path, monkeypatch, address, maker, kind)
    assert str(identity.unused() or "").startswith(says)
    assert bool(identity.unused()) == bool(says)
    assert identity.resolve("auto") == "cpu"
