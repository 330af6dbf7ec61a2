"""FLOPs of a forward pass as other tools count them."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row
from mfulab.measurements.count_flops import CountFlopsConfig


class CompareCountersConfig(CountFlopsConfig):
    """A model's forward pass counted by another tool."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length", "counter")
    counter: Literal["torch", "fvcore", "calflops", "ptflops", "thop", "deepspeed"] = Field(
        description="The other tool."
    )


class CounterRow(Row):
    """Another tool's count of one forward pass, beside our own."""

    model: str = Field("", description="Name of the model.")
    batch_size: int | None = Field(None, description="Samples of one call of the model.")
    sequence_length: int | None = Field(None, description="Tokens of a sample; empty for models that take none.")
    counter: str = Field("", description="Name of the counter.")
    version: str | None = Field(None, description="Of the tool.")
    printed: float | None = Field(None, description="The tool's own number.")
    printed_unit: str | None = Field(None, description="FLOP, MAC, `MAC a sample`, or `MAC, called FLOP`.")
    flops: float | None = Field(None, description="The same in FLOPs of two a multiply-add.")
    reference_flops: int | None = Field(None, description="Our count, forward in evaluation mode.")
    deviation_percent: float | None = Field(None, description="Of flops from reference_flops.")
    explanation: str | None = Field(None, description="Kinds of layers whose absence explains the number.")
    uncounted_operators: str | None = Field(None, description="JSON: what the tool says it passed over → calls.")


MEASUREMENT = Measurement(
    "counters",
    CompareCountersConfig,
    CounterRow,
    "Counting {wildcards.run}",
    "model counter version status printed printed_unit flops deviation_percent explanation",
    priority=10,
    position=80,
)
