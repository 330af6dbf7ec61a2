"""CUDA C on tensor cores through nvcuda::wmma, in fp16, bf16, tf32 and int8."""

from collections.abc import Sequence

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, Shape
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import require_block, require_capability

_MACROS = ("OPERAND", "FRAGMENT", "SUM", "RESULT", "DEPTH")
_TYPES = {
    "fp16": ("__half", "__half", "float", "__half", "16"),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", "float", "__nv_bfloat16", "16"),
    "tf32": ("float", "wmma::precision::tf32", "float", "float", "8"),
    "int8": ("signed char", "signed char", "int", "int", "16"),
}
_MORE = {
    "bf16": {"SHARED_LOAD": "m16n16k16.shared.bf16"},
    "tf32": {"ROUND_TO_TF32": "1", "SHARED_LOAD": "m16n16k8.shared.tf32"},
}
# lowest compute capability with fragments of a format; the others have them since 7.0
_SINCE = {"int8": (7, 2), "bf16": (8, 0), "tf32": (8, 0)}
_ITEM_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "int8": 1}
_DEPTH_BYTES = 64  # bytes in a row of A's tile


class CudaWmma(CudaC):
    """Uses the tensor core interface of the CUDA C++ programming guide. `block` is (BM, BN),
    multiples of a warp's 64×32."""

    after = "cuda_grouped"
    adds = "tensor cores: a warp multiplies 16×16 fragments in one instruction"
    precisions = tuple(_TYPES)
    source = "wmma.cu"
    least_capability = (7, 0)
    block_sides = 2
    tile = (128, 128)

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        tile_m, tile_n = self.sides
        name = f"{self}: block={[tile_m, tile_n]}"
        if tile_m % 64 or tile_n % 32:
            raise UnsupportedError(Said("no_multiple_of_wmma", name=name))
        loads = (tile_m * self.depth // self.pack, self.depth * tile_n // self.pack)
        tiles = tile_m * (self.depth + self.pack) + self.depth * (tile_n + self.pack)
        require_block(name, self.threads, loads, 2 * tiles * _ITEM_BYTES[precision])

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        require_capability(f"{self} in {self.precision}", _SINCE.get(self.precision, (7, 0)))

    @property
    def threads(self) -> int:
        return self.sides[0] // 64 * (self.sides[1] // 32) * 32

    @property
    def depth(self) -> int:
        """Elements in one row of A's tile."""
        return _DEPTH_BYTES // _ITEM_BYTES[self.precision]

    @property
    def pack(self) -> int:
        """Elements per 128-bit access."""
        return 16 // _ITEM_BYTES[self.precision]

    def defines(self) -> dict[str, str]:
        tile_m, tile_n = self.sides
        types = dict(zip(_MACROS, _TYPES[self.precision], strict=True))
        more = _MORE.get(self.precision, {})
        sides = {"BM": str(tile_m), "BN": str(tile_n), "BK": str(self.depth)}
        return types | more | sides

    def launch(self, shape: Shape) -> Launch:
        aligned = shape.n % self.pack == 0 and shape.k % self.pack == 0
        defines = (("ALIGNED", str(int(aligned))),)
        return Launch((self.threads,), shape.grid(*self.sides), defines=defines)
