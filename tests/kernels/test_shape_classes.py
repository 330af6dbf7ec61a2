import pytest
import torch
from support.ladders import CPU_CLASSES, KINDS, LADDER, SEMINAR
from support.shape_classes import kernel_classes, shape_classes

from mfulab.core.errors import UnsupportedError
from mfulab.device.compute import emulated
from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_mma import CudaMma

SHAPES = shape_classes(128, 64)
ONE_OFF = {"one_under", "one_over"}
HOPPER = {stem for stem in kernel_classes() if stem.startswith("cuda_hopper")}
# What is refused on a Hopper GPU, by implementation and precision: all else must be right.
REFUSED = {
    **{(stem, precision): ONE_OFF for stem in HOPPER for precision in ("fp16", "bf16", "fp8")},
    **{("cuda_mma", precision): ONE_OFF for precision in ("fp16", "bf16")},
    **{("cutlass", precision): ONE_OFF for precision in ("tf32", "fp16", "bf16")},
    **{
        ("triton_persistent", precision): ONE_OFF
        for precision in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    },
    ("numba_cuda_async", "tf32"): ONE_OFF,
    ("numba_cuda_wide", "fp32"): ONE_OFF,
    ("torch", "int8"): ONE_OFF | {"one_row", "sixteen_rows"},
    ("torch_scaled", "fp8"): ONE_OFF | {"batched"},
    ("torch_scaled_fast", "fp8"): ONE_OFF | {"batched"},
    ("cublas", "int8"): ONE_OFF,
    ("cublaslt", "fp8"): ONE_OFF,
    ("cublaslt_bias", "fp8"): ONE_OFF,
}


ON_A_GPU = [
    (stem, kind, precision)
    for stem, kind in kernel_classes().items()
    if "cuda" in kind.devices and stem != "cuda_elementwise"
    for precision in kind.precisions
]


@pytest.mark.parametrize(
    ("stem", "kind", "precision"), ON_A_GPU, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_gpu_implementation_takes_every_shape_or_says_why_not(stem, kind, precision, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    refused = {}
    for name, shape in SHAPES.items():
        try:
            kind(precision).require("cuda", shape)
        except UnsupportedError as reason:
            refused[name] = str(reason)
    assert set(refused) == REFUSED.get((stem, precision), set())
    assert all(str(SHAPES[name]) in reason for name, reason in refused.items())


def refusing(shape, capability, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: capability)
    for stem, kind, precision in ON_A_GPU:
        try:
            kind(precision).require("cuda", shape)
        except UnsupportedError as reason:
            yield stem, precision, str(reason)


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((6, 0), {"fp16", "bf16", "tf32", "int8"}),
        ((7, 0), {"bf16", "tf32", "int8"}),
        ((7, 5), {"bf16", "tf32"}),
        ((8, 0), set()),
    ],
)
def test_fragments_of_a_format_begin_with_a_capability(capability, lacking, monkeypatch):
    refused = list(refusing(Shape(1, 256, 256, 256), capability, monkeypatch))
    assert {precision for stem, precision, _ in refused if stem == "cuda_wmma"} == lacking


@pytest.mark.parametrize(("capability", "are_taken"), [((6, 1), False), ((7, 0), True)])
def test_plain_cuda_c_begins_with_a_v100(capability, are_taken, monkeypatch):
    plain = {"cuda_naive", "cuda_shared", "cuda_register_1d", "cuda_warp_tile"}
    lacking = {stem for stem, *_ in refusing(Shape(1, 256, 256, 256), capability, monkeypatch)}
    assert lacking & plain == (set() if are_taken else plain)


def test_an_older_gpu_is_told_what_it_lacks(monkeypatch):
    refused = list(refusing(Shape(1, 256, 256, 256), (7, 5), monkeypatch))
    assert all(
        "needs compute capability" in reason and "has 7.5" in reason for *_, reason in refused
    )
    assert {stem for stem, precision, _ in refused if precision != "fp8"} == {
        *(
            "cuda_wmma",
            "cuda_mma",
            "cuda_async_copies",
            "cuda_prefetched",
            "cuda_grouped",
            "cuda_wide",
            *("numba_cuda_tensor_core", "numba_cuda_async", "numba_cuda_wide"),
            "triton_persistent",
            "cutile",
            "cutlass",
        ),
        *HOPPER - {"cuda_hopper_fp8", "cuda_hopper_fp8_deferred"},
    }
    assert {stem for stem, precision, _ in refused if precision == "fp8"} == {
        stem for stem, _, precision in ON_A_GPU if precision == "fp8"
    }


def test_an_amd_gpu_whose_numbers_look_like_hoppers_keeps_torch_and_triton_alone(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    refused = list(refusing(Shape(1, 256, 256, 256), (9, 4), monkeypatch))
    of_others = [reason for _, precision, reason in refused if precision != "tf32"]
    assert all("runs on NVIDIA GPUs" in reason for reason in of_others)
    lost = {(stem, precision) for stem, precision, _ in refused}
    kept = {stem for stem, _, precision in ON_A_GPU if (stem, precision) not in lost}
    assert kept == {
        "torch",
        "torch_compiled",
        "triton_plain",
        "triton_autotuned",
    }
    assert "NVIDIA" in str(emulated("tf32", torch.device("cuda")))
    assert not emulated("bf16", torch.device("cuda"))


def test_more_blocks_than_a_gpu_launches_are_refused(monkeypatch):
    refused = list(refusing(Shape(65536, 128, 128, 128), (9, 0), monkeypatch))
    told = {stem for stem, _, reason in refused if "grid" in reason}
    persistent = {*HOPPER, "triton_persistent"}
    assert (
        told - {"cutile", "cutlass"}
        == {stem for stem, *_ in ON_A_GPU if stem.startswith(("cuda_", "numba_", "triton_"))}
        - persistent
    )


def test_every_implementation_is_checked_somewhere_without_a_gpu_but_for_nvidia_s_own():
    checked = {*LADDER, CudaMma, *KINDS, *SEMINAR, *CPU_CLASSES}
    elsewhere = {  # tests of their own
        *("torch_compiled", "cuda_elementwise", "numba_cpu_elementwise", *HOPPER),
        *("triton_plain", "triton_autotuned", "triton_persistent"),
    }
    left = {stem for stem, kind in kernel_classes().items() if kind not in checked} - elsewhere
    assert left == {
        "cublas",
        "cublaslt",
        "cublaslt_bias",
        "torch_scaled",
        "torch_scaled_fast",
        "cutile",
        "cutlass",  # its own tests need its headers
    }
