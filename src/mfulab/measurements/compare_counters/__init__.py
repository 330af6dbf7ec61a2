"""FLOPs of a forward pass as other tools count them."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row, column, counter_column, json_column
from mfulab.measurements.count_flops import CountFlopsConfig

Counter = Literal["torch", "torch_profiler", "fvcore", "calflops", "ptflops", "thop", "deepspeed"]


class CompareCountersConfig(CountFlopsConfig):
    """A model's forward pass counted by another tool."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length", "counter")
    counter: Counter = Field("torch", description="Tool to compare with.")


class CounterRow(Row):
    """Another tool's count of one forward pass, compared with ours."""

    model: str = Field("", description="Name of the model.")
    batch_size: int | None = column(
        "Samples a step; of each micro-batch with gradient accumulation."
    )
    sequence_length: int | None = column("Tokens a sample; empty for images.")
    counter: str = Field("", description="Name of the other tool.")
    version: str | None = column("Version of the tool.")
    printed: float | None = column("Number that the tool prints.")
    printed_unit: str | None = column("FLOP, MAC, `MAC a sample`, or `MAC, called FLOP`.")
    flops: float | None = column("Number that the tool prints, in FLOPs of two a multiply-add.")
    reference_flops: int | None = counter_column(
        "FLOPs by mfulab's count, forward in evaluation mode."
    )
    deviation_percent: float | None = column("Deviation of flops from reference_flops.")
    explanation: str | None = column("Kinds of layers whose absence explains the number.")
    uncounted_operators: str | None = json_column(
        "operator that the tool says it passed over → calls."
    )


MEASUREMENT = Measurement(
    "counters",
    CompareCountersConfig,
    CounterRow,
    "Counting {wildcards.run}",
    "model counter version status printed printed_unit flops deviation_percent explanation",
    priority=10,
    position=80,
)
