"""Configs of runs: closed and typed, every field with its unit and meaning.

A run's config is the part of the composed Hydra config that its step reads, so that runs which differ only in what a
step does not read share one measurement.
"""

from typing import ClassVar

from pydantic import Field

from mfulab.core.groups import Closed

SEED = Field(0, ge=0, le=(1 << 63) - 1, description="Of weights and inputs.")
REPLICATE = Field(1, ge=1, description="Which of the processes that measure the run, apart in time; planning sets it.")


class StepConfig(Closed):
    """The config of one step; its `axes` make a run's name; what is measured `on_device` stands below the device."""

    axes: ClassVar[tuple[str, ...]] = ()
    on_device: ClassVar[bool] = True
