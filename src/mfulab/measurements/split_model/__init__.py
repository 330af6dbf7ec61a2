"""Row of a model whose layers are split over several ranks."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig, Dimension, ModelConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import OTHERS, Percent, Row, column, counter_column

Split = Literal["none", "tensor", "pipeline"]
NOT_PIPELINE = 1  # micro-batches of a step that is no pipeline


class SplitModelConfig(StepConfig):
    """Forward and backward of a model of linear layers on one rank, or split over several."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "split", "micro_batches")
    model: ModelConfig
    batch_size: Dimension = Field(
        8, description="Samples a step; of each micro-batch with gradient accumulation."
    )
    split: Split = Field(
        "pipeline",
        description="Whole model on one rank; a part of each matrix; or a part of the layers, in turn.",
    )
    split_ranks: int = Field(2, ge=2, le=64, description="Ranks over which a model is split.")
    micro_batches: int = Field(
        NOT_PIPELINE, ge=1, le=4096, description="Parts of a batch that a pipeline passes on."
    )
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED

    def conflicts(self) -> Iterator[str]:
        if self.micro_batches > 1 and self.split != "pipeline":
            yield f"micro_batches={self.micro_batches} with split={self.split}: only a pipeline has them"
        if self.batch_size % self.micro_batches:
            yield f"batch_size={self.batch_size} with micro_batches={self.micro_batches}: give a multiple"


class SplitRow(Row):
    """One way to split a model: time of a step, FLOPs, waiting and sent bytes of a rank."""

    model: str = Field("", description="Name of the model.")
    batch_size: int | None = column("Samples a step, all micro-batches together.")
    split: str = Field("", description="Way to split: none, tensor or pipeline.")
    ranks: int | None = column("Processes, each with a CPU core or a GPU of its own.")
    micro_batches: int | None = column("Parts of a batch that a pipeline passes on.")
    time_s: float | None = column(
        "Median time of forward and backward of the whole batch, of the slowest rank."
    )
    alone_s: float | None = counter_column("Median time of the same step on one of these ranks.")
    speedup: float | None = column("Time on one rank ÷ time of the step.")
    busy_s: float | None = column(
        "Median time of the busiest rank's own products, without neighbours."
    )
    idle_percent: float | None = column(
        "Share of the step beyond busy_s, waiting and sending; empty for one rank, and where busy_s"
        " is longer than the step."
    )
    predicted_idle_percent: float | None = column(
        "Bubble of a pipeline of p stages and m micro-batches: (p − 1) ÷ (m + p − 1)."
    )
    flops: int | None = column("FLOPs of the step, all ranks together.")
    rank_flops: int | None = column("FLOPs of the rank that computes most.")
    sent_bytes: float | None = column(
        "Bytes that a rank sends in a step, by the interface's count."
    )
    predicted_sent_bytes: float | None = column(
        "Bytes that a rank sends in a step, mean, predicted."
    )
    difference: float | None = column(
        "Largest difference of a gradient from the whole model's, relative to its largest."
    )
    other_processes_percent: Percent | None = OTHERS


MEASUREMENT = Measurement(
    "split",
    SplitModelConfig,
    SplitRow,
    "Splitting {wildcards.run}",
    "model split micro_batches ranks hardware status time_s speedup idle_percent predicted_idle_percent"
    " sent_bytes predicted_sent_bytes",
    position=35,
)
