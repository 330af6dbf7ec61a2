import ctypes
import functools
import itertools
import re
from collections import Counter

import pytest
import torch
from support.cuda_on_host import HostError, build, copy_sources
from support.machine_code import disassembled, instructions, main_loops, needs_nvrtc
from support.shape_classes import shape_classes
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_hopper import CudaHopper
from mfulab.kernels.cuda_hopper_cluster import CudaHopperCluster
from mfulab.kernels.cuda_hopper_deferred import CudaHopperDeferred
from mfulab.kernels.cuda_hopper_fp8 import CudaHopperFp8
from mfulab.kernels.cuda_hopper_fp8_deferred import CudaHopperFp8Deferred
from mfulab.kernels.cuda_hopper_hilbert import CudaHopperHilbert, hilbert_order
from mfulab.kernels.cuda_hopper_stores import CudaHopperStores
from mfulab.kernels.hopper import BOX, ROW_BYTES, STAGES, TILE_M, TILE_N, View, tensor_map
from mfulab.kernels.nvrtc import SOURCES
from mfulab.kernels.verification import check, exact_product, random_operands

ENTRY = """
#include "hopper.cuh"
#include "{source}"
extern "C" const char* run(int blocks, const TensorMap* a, const TensorMap* b, const TensorMap* c_map,
                           unsigned short* c, const int* order, int batch, int m, int n, int k) {{
    forget();
    auto kernel = [=] {{ matmul(*a, *b, *c_map, c, order, batch, m, n, k); }};
    return host::launch({{blocks, 1, 1}}, {{384, 1, 1}}, kernel, {cluster});
}}
"""
KINDS = (
    CudaHopper,
    CudaHopperStores,
    CudaHopperCluster,
    CudaHopperHilbert,
    CudaHopperFp8,
    CudaHopperDeferred,
    CudaHopperFp8Deferred,
)
LADDER = [
    (kind, precision) for kind in KINDS for precision in kind.precisions if precision != "fp16"
]
LADDER.append((CudaHopper, "fp16"))
TAKEN = {
    name: shape for name, shape in shape_classes(256, 64).items() if not name.startswith("one_")
}
TAKEN["smallest"] = Shape(1, 8, 8, 8)
# Two matrices, edges in every direction, more steps than stages, and so many tiles that blocks take
# several.
AWKWARD = Shape(2, 300, 264, 336)


def built(folder, kernel, **changed):
    """A rung for the host; `changed` replaces (right, wrong) in a file by its stem."""
    copy_sources(folder)
    for source in ("hopper_tiles.cuh", kernel.source):
        text = (folder / source).read_text()
        for right, wrong in changed.get(source.partition(".")[0], ()):
            assert right in text
            text = text.replace(right, wrong)
        (folder / source).write_text(text)
    entry = ENTRY.format(source=kernel.source, cluster=kernel.cluster)
    return build(entry, kernel.defines(), folder)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    """A rung for the host, compiled once."""
    return functools.cache(
        lambda kind, precision: built(tmp_path_factory.mktemp("rung"), kind(precision))
    )


class HostTensorMap(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 16),)
    _align_ = 64


def product_on_host(run, kernel, shape, clusters):
    """The result of a rung for random operands, seen by the copy engine as the rung describes
    them."""
    form = FORMATS[kernel.precision]
    operands = random_operands(shape, form, "cpu", seed=7)
    operands.poison()
    views = kernel.views(operands.a, operands.b, operands.c)
    maps = [
        HostTensorMap((ctypes.c_uint64 * 16)(view.tensor.data_ptr(), *view.extents, *view.box))
        for view in views
    ]
    tensors = operands.c, kernel.order(operands.c)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    run(clusters * kernel.cluster, *(ctypes.byref(one) for one in maps), *pointers, *shape)
    return check(operands.c, exact_product(operands.a, operands.b), form, shape.k)


@pytest.mark.parametrize(("kind", "precision"), few(LADDER))
def test_every_rung_is_right_on_the_host(on_host, kind, precision):
    result = product_on_host(on_host(kind, precision), kind(precision), AWKWARD, clusters=2)
    assert result.correct, str(result)


@pytest.mark.parametrize("shape", few(TAKEN, 4))
def test_the_first_rung_takes_every_class_of_shapes(on_host, shape):
    result = product_on_host(
        on_host(CudaHopper, "bf16"), CudaHopper("bf16"), TAKEN[shape], clusters=3
    )
    assert result.correct, str(result)


@pytest.mark.parametrize("k", few([8, 64, 192, 256, 320]))
def test_deferred_results_leave_whether_or_not_the_next_tile_has_a_step_for_each(on_host, k):
    """A block takes several tiles, of one step to five; their results leave in four boxes."""
    result = product_on_host(
        on_host(CudaHopperDeferred, "bf16"),
        CudaHopperDeferred("bf16"),
        Shape(2, 300, 520, k),
        clusters=1,
    )
    assert result.correct, str(result)


FULL = Shape(1, 256, 256, 512)
TWO_TILES = Shape(1, 256, 512, 320)  # of one block, each with more steps than stages


@pytest.mark.parametrize(
    ("kind", "changed", "fault"),
    few(
        [
            (
                CudaHopper,
                {"hopper_tiles": [("if (!is_first) release(ring, last);", "")]},
                "deadlock",
            ),
            (
                CudaHopper,
                {
                    "hopper_tiles": [
                        (
                            "arrive_expecting(full, STAGE);",
                            "arrive_expecting(full, STAGE), arrive(full);",
                        )
                    ]
                },
                "too many",
            ),
            (
                CudaHopper,
                {"hopper_tiles": [("init_barrier(&full[stage], 1);", "")]},
                "before it is initialised",
            ),
            (
                CudaHopper,
                {"hopper_tiles": [("stages(shared_memory())", "stages(shared_memory() + 512)")]},
                "1024 bytes",
            ),
            (
                CudaHopperStores,
                {"hopper_tiles": [("publish_to_copy_engine();", "")]},
                "has not published",
            ),
            (CudaHopperCluster, {"hopper_tiles": [("lane < BLOCKS", "lane < 1")]}, "deadlock"),
            (
                CudaHopperCluster,
                {"hopper": [("if (BLOCKS > 1) sync_blocks();  // until", "// until")]},
                "has ended",
            ),
            (
                CudaHopperCluster,
                {"hopper": [("sync_blocks();  // nobody", "// nobody")]},
                "initialised",
            ),
            (
                CudaHopperCluster,
                {"hopper_tiles": [("load_box_for(0b11,", "load_box_for(0b01 << rank,")]},
                "deadlock",
            ),
        ]
    ),
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_a_fault_on_the_host_is_said(tmp_path, kind, changed, fault):
    with pytest.raises(HostError, match=fault):
        product_on_host(built(tmp_path, kind("bf16"), **changed), kind("bf16"), FULL, clusters=1)


@pytest.mark.parametrize(
    ("kind", "changed"),
    few(
        [
            (
                CudaHopper,
                {
                    "hopper_tiles": [
                        (
                            "if (!is_first) release(ring, last);\n    last = at.stage;",
                            "release(ring, at.stage);",
                        ),
                        ("    hold(total);\n    release(ring, last);", "    hold(total);"),
                    ]
                },
            ),
            (CudaHopper, {"hopper_tiles": [("swap(x0, x2, 2), ", "")]}),
            (CudaHopperStores, {"hopper_tiles": [("if (first) wait_until_read<1>();", "")]}),
            (CudaHopperStores, {"hopper": [("wait_until_read<0>();", ";")]}),
            (CudaHopperHilbert, {"hopper_tiles": [("* BLOCKS + rank)", "* BLOCKS)")]}),
            (
                CudaHopperDeferred,
                {"hopper": [("box < BOXES; ++box) store_before(box);", "box < 0;);")]},
            ),
            (
                CudaHopperDeferred,
                {"hopper_tiles": [("    wait_for_products<0>();\n", "")]},
            ),
            (CudaHopperDeferred, {"hopper": [("store_before);\n", "[](int) {});\n")]}),
        ]
    ),
    ids=[
        "stage_freed_too_early",
        "not_transposed",
        "patch_overwritten",
        "stores_not_awaited",
        "both_blocks_alike",
        "last_results_not_stored",
        "results_taken_while_they_are_computed",
        "results_before_the_last_not_stored",
    ],
)
def test_what_the_hardware_would_not_notice_gives_a_wrong_product(tmp_path, kind, changed):
    assert not product_on_host(
        built(tmp_path, kind("bf16"), **changed), kind("bf16"), TWO_TILES, clusters=1
    ).correct


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), LADDER)
def test_the_machine_code_is_what_each_rung_adds(kind, precision):
    needs_nvrtc()
    compiled = kind(precision).compile("sm_90a", Shape(1, 4096, 4096, 4096))
    assert compiled.resources.spill_bytes == 0
    # 65536 / 384 in whole eights: setmaxnreg then moves them
    assert compiled.resources.registers == 168
    assert "warning" not in compiled.log.lower()
    text = disassembled(compiled.code)
    opcodes = Counter(opcode for _, opcode, _ in instructions(text))
    product = "QGMMA.64x256x32.F32.E4M3.E4M3" if precision == "fp8" else "HGMMA.64x256x16.F32"
    boxes = TILE_N // BOX
    # A deferred tile's first steps, each of which stores a box, are written out before its loop.
    loops = boxes + 1 if kind.deferred else 1
    assert sum(n for opcode, n in opcodes.items() if opcode.startswith(product)) == 4 * loops
    assert not [
        opcode for opcode in opcodes if re.match(r"(STL|LDL|HMMA|FFMA|LD|ST)(\.|$)", opcode)
    ]
    assert opcodes["USETMAXREG.TRY_ALLOC.CTAPOOL"] == opcodes["USETMAXREG.DEALLOC.CTAPOOL"] == 1
    assert opcodes["SYNCS.EXCH.64"] == 2 * STAGES
    assert opcodes["UTMALDG.3D"] >= 1
    stored = kind is not CudaHopper
    # Deferred: boxes of the tile before, and of the last one.
    stores = boxes * (1 + kind.deferred) if stored else 0
    assert opcodes["UTMASTG.3D"] == opcodes["STSM.16.M88.4"] // 4 == stores
    rounded = [n for opcode, n in opcodes.items() if opcode.startswith("F2FP")]
    assert rounded == [64], "each pair of results once"
    assert {opcode for opcode in opcodes if opcode.startswith("STG")} == (
        set() if stored else {"STG.E.128"}
    )
    together = kind.cluster > 1
    assert ("UTMALDG.3D.MULTICAST" in opcodes) == together
    assert opcodes["UCGABAR_ARV"] == opcodes["UCGABAR_WAIT"] == (2 if together else 0)
    (main,) = main_loops(text, "[HQ]GMMA")
    assert (
        sum(opcode.startswith(("MEMBAR", "BAR", "LDS", "STS", "LDG", "STG")) for opcode in main)
        == 0
    )
    assert sum(opcode.startswith("WARPGROUP.DEPBAR") for opcode in main) == 1


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (8, 8), (16, 16), (5, 3), (17, 33)])
def test_the_curve_visits_every_tile_once_and_steps_to_a_neighbour(rows, columns):
    order = hilbert_order(rows, columns)
    cells = [(int(cell) >> 16, int(cell) & 0xFFFF) for cell in order]
    assert sorted(cells) == [(row, column) for row in range(rows) for column in range(columns)]
    jumps = [abs(a - c) + abs(b - d) > 1 for (a, b), (c, d) in itertools.pairwise(cells)]
    assert sum(jumps) <= (0 if rows == columns else 2)
    assert order.dtype == "int32"


def test_the_stages_and_patches_fit_an_sm_and_are_those_of_the_source():
    assert all(kind.shared_memory_bytes <= 227 << 10 for kind in KINDS)
    source = (SOURCES / "hopper_tiles.cuh").read_text()
    assert f"ROW = {ROW_BYTES};" in source
    assert f"BM = {TILE_M}, BN = {TILE_N}, BK = ROW / OPERAND_BYTES, STAGES = {STAGES};" in source
    assert f"BOX = {BOX};" in source


def test_a_cluster_s_grid_is_whole_clusters():
    for shape in (Shape(1, 8, 8, 8), Shape(1, 8192, 8192, 8192), Shape(3, 300, 520, 64)):
        assert CudaHopperCluster("bf16").launch(shape).grid[0] % 2 == 0
    assert CudaHopperCluster("bf16").launch(Shape(1, 8192, 8192, 8192)).grid == (132, 1, 1)
    assert CudaHopperCluster("bf16").launch(Shape(3, 300, 520, 64)).grid == (2 * 3 * 2 * 3, 1, 1)


def test_rows_that_the_copy_engine_cannot_walk_are_unsupported(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    kernel = CudaHopper("bf16")
    kernel.require("cuda", Shape(1, 1, 8, 8))
    with pytest.raises(UnsupportedError, match="multiples of 8"):
        kernel.require("cuda", Shape(1, 4096, 4095, 4096))
    with pytest.raises(UnsupportedError, match="k of 16"):
        CudaHopperFp8("fp8").require("cuda", Shape(1, 4096, 4096, 4088))


def test_another_generation_is_unsupported(monkeypatch):
    for capability in ((8, 0), (10, 0)):
        monkeypatch.setattr(
            "torch.cuda.get_device_capability", lambda *_, capability=capability: capability
        )
        with pytest.raises(UnsupportedError, match=r"compute capability 9\.0"):
            CudaHopper("bf16").require("cuda", Shape(1, 8, 8, 8))


class Driver:
    """Notes what it is asked to encode."""

    def cuTensorMapEncodeTiled(self, *arguments):  # noqa: N802
        self.arguments = [getattr(argument, "value", argument) for argument in arguments]
        return 0


def test_tensor_maps_lie_where_the_driver_demands(monkeypatch):
    matrix, driver = torch.zeros(3, 128, 64, dtype=torch.bfloat16), Driver()
    monkeypatch.setattr("mfulab.kernels.hopper.ctypes.CDLL", lambda _: driver)
    made = [tensor_map(View(matrix, (64, 128, 3), (64, 128, 1))) for _ in range(20)]
    assert {one.address % 64 for one in made} == {0}
    assert driver.arguments[0] == made[-1].address
    assert driver.arguments[2:4] == [3, matrix.data_ptr()]
    assert list(driver.arguments[4]) == [64, 128, 3]
    assert list(driver.arguments[5]) == [128, 128 * 128]  # bytes of a row and of a matrix
