"""Row of a walk through memory."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row


class ProbeMemoryConfig(StepConfig):
    """One working set, walked in one order."""

    axes: ClassVar[tuple[str, ...]] = ("pattern", "working_set_bytes")
    pattern: Literal["sequential", "strided", "random", "rows", "columns", "host"] = Field(
        description="In order; one element a line; a pointer chase; a matrix by rows, by columns; a copy to the GPU."
    )
    working_set_bytes: int = Field(ge=1024, le=1 << 36, description="How much memory is walked through.")
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class MemoryRow(Row):
    """One working set walked in one order; an access is of 8 bytes, a line has 64."""

    pattern: str = Field("", description="Order of the accesses.")
    working_set_bytes: int | None = Field(None, description="Memory over which the accesses go.")
    level: str | None = Field(None, description="The smallest cache that holds the working set, or memory.")
    caches: str | None = Field(None, description="JSON: cache → bytes, as the device reports them.")
    accesses: int | None = Field(None, description="In one repetition.")
    time_per_access_s: float | None = Field(None, description="Median over the repetitions.")
    time_low_s: float | None = Field(None, description="The fastest repetition's.")
    cycles_per_access: float | None = Field(None, description="At clock_mhz: the nominal one in a virtual machine.")
    clock_mhz: float | None = Field(None, description="Mean SM clock meanwhile; a CPU reports none.")
    gb_s: float | None = Field(None, description="Bytes that the walk asks for ÷ time.")
    touched_gb_s: float | None = Field(None, description="Bytes of the lines that it touches ÷ time.")
    repetitions: int | None = Field(None, description="Times that the accesses were measured.")


MEASUREMENT = Measurement(
    "memory",
    ProbeMemoryConfig,
    MemoryRow,
    "Walking through memory: {wildcards.run}",
    "pattern working_set_bytes level hardware status time_per_access_s cycles_per_access gb_s touched_gb_s",
    position=40,
)
