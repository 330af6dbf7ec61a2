"""CUTLASS: NVIDIA's matmul templates, compiled from the headers of its Python package."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.nvrtc import Compiled, compile_source

PACKAGE = "cutlass_library"  # the module of nvidia-cutlass that holds the headers
TILE_M = 128
TILE_N = 256
WARP_SIDE = 64
MOST_TOGETHER = 8  # columns of tiles
THREADS = 32 * (TILE_M // WARP_SIDE) * (TILE_N // WARP_SIDE)


@dataclass(frozen=True)
class Template:
    """Configuration of a 128×256 tile, from the list of CUTLASS's own generator."""

    operand: str
    units: str  # CUTLASS's name of the units that multiply
    instruction: tuple[int, int, int]
    depth: int
    stages: int
    item_bytes: int
    pack: int  # elements per copy

    @property
    def shared_memory_bytes(self) -> int:
        """Shared memory per block in bytes, for all stages of A and B."""
        return self.stages * (TILE_M + TILE_N) * self.depth * self.item_bytes


_TENSOR_CORES = "OpClassTensorOp"
TEMPLATES = {
    "fp32": Template("float", "OpClassSimt", (1, 1, 1), 8, 5, 4, 1),
    "tf32": Template("float", _TENSOR_CORES, (16, 8, 8), 16, 3, 4, 4),
    "fp16": Template("cutlass::half_t", _TENSOR_CORES, (16, 8, 16), 32, 3, 2, 8),
    "bf16": Template("cutlass::bfloat16_t", _TENSOR_CORES, (16, 8, 16), 32, 3, 2, 8),
}


class Cutlass(CudaC):
    """CUTLASS's kernel for Ampere, which also runs on later GPUs. Does not use its templates for
    wgmma."""

    family = "library"
    after = "torch_compiled"
    adds = "CUTLASS: a template of its headers, compiled for this matmul"
    precisions = tuple(TEMPLATES)
    source = "cutlass.cu"
    least_capability: ClassVar[tuple[int, int]] = (8, 0)

    @property
    def template(self) -> Template:
        """Configuration for this kernel's precision."""
        return TEMPLATES[self.precision]

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        pack = self.template.pack
        if shape.n % pack or shape.k % pack:
            raise UnsupportedError(
                Said(
                    "rows_of_16_bytes",
                    kernel=str(self),
                    shape=str(shape),
                    precision=str(self.precision),
                )
            )

    def defines(self) -> dict[str, str]:
        template = self.template
        sides = {
            "BLOCK": (TILE_M, TILE_N, template.depth),
            "WARP": (WARP_SIDE, WARP_SIDE, template.depth),
            "INSTRUCTION": template.instruction,
        }
        values = {
            "OPERAND": template.operand,
            "UNITS": template.units,
            "STAGES": template.stages,
            "PACK": template.pack,
            "TOGETHER": MOST_TOGETHER,
            "THREADS": THREADS,
            "SHARED_BYTES": template.shared_memory_bytes,
        }
        for name, three in sides.items():
            values[name] = ", ".join(map(str, three))
        # prefixed, because the headers define some of these names
        return {f"RUNG_{name}": str(value) for name, value in values.items()}

    def launch(self, shape: Shape) -> Launch:
        across, down, matrices = shape.grid(TILE_M, TILE_N)
        together = columns_together(across)
        grid = (down * together, ceil_div(across, together), matrices)
        return Launch((THREADS,), grid, self.template.shared_memory_bytes)

    def _compile(self, arch: str, launch: Launch) -> Compiled:
        defines = tuple(sorted(self.defines().items()))
        return compile_source(self.source, arch, defines, headers())


def columns_together(across: int) -> int:
    """Width of the groups of tile columns that are processed together, as CUTLASS chooses it for
    `across` columns."""
    if across >= 6:
        return MOST_TOGETHER
    if across >= 3:
        return 4
    return across


def headers() -> str:
    """Folder of CUTLASS's headers. Raises UnsupportedError if its package is not installed."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise UnsupportedError(Said("needs_cutlass"))
    return str(Path(package.submodule_search_locations[0]) / "source/include")
