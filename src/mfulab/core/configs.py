"""Configs of runs. Each holds only what its measurement reads; combinations that differ elsewhere
are the same run."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, model_validator

from mfulab.core import groups
from mfulab.core.rows import column

SEED = Field(0, ge=0, le=(1 << 63) - 1, description="Seed of weights and inputs.")
REPLICATE = Field(
    1, ge=1, description="Number of the process among those that measure the run; planning sets it."
)


class StepConfig(groups.Closed):
    """Config of one measurement. `axes` are the keys that make up a run's name; `on_device` is True
    if its result depends on the machine."""

    axes: ClassVar[tuple[str, ...]] = ()
    on_device: ClassVar[bool] = True

    def missing(self) -> Iterator[str]:
        """Yields what this machine lacks for a run. A result from another machine is valid
        nonetheless."""
        yield from ()


class CountedConfig(StepConfig):
    """A model and the size of one batch: all that determines the FLOPs of a step."""

    model: groups.ModelConfig
    batch_size: groups.Dimension = Field(
        8, description="Samples a step; of each micro-batch with gradient accumulation."
    )
    sequence_length: groups.Dimension | None = column("Tokens a sample; empty: the model's own.")

    @model_validator(mode="after")
    def _sequence_only_for_tokens(self) -> "CountedConfig":
        length = None
        if self.model.vocabulary_size is not None:
            length = self.sequence_length or self.model.sequence_length
        self.sequence_length = length
        return self


class ModelStepConfig(CountedConfig):
    """One step of a model on a device: training, inference or decoding, its precision and its
    execution."""

    workload: groups.WorkloadConfig
    precision: groups.PrecisionConfig
    execution: groups.ExecutionConfig
    device: groups.DeviceConfig = groups.DeviceConfig()
    parallel: groups.ParallelConfig = groups.ParallelConfig()
    seed: int = SEED


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, copying each mapping on the way because other combinations share them."""
    *path, last = key.split(".")
    for part in path:
        content[part] = dict(content[part])
        content = content[part]
    content[last] = value
