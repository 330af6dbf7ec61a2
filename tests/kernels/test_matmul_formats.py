import ctypes
import itertools
import os
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.formats import FORMATS, Format
from mfulab.core.groups import PrecisionConfig
from mfulab.kernels import cublas, cublaslt, torch_compiled
from mfulab.kernels.base import Shape
from mfulab.kernels.cublaslt import CublasLt
from mfulab.kernels.cuda_hopper_fp8 import CudaHopperFp8
from mfulab.kernels.torch_matmul import Torch
from mfulab.kernels.torch_scaled import reference_for
from mfulab.kernels.triton_plain import TritonPlain
from mfulab.kernels.verification import check, effective_precision, exact_product, random_operands


@pytest.mark.parametrize(
    ("dtype", "tf32", "expected"),
    [
        ("float32", False, "fp32"),
        ("float32", True, "tf32"),
        ("bfloat16", False, "bf16"),
        ("float8_e4m3fn", False, "fp8"),
    ],
)
def test_a_precision_asks_for_its_format(dtype, tf32, expected):
    assert PrecisionConfig(name="any", dtype=dtype, tf32=tf32).form.name == expected


def _product(form, a, b):
    return torch.matmul(a, b).to(getattr(torch, form.output))


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("k", [1, 17, 1024])
def test_a_correct_product_shows_its_own_format(precision, k):
    form = FORMATS[precision]
    operands = random_operands(Shape(2, 33, 65, k), form, "cpu", seed=1)
    result = check(
        _product(form, operands.a, operands.b), exact_product(operands.a, operands.b), form, k
    )
    assert result.correct
    assert result.effective_precision == precision


def _rounded(tensor, bits):
    """float32 with its significand cut to `bits` explicit bits, to nearest."""
    unit = 1 << (23 - bits)
    return ((tensor.view(torch.int32) + unit // 2) // unit * unit).view(torch.float32)


def test_tf32_in_disguise_is_seen():
    form = FORMATS["fp32"]
    operands = random_operands(Shape(1, 128, 128, 1024), form, "cpu", seed=2)
    disguised = torch.matmul(_rounded(operands.a, 10), _rounded(operands.b, 10))
    exact = exact_product(operands.a, operands.b)
    result = check(disguised, exact, form, 1024)
    assert not result.correct
    assert result.effective_precision == "tf32"
    assert check(disguised, exact, FORMATS["tf32"], 1024).correct


def test_bf16_in_disguise_is_seen():
    form = FORMATS["tf32"]
    operands = random_operands(Shape(1, 128, 128, 1024), form, "cpu", seed=2)
    disguised = torch.matmul(operands.a.bfloat16(), operands.b.bfloat16()).float()
    result = check(disguised, exact_product(operands.a, operands.b), form, 1024)
    assert not result.correct
    assert result.effective_precision == "bf16"


def test_a_format_that_was_added_shows_its_own_rounding(monkeypatch):
    added = Format("fp8_e5m2", "float8_e5m2", "bfloat16", 8, 1, 5, 1.7e-3)
    monkeypatch.setitem(FORMATS, added.name, added)
    assert effective_precision(added, 1.7e-3, 1024) == "fp8_e5m2"
    assert effective_precision(added, 1.7e-1, 1024) is None


def test_tf32_that_is_float32_says_so():
    assert effective_precision(FORMATS["tf32"], 4e-7, 1024) == "fp32"


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16", "int8"])
def test_an_unwritten_element_is_never_accepted(precision):
    form = FORMATS[precision]
    operands = random_operands(Shape(1, 16, 16, 16), form, "cpu", seed=3)
    exact = exact_product(operands.a, operands.b)
    operands.poison()
    kept = operands.c[0, 5, 5].clone()
    operands.c.copy_(exact.to(operands.c.dtype))
    assert check(operands.c, exact, form, 16).correct
    operands.c[0, 5, 5] = kept
    assert not check(operands.c, exact, form, 16).correct


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 1 << 20))
def test_a_tolerance_is_a_few_times_the_rounding(precision, k):
    form = FORMATS[precision]
    assert form.expected_error(k) * 5 <= form.tolerance(k) <= form.expected_error(k) * 10


@pytest.mark.parametrize("size", [(1, 2, 3, 4), (3, 5, 7, 9)])
def test_flops_and_bytes(size):
    batch, m, n, k = size
    shape = Shape(*size)
    assert shape.flops == 2 * batch * m * n * k
    assert shape.bytes_moved(2, 4) == batch * (2 * m * k + 2 * k * n + 4 * m * n)


@pytest.mark.parametrize("name", FORMATS)
def test_refreshed_operands_are_others_and_their_product_is_known(name):
    operands = random_operands(Shape(2, 9, 16, 33), FORMATS[name], "cpu", seed=3)
    exact = exact_product(operands.a, operands.b)
    before = exact.clone()
    operands.refresh(exact, seed=4)
    assert torch.equal(exact, exact_product(operands.a, operands.b))
    assert 0.2 < (exact != before).double().mean() < 0.8
    assert torch.equal(exact.abs(), before.abs())
    assert not check(operands.c, exact, FORMATS[name], 33).correct, "an unwritten C is poisoned"


@pytest.mark.parametrize(
    ("measured", "peer"), [(CudaHopperFp8, True), (TritonPlain, True), (CublasLt, False)]
)
def test_an_fp8_kernel_stands_beside_the_library_that_accumulates_as_it_does(
    measured, peer, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    name, reference = reference_for(measured("fp8"), "cuda", Shape(1, 64, 64, 64))
    assert ("fast accumulation" in name) == peer
    asked = []
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda *operands, **options: asked.append(options["use_fast_accum"])
    )
    operands = torch.zeros(1, 64, 64)
    reference.run(*reference.prepare(operands, operands, operands), launch=None)
    assert asked == [peer]


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_torch_multiplies_int8_of_a_b_that_lies_along_k(batch, m, n, k, again):
    shape, form, kernel = Shape(batch, m, n, k), FORMATS["int8"], Torch("int8")
    operands = random_operands(shape, form, "cpu", seed=5)
    exact = exact_product(operands.a, operands.b)
    if again:
        operands.refresh(exact, seed=6)
    prepared = kernel.prepare(operands.a, operands.b, operands.c)
    assert prepared[1].mT.is_contiguous()
    kernel.run(*prepared, launch=None)
    # oneDNN's int8 saturates without VNNI, whatever the layout.
    along_n = torch.stack(
        [torch._int_mm(one, other) for one, other in zip(operands.a, operands.b, strict=True)]
    )
    assert check(operands.c, exact, form, k).correct or not check(along_n, exact, form, k).correct


def _held(
    address: int, kind: np.dtype, rows: int, columns: int, leading: int, turned: bool
) -> np.ndarray:
    """A matrix in columns, `leading` elements apart, as the library sees it at an address; a
    view."""
    rows, columns = (columns, rows) if turned else (rows, columns)
    size = ((columns - 1) * leading + rows) * kind.itemsize
    values = np.frombuffer((ctypes.c_char * size).from_address(address), kind)
    matrix = np.lib.stride_tricks.as_strided(
        values, (rows, columns), (kind.itemsize, leading * kind.itemsize)
    )
    return matrix.T if turned else matrix


@pytest.mark.parametrize("precision", ["fp64", "fp32", "int8"])
@pytest.mark.parametrize("size", [(1, 5, 8, 12), (3, 17, 4, 20)])
def test_cublas_is_asked_for_the_product_and_in_int8_reads_both_operands_along_k(
    precision, size, monkeypatch
):
    types = {
        "CUDA_R_64F": np.float64,
        "CUDA_R_32F": np.float32,
        "CUDA_R_8I": np.int8,
        "CUDA_R_32I": np.int32,
    }
    seen = []

    def gemm(handle, turned_b, turned_a, n, m, k, one, *rest):
        (
            b,
            kind_b,
            wide_b,
            apart_b,
            a,
            kind_a,
            wide_a,
            apart_a,
            _,
            c,
            kind_c,
            wide_c,
            apart_c,
            batch,
            *_,
        ) = rest
        seen.append((turned_b, turned_a))
        for place in range(batch):
            b_at, a_at, c_at = (
                _held(at + place * apart * kind.itemsize, kind, rows, columns, wide, turned)
                for at, kind, rows, columns, wide, apart, turned in (
                    (b, np.dtype(kind_b), n, k, wide_b, apart_b, turned_b),
                    (a, np.dtype(kind_a), k, m, wide_a, apart_a, turned_a),
                    (c, np.dtype(kind_c), n, m, wide_c, apart_c, False),
                )
            )
            c_at[:] = b_at.astype(c_at.dtype) @ a_at.astype(c_at.dtype)

    library = SimpleNamespace(
        gemm_strided_batched_ex=gemm,
        Operation=SimpleNamespace(N=False, T=True),
        ComputeType=defaultdict(int),
        GemmAlgo=SimpleNamespace(DEFAULT=0),
        cuBLASError=ArithmeticError,
    )
    monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace(CudaDataType=types))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublas=library))
    monkeypatch.setattr(cublas, "current_stream", lambda: 0)
    monkeypatch.setattr(cublas, "_handle", lambda *_: 0)
    shape, form, kernel = Shape(*size), FORMATS[precision], cublas.Cublas(precision)
    operands = random_operands(shape, form, "cpu", seed=7)
    operands.poison()
    kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=None)
    assert check(operands.c, exact_product(operands.a, operands.b), form, shape.k).correct
    assert seen == [(precision == "int8", False)]


def test_each_device_has_a_library_context_and_a_workspace_of_its_own(monkeypatch):
    made = itertools.count(1)
    library = SimpleNamespace(
        create=lambda: next(made), set_stream=lambda *_: None, set_workspace=lambda *_: None
    )
    monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace())
    monkeypatch.setitem(
        sys.modules, "nvmath.bindings", SimpleNamespace(cublas=library, cublasLt=library)
    )
    first, second = torch.device("cpu"), torch.device("meta")
    try:
        handles = [cublas._handle(device, 0) for device in (first, second, first)]
        assert handles[0] == handles[2] != handles[1]
        assert cublaslt._handle(first) == cublaslt._handle(first) != cublaslt._handle(second)
        assert cublas.workspace(second).device == second
    finally:
        for cached in (cublas._handle, cublaslt._handle, cublas.workspace):
            cached.cache_clear()


def test_inductor_s_cache_is_the_users_own(monkeypatch, tmp_path):
    """Its default is a folder in the temporary directory, which whoever was first may have filled
    with code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    torch_compiled._compiled.__wrapped__()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_cpus_of_other_instructions_share_no_compiled_graphs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    folders = set()
    for instructions in ("AVX2", "AVX512"):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda name=instructions: name
        )
        torch_compiled._compiled.__wrapped__()
        folders.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(folders) == 2
