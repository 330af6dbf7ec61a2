"""Row of a walk through memory."""

from pydantic import Field

from mfulab.schema.rows import Row


class MemoryRow(Row):
    """One working set walked in one order; an access is of 8 bytes, a line has 64."""

    pattern: str = ""
    working_set_bytes: int | None = None
    level: str | None = Field(None, description="The smallest cache that holds the working set, or memory.")
    caches: str | None = Field(None, description="JSON: cache → bytes, as the device reports them.")
    accesses: int | None = Field(None, description="In one repetition.")
    time_per_access_s: float | None = Field(None, description="Median over the repetitions.")
    time_low_s: float | None = Field(None, description="The fastest repetition's.")
    cycles_per_access: float | None = Field(None, description="At clock_mhz: the nominal one in a virtual machine.")
    clock_mhz: float | None = None
    gb_s: float | None = Field(None, description="Bytes that the walk asks for ÷ time.")
    touched_gb_s: float | None = Field(None, description="Bytes of the lines that it touches ÷ time.")
    repetitions: int | None = None
