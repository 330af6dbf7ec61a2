"""Registers and spills of each kernel's machine code by architecture: the table of docs/kernels.md.

PYTHONPATH=src:tests python -m support.compiled compiles all kernels and rewrites the table
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import MatmulKernel, Shape

from .machine_code import resource_usage
from .shape_classes import kernel_class, refused
from .workflow_copy import ROOT

DOCUMENT = ROOT / "docs/kernels.md"
BEGIN, END = "<!-- compiled -->\n", "<!-- end of compiled -->"
# Compiler targets from Turing to Blackwell, with their compute capability.
ARCHITECTURES = {
    "sm_75": (7, 5),
    "sm_80": (8, 0),
    "sm_86": (8, 6),
    "sm_89": (8, 9),
    "sm_90a": (9, 0),
    "sm_100a": (10, 0),
    "sm_120": (12, 0),
}
COMPILERS = ("nvidia-cuda-nvrtc", "triton")
RUNGS = (
    *("cuda_naive", "cuda_coalesced", "cuda_shared", "cuda_register_1d", "cuda_register_2d"),
    *("cuda_vectorised", "cuda_double_buffered", "cuda_warp_tile", "cuda_async_copies"),
    *("cuda_prefetched", "cuda_grouped", "cuda_wide", "cuda_wmma", "cuda_mma", "cuda_elementwise"),
    *("cuda_hopper", "cuda_hopper_stores", "cuda_hopper_cluster", "cuda_hopper_hilbert"),
    *("cuda_hopper_deferred", "cuda_hopper_fp8", "cuda_hopper_fp8_deferred"),
    *("triton_plain", "triton_autotuned", "triton_persistent"),
)
# Whole tiles with 128-bit loads, and edges that need masks. Some kernels do not support the second.
ALIGNED, ODD = Shape(1, 4096, 4096, 4096), Shape(1, 4095, 4097, 4095)
SMALLEST = Shape(1 << 20, 1, 1, 1)
NOT_TAKEN = "–"
CHOSEN = "triton_autotuned"  # uses the fastest of its candidates
# its 60 candidates take seconds each to compile: one architecture per generation
CHOSEN_FOR = ("sm_75", "sm_80", "sm_90a", "sm_120")
NOT_COMPILED = "not compiled"
TRITON_TYPES = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "tf32": "fp32",
    "fp8": "fp8e4nv",
    "int8": "i8",
}
TRITON_RESULTS = {"fp8": "bf16", "int8": "i32"}


@dataclass(frozen=True)
class Needs:
    """Registers per thread and bytes of local memory per thread of one compiled kernel."""

    precision: str
    registers: int
    local_bytes: int


def cell(rung: str, arch: str) -> str:
    """Cell of the table for a kernel and an architecture, from compiling now."""
    if rung == CHOSEN and arch not in CHOSEN_FOR:
        return NOT_COMPILED
    return cell_text(rung, list(needs_of(rung, arch)))


def cell_text(rung: str, needs: list[Needs]) -> str:
    """Text of a cell: registers over the kernel's formats and shapes, and spills."""
    if not needs:
        return NOT_TAKEN
    spilling = [need for need in needs if need.local_bytes]
    if rung == CHOSEN:
        kept = [need for need in needs if not need.local_bytes]
        return f"{_range(kept)}; {len(spilling)} of {len(needs)} spill"
    if not spilling:
        return _range(needs)
    worst = max(spilling, key=lambda need: need.local_bytes)
    return f"{_range(needs)}, **{worst.local_bytes} B in {worst.precision}**"


def _range(needs: list[Needs]) -> str:
    least, most = (choice(need.registers for need in needs) for choice in (min, max))
    return str(least) if least == most else f"{least} to {most}"


def needs_of(rung: str, arch: str, precision: str | None = None) -> Iterator[Needs]:
    """Needs of a kernel in each format that a GPU of the architecture supports, or in one of
    them."""
    kind = kernel_class(rung)
    with on_a_card(arch):
        for name in [precision] if precision else kind.precisions:
            for code in _machine_codes(rung, kind(name), arch):
                usage = resource_usage(code)
                local = max(usage["STACK"], usage["LOCAL"])
                yield Needs(name, usage["REG"], local)


@contextmanager
def on_a_card(arch: str) -> Iterator[None]:
    """Pretends that the current GPU has the architecture's compute capability."""
    capability = ARCHITECTURES[arch]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.get_device_capability", lambda *_: capability)
        for module in ("triton_kernels", "triton_persistent"):
            patch.setattr(f"mfulab.kernels.{module}.generation", lambda: capability)
        yield


def _machine_codes(rung: str, kernel: MatmulKernel, arch: str) -> Iterator[bytes]:
    shapes = (SMALLEST,) if rung.endswith("elementwise") else (ALIGNED, ODD)
    taken = [shape for shape in shapes if not refused(kernel, shape)]
    if rung.startswith("cuda_"):
        for shape in taken:
            yield kernel.compile(arch, shape).code
    elif taken:
        major, minor = ARCHITECTURES[arch]
        yield from _of_triton(rung, kernel, 10 * major + minor)


def _of_triton(rung: str, kernel: MatmulKernel, capability: int) -> Iterator[bytes]:
    if rung != CHOSEN:
        yield triton_code(kernel, capability, persistent=rung == "triton_persistent").asm["cubin"]
        return
    from triton.compiler.errors import CompilationError

    from mfulab.kernels.triton_autotuned import autotuned

    for config in sorted(autotuned(FORMATS[kernel.precision].bytes).configs, key=_tile_area):
        tiling = config.kwargs | {"num_warps": config.num_warps, "num_stages": config.num_stages}
        try:
            yield triton_code(kernel, capability, tiling).asm["cubin"]
        except CompilationError:  # the tuner skips such a candidate
            continue


def _tile_area(config: Any) -> int:
    """Results of a candidate's tile a warp: the more, the likelier it spills."""
    return config.kwargs["tile_m"] * config.kwargs["tile_n"] // config.num_warps


def triton_code(kernel, target, tiling=None, *, persistent=False):
    """Triton kernel compiled without a GPU, for a compute capability or an AMD architecture such as
    gfx942."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from mfulab.kernels.triton_kernels import INSTINCT, matmul_persistent, matmul_tiles

    kind = TRITON_TYPES[kernel.precision]
    tiling = dict(tiling or kernel.tiling())
    options = {name: tiling.pop(name) for name in ("num_warps", "num_stages")} | kernel.OPTIONS
    constants = kernel.constants() | tiling
    result = f"*{TRITON_RESULTS.get(kernel.precision, kind)}"
    signature = {"a": f"*{kind}", "b": f"*{kind}", "c": result}
    divisible = {(place,): [["tt.divisibility", 16]] for place in range(7) if place != 3}
    if persistent:
        m, n, k = (tiling[f"tile_{side}"] for side in "mnk")
        of_b = [n, k] if kernel.b_along_k else [k, n]
        signature |= {"a": f"tensordesc<{kind}{[m, k]}>", "b": f"tensordesc<{kind}{of_b}>"}
        divisible = {place: how for place, how in divisible.items() if place[0] > 1}
    signature |= dict.fromkeys(("batch", "m", "n", "k"), "i32")
    signature |= dict.fromkeys(constants, "constexpr")
    function = matmul_persistent if persistent else matmul_tiles
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=divisible)
    if isinstance(target, str):
        # AMD's; wavefronts of GCN and CDNA have 64 lanes
        lanes = 64 if target.startswith(INSTINCT) else 32
        return compile(source, target=GPUTarget("hip", target, lanes), options=options)
    return compile(source, target=GPUTarget("cuda", target, 32), options=options)


def spilled_registers(code: str) -> int:
    """Vector registers that AMD's machine code spills, by its metadata."""
    (count,) = re.findall(r"\.vgpr_spill_count:\s*(\d+)", code)
    return int(count)


def compilers() -> str:
    """Compilers with their versions, as named in the table."""
    found = []
    for name in COMPILERS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def table() -> str:
    """Text of the table. Compiles every kernel for every architecture, which takes minutes."""
    lines = [f"| rung | {' | '.join(ARCHITECTURES)} |", "|---|" + "---:|" * len(ARCHITECTURES)]
    for rung in RUNGS:
        cells = []
        for arch in ARCHITECTURES:
            cells.append(cell(rung, arch))
            print(rung, arch, cells[-1], flush=True)
        lines.append(f"| `{rung}` | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\nCompiled by {compilers()}.\n"


def cells_of(document: str) -> dict[tuple[str, str], str]:
    """Cells of the document's table, by kernel and architecture."""
    part = document.partition(BEGIN)[2].partition(END)[0]
    cells = {}
    for line in part.splitlines():
        if found := re.match(r"\| `(\w+)` \| (.*) \|$", line):
            values = found[2].split(" | ")
            cells |= {
                (found[1], arch): value for arch, value in zip(ARCHITECTURES, values, strict=True)
            }
    return cells


def written(document: str, text: str) -> str:
    """Document with the text of its table replaced."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + text + END, document, flags=re.DOTALL)


if __name__ == "__main__":
    before = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(written(before, table()), encoding="utf-8")
