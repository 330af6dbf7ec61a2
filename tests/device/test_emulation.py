"""Formats that a device computes: by flags, by oneDNN's limits, and by compute capability."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from mfulab.core.groups import PrecisionConfig
from mfulab.device import emulation
from mfulab.device.compute import effective_precision, emulated
from mfulab.device.emulation import emulated_by_cpu, emulated_by_gpu, usable

ZEN_3 = "avx2 fma f16c"
ZEN_5 = ZEN_3 + " avx512f avx512_bf16 avx512_vnni avx_vnni"
GRANITE = ZEN_5 + " avx512_fp16 amx_bf16 amx_int8 amx_fp16"
NEOVERSE = "fp asimd asimdhp asimddp bf16 i8mm sve"
SKYLAKE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
REHEARSED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}


@pytest.mark.parametrize(
    ("flags", "environment", "names"),
    [
        (ZEN_3, {}, "bf16 fp16 int8"),
        (ZEN_5, {}, "fp16"),
        (ZEN_5, REHEARSED, "bf16 fp16 int8"),
        (ZEN_5, SKYLAKE, "bf16 fp16 int8"),
        (ZEN_5, {"DNNL_MAX_CPU_ISA": "avx512_core_vnni"}, "bf16 fp16"),
        (ZEN_5, {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}, "bf16 fp16"),
        (ZEN_5, {"ONEDNN_MAX_CPU_ISA": "DEFAULT"}, "fp16"),
        (ZEN_5, {"ATEN_CPU_CAPABILITY": "avx2"}, "fp16"),  # oneDNN still multiplies bf16
        (GRANITE, {}, ""),
        (GRANITE, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "fp16"),
        (NEOVERSE, {}, ""),
        ("fp asimd", {}, "bf16 fp16 int8"),
        ("", {}, ""),  # no flags are reported: nothing is known
    ],
)
def test_a_cpu_emulates_what_it_has_no_units_for(flags, environment, names, monkeypatch):
    for name, level in environment.items():
        monkeypatch.setenv(name, level)
    names = {*names.split(), "tf32", "fp8"}
    found = {
        name: emulated_by_cpu(name, usable(frozenset(flags.split())))
        for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    }
    assert {name for name, reason in found.items() if reason} == names
    assert all(reason.numbers["precision"] == name for name, reason in found.items() if reason)


def test_no_limit_adds_a_flag(monkeypatch):
    for level in ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_AMX", "ALL", "nonsense", ""):
        flags = frozenset(GRANITE.split())
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", level)
        assert usable(flags) <= flags


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((6, 0), "bf16 fp16 fp8 int8 tf32"),
        ((7, 0), "bf16 fp8 tf32"),
        ((8, 0), "fp8"),
        ((8, 9), ""),
        ((12, 0), ""),
        (None, ""),
    ],
)
def test_a_gpu_emulates_what_came_after_it(capability, names):
    found = {
        name for name in ("fp64", "fp32", *emulation.GPU_SINCE) if emulated_by_gpu(name, capability)
    }
    assert found == set(names.split())


def test_tf32_is_what_a_device_has(monkeypatch):
    tf32 = PrecisionConfig(name="tf32", dtype="float32", tf32=True)
    for capability, effective in (((7, 5), "fp32"), ((8, 6), "tf32")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, has=capability: has)
        assert effective_precision(tf32, torch.device("cuda")) == effective
        assert bool(emulated("bf16", torch.device("cuda"))) is (effective == "fp32")
    assert emulated("tf32", torch.device("cpu"))


PROGRAM = """
import torch
from mfulab.device.compute import emulated
from mfulab.loop.interactive.peaks import peaks_of
from mfulab.lab.planning.load import load
from mfulab.core.groups import DeviceConfig

cpu = torch.device("cpu")
assert emulated("bf16", cpu) and emulated("fp16", cpu) and not emulated("fp32", cpu)
assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
peaks = peaks_of(cpu, {(torch.bfloat16, False): 10}, {(torch.bfloat16, False): 10}, DeviceConfig(name="cpu"), 0.0)
assert (peaks.step.effective_precision, peaks.step.peak_precision) == ("bf16", "fp32")
(plan,) = load({}).plans
runs = {(run.step, run.name) for run in plan.runs}
measured = {name for step, name in runs if step != "ceilings" and "replicate" not in name}
print(*sorted(name for name in measured if "precision=bf16" in name), sep="\\n")
assert ("ceilings", "ceiling=fp32") in runs and ("ceilings", "ceiling=bf16") in runs
assert ("ceilings", "ceiling=bf16,replicate=2") not in runs
assert any("no units" in each["because"] for each in plan.excluded)
(asked,) = load({"model": "resnet18", "precision": "bf16"}).plans
assert any("model=resnet18" in run.name and "precision=bf16" in run.name for run in asked.runs)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's limits are those of x86"
)
def test_an_avx2_machine_is_rehearsed():
    """One row a model and one a matmul are left of the emulated format, and both divide by fp32's
    ceiling."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | REHEARSED | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [
        "kernel=torch,size=128,precision=bf16,timing=short",
        "model=simple_cnn,workload=inference,batch_size=1,precision=bf16,execution=eager,timing=short",
    ]
