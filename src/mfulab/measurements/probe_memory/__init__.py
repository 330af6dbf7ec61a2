"""Row of a walk through memory."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row, column, counter_column, json_column

Pattern = Literal[
    "random",
    "strided",
    "sequential",
    "rows",
    "columns",
    "host",
    "page_cache",
    "disk",
    "cuda_malloc",
    "cuda_memcpy",
]


class ProbeMemoryConfig(StepConfig):
    """One working set, walked in one order."""

    axes: ClassVar[tuple[str, ...]] = ("pattern", "working_set_bytes")
    pattern: Pattern = Field(
        "random",
        description="A pointer chase; one element a line; a walk in order; a matrix by rows, by columns; a copy to the"
        " GPU; random pages of a file, in the system's cache or past it; a GPU's memory by cudaMalloc and cudaFree, and"
        " with a cudaMemcpy there and back between them.",
    )
    working_set_bytes: int = Field(
        1 << 20, ge=1024, le=1 << 36, description="Size of the memory that is walked."
    )
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class MemoryRow(Row):
    """One working set walked in one order. An access reads 8 bytes; a cache line has 64."""

    pattern: str = Field("", description="Order of the walk.")
    working_set_bytes: int | None = column("Memory that is walked through.")
    level: str | None = column("Smallest cache that holds the working set, or memory.")
    caches: str | None = json_column("cache → bytes, as the device reports them.")
    accesses: int | None = counter_column("Accesses in one repetition.")
    time_per_access_s: float | None = column("Median time of an access over the repetitions.")
    cycles_per_access: float | None = column(
        "Cycles of an access at clock_mhz, which is nominal in a virtual machine."
    )
    clock_mhz: float | None = column("Mean SM clock while measuring.")
    gb_s: float | None = column("Bytes that the walk asks for ÷ time.")
    touched_gb_s: float | None = column("Bytes of the lines that the walk touches ÷ time.")
    repetitions: int | None = counter_column("Number of walks that were timed.")


MEASUREMENT = Measurement(
    "memory",
    ProbeMemoryConfig,
    MemoryRow,
    "Walking through memory: {wildcards.run}",
    "pattern working_set_bytes level hardware status time_per_access_s cycles_per_access gb_s touched_gb_s",
    position=40,
)
