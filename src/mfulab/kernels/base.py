"""Base classes of matmul implementations: C[batch,m,n] = A[batch,m,k] · B[batch,k,n]. To add one,
write `NAME.py` with a `MatmulKernel` whose class name is the file's name in CamelCase. Other names
need a `config/kernel/NAME.yaml`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Numbers, Said
from mfulab.kernels.devices import require_capability, require_grid, thread_block

FP8_CAPABILITY = (8, 9)  # the first GPUs with fp8 matmuls


class Shape(NamedTuple):
    """Shape of a batched matmul: C[batch,m,n] = A[batch,m,k] · B[batch,k,n]."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """FLOPs of the matmul, counting two per multiply-add."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes_moved(self, operand_bytes: int, output_bytes: int) -> int:
        """Minimum memory traffic in bytes: A and B read once, C written once."""
        read = (self.m + self.n) * self.k * operand_bytes
        written = self.m * self.n * output_bytes
        return self.batch * (read + written)

    def grid(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Grid of blocks that each compute rows × columns of C: (blocks across, blocks down,
        batch)."""
        return ceil_div(self.n, columns), ceil_div(self.m, rows), self.batch

    def __str__(self) -> str:
        return "×".join(str(side) for side in self[self.batch == 1 :])


@dataclass(frozen=True)
class Launch:
    """Launch configuration, x first. On a CPU the grid is empty, and `block` is a tile of the
    loops."""

    block: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    shared_memory_bytes: int = 0
    defines: tuple[tuple[str, str], ...] = ()  # macros that depend on the shape

    def __str__(self) -> str:
        return f"grid={self.grid} block={self.block} shared={self.shared_memory_bytes} B"


@dataclass(frozen=True)
class Resources:
    """Resources per thread or block, as reported by the compiler. None if it does not report
    them."""

    registers: int | None = None
    shared_memory_bytes: int | None = None
    spill_bytes: int | None = None
    threads: int | None = None  # per block, if the launch's `block` is a tile


class MatmulKernel(ABC):
    """Matmul implementation in one precision of `core.formats.FORMATS`. `block` is its thread block
    or tile; None selects the default."""

    family: ClassVar[str]
    # name of the previous kernel in the family's ladder; empty for the first
    after: ClassVar[str] = ""
    adds: ClassVar[str]  # one line on what this kernel adds to the previous one
    devices: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]]
    least_capability: ClassVar[tuple[int, int]] = (0, 0)  # lowest compute capability
    # in fp8: accumulates over all of k in the tensor cores, with reduced precision
    accumulates_fast: ClassVar[bool] = False
    block_sides: ClassVar[int] = 0  # length of `block`; 0: the block cannot be chosen
    tile: ClassVar[tuple[int, ...]] = ()  # default block

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        if precision not in self.precisions:
            raise UnsupportedError(
                Said(
                    "kernel_lacks_format",
                    kernel=str(self),
                    precision=precision,
                    formats=", ".join(self.precisions),
                )
            )
        if block is not None and len(block) != self.block_sides:
            numbers: Numbers = {
                "kernel": str(self),
                "block": str(list(block)),
                "count": self.block_sides,
            }
            key = "block_needs" if self.block_sides else "block_not_chosen"
            raise UnsupportedError(Said(key, numbers))
        self.precision = precision
        self.block = None
        if block is not None:
            self.block = tuple(block)

    def __str__(self) -> str:
        return type(self).__name__

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the thread block or tile: `block`, or the default."""
        return self.block or self.tile

    def require(self, device: str, shape: Shape) -> None:
        """Raises UnsupportedError if the kernel does not support the device ("cpu" or "cuda") or
        the shape."""
        if device not in self.devices:
            raise UnsupportedError(
                Said(
                    "kernel_runs_on",
                    kernel=str(self),
                    devices=" and ".join(self.devices),
                    device=device,
                )
            )
        if device == "cuda":
            least = self.least_capability
            if self.precision == "fp8":
                least = max(least, FP8_CAPABILITY)
            require_capability(f"{self} in {self.precision}", least)
            require_grid(f"{self}: {shape}", self.launch(shape).grid)

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        """Converts C-contiguous torch tensors on the device into the operands of `run`. Not timed.
        C must be written in place."""
        return a, b, c

    def launch(self, shape: Shape) -> Launch:
        """Launch configuration for a shape."""
        return Launch(self.sides)

    @abstractmethod
    def run(self, *operands: Any, launch: Launch) -> Any:
        """Writes A·B into C, or returns it if the library cannot. On a GPU it only enqueues the
        work on the current stream."""

    def resources(self) -> Resources:
        """Resources that the compiler reported. Empty before the first run."""
        return Resources()


class ThreadAnElement(MatmulKernel):
    """Base of GPU kernels with one thread per element of C. `block` is (columns, rows) of C, or
    (rows, columns) if `rows_first`."""

    block_sides = 2
    rows_first: ClassVar[bool] = False
    is_square: ClassVar[bool] = False  # whether the sides of the block must be equal

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        if self.is_square and self.block and self.block[0] != self.block[1]:
            raise UnsupportedError(
                Said("block_not_square", kernel=str(self), block=str(list(self.block)))
            )

    def launch(self, shape: Shape) -> Launch:
        block = thread_block(self.block)
        rows, columns = block if self.rows_first else block[::-1]
        return Launch(block, shape.grid(rows, columns))


class CpuKernel(MatmulKernel):
    """Base of the CPU kernels. `function` takes a[batch,m,k], b[batch,k,n], c[batch,m,n], and then
    the sides in `launch.block`."""

    family = "CPU"
    devices = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("fp64", "fp32")
    function: ClassVar[Callable[..., Any]]

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.numpy(), b.numpy(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        type(self).function(*operands, *launch.block)


class ElementWise(MatmulKernel):
    """Element-wise product c[i] = a[i]·b[i], as a batch of 1×1×1 matmuls. It is limited by memory
    bandwidth."""

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape[1:] != (1, 1, 1):
            raise UnsupportedError(Said("elementwise_shape", kernel=str(self), shape=str(shape)))


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient rounded up: the number of tiles that cover a length."""
    return -(-numerator // denominator)
