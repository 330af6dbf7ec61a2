import ctypes
import re
import shutil

import pytest
import torch
from support.cuda_on_host import HERE, HostError, build
from support.machine_code import disassembled, needs_nvrtc
from support.shape_classes import shape_classes

from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_hopper import BOX, SHARED_MEMORY_BYTES, STAGES, TILE_K, TILE_M, TILE_N, CudaHopper, tensor_map
from mfulab.kernels.formats import FORMATS
from mfulab.kernels.nvrtc import SOURCES
from mfulab.kernels.verification import check, exact_product, random_operands
from mfulab.schema.errors import UnsupportedError

ENTRY = """
#include "hopper.cuh"
#include "hopper.cu"
extern "C" const char* run(int blocks, const TensorMap* a, const TensorMap* b, unsigned* c,
                           int batch, int m, int n, int k) {
    forget();
    return host::launch({blocks, 1, 1}, {384, 1, 1}, [=] { matmul(*a, *b, c, batch, m, n, k); });
}
"""
SOURCE = (SOURCES / "hopper.cu").read_text()
TAKEN = {name: shape for name, shape in shape_classes(256, 64).items() if not name.startswith("one_")}
SHAPES = {
    "smallest": Shape(1, 8, 8, 8),
    "one_row": Shape(1, 1, 16, 640),
    "more_steps_than_stages": Shape(2, 130, 264, 328),
    **TAKEN,
}


def built(folder, kind, source):
    """The kernel for the host; the host's hopper.cuh lies beside it instead of the real one."""
    (folder / "hopper.cu").write_text(source)
    shutil.copy(HERE / "hopper.cuh", folder)
    return build(ENTRY, {"TYPE": kind}, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The kernel for the host, by type."""
    return {kind: built(tmp_path_factory.mktemp(kind), kind, SOURCE) for kind in ("bf16", "f16")}


class HostTensorMap(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 16),)
    _align_ = 64


def host_map(tensor, extents, box):
    return HostTensorMap((ctypes.c_uint64 * 16)(tensor.data_ptr(), *extents, *box))


def product_on_host(run, precision, shape, blocks):
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=7)
    operands.poison()
    map_a = host_map(operands.a, (shape.k, shape.m, shape.batch), (BOX, TILE_M, 1))
    map_b = host_map(operands.b, (shape.n, shape.k, shape.batch), (BOX, TILE_K, 1))
    run(blocks, ctypes.byref(map_a), ctypes.byref(map_b), ctypes.c_void_p(operands.c.data_ptr()), *shape)
    return check(operands.c, exact_product(operands.a, operands.b), form, shape.k)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_is_right_on_the_host(runs, precision, shape, blocks):
    result = product_on_host(runs[CudaHopper(precision).defines()["TYPE"]], precision, SHAPES[shape], blocks)
    assert result.correct, str(result)


FREE = "if (step > 0 && lane == 0) arrive(&empty[last]);"


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        (FREE, "", "deadlock"),
        (
            "arrive_expecting(&full[stage], STAGE);",
            "arrive_expecting(&full[stage], STAGE), arrive(&full[stage]);",
            "too many",
        ),
        ("init_barrier(&full[stage], 1);", "", "before it is initialised"),
        ("(1024 - shared_address(memory) % 1024) % 1024", "512", "multiple of 1024 bytes"),
    ],
    ids=["never_freed", "two_arrivals", "no_initialisation", "unaligned"],
)
def test_a_fault_on_the_host_is_said(tmp_path, right, wrong, fault):
    assert right in SOURCE
    with pytest.raises(HostError, match=fault):
        product_on_host(built(tmp_path, "bf16", SOURCE.replace(right, wrong)), "bf16", Shape(1, 128, 256, 512), 1)


def test_a_stage_that_is_freed_too_early_gives_a_wrong_product(tmp_path):
    early = SOURCE.replace(FREE, "if (lane == 0) arrive(&empty[stage]);").replace("arrive(&empty[last]);", ";")
    assert not product_on_host(built(tmp_path, "bf16", early), "bf16", Shape(1, 128, 256, 512), 1).correct


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_machine_code_uses_the_copy_engine_and_warpgroup_products(precision):
    needs_nvrtc()
    compiled = CudaHopper(precision).compile("sm_90a", Shape(1, 4096, 4096, 4096))
    assert compiled.resources.spill_bytes == 0
    assert compiled.resources.registers == 168  # 65536 / 384 in whole eights: setmaxnreg then moves them
    assert "warning" not in compiled.log.lower()
    text = disassembled(compiled.code)
    assert "HGMMA.64x256x16.F32" in text
    assert "UTMALDG.3D" in text
    assert "USETMAXREG" in text
    assert not re.search(r"\b(STL|LDL|HMMA|FFMA)\b", text)


def test_the_stages_fit_an_sm():
    assert SHARED_MEMORY_BYTES <= 227 << 10
    source = (SOURCES / "hopper.cu").read_text()
    assert f"BM = {TILE_M}, BN = {TILE_N}, BK = {TILE_K}, STAGES = {STAGES};" in source
    assert f"BOX = {BOX};" in source


def test_rows_that_the_copy_engine_cannot_walk_are_unsupported(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    kernel = CudaHopper("bf16")
    kernel.require("cuda", Shape(1, 1, 8, 8))
    with pytest.raises(UnsupportedError, match="multiples of 8"):
        kernel.require("cuda", Shape(1, 4096, 4095, 4096))


def test_another_generation_is_unsupported(monkeypatch):
    for capability in ((8, 0), (10, 0)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_, capability=capability: capability)
        with pytest.raises(UnsupportedError, match=r"compute capability 9\.0"):
            CudaHopper("bf16").require("cuda", Shape(1, 8, 8, 8))


class Driver:
    """Notes what it is asked to encode."""

    def cuTensorMapEncodeTiled(self, *arguments):  # noqa: N802
        self.arguments = [getattr(argument, "value", argument) for argument in arguments]
        return 0


def test_tensor_maps_lie_where_the_driver_demands():
    matrix, driver = torch.zeros(3, 128, 64, dtype=torch.bfloat16), Driver()
    made = [tensor_map(matrix, (64, 128, 3), (64, 128, 1), driver) for _ in range(20)]
    assert {one.address % 64 for one in made} == {0}
    assert driver.arguments[0] == made[-1].address
    assert driver.arguments[2:4] == [3, matrix.data_ptr()]
    assert list(driver.arguments[4]) == [64, 128, 3]
    assert list(driver.arguments[5]) == [128, 128 * 128]  # bytes of a row and of a matrix
