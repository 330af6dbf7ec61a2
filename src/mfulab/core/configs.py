"""Configs of runs, closed and typed, of what a measurement reads: runs that differ in the rest are one."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.groups import Closed

SEED = Field(0, ge=0, le=(1 << 63) - 1, description="Seed of weights and inputs.")
REPLICATE = Field(1, ge=1, description="Number of the process among those that measure the run; planning sets it.")


class StepConfig(Closed):
    """The config of one measurement; its `axes` make a run's name; `on_device`: its runs belong to one machine."""

    axes: ClassVar[tuple[str, ...]] = ()
    on_device: ClassVar[bool] = True
