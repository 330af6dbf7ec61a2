"""Row of a model that answers waiting requests in batches."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import MOST, DeviceConfig, Dimension, ModelConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import OTHERS, Percent, Row, column, counter_column


class ServeRequestsConfig(StepConfig):
    """Requests that arrive at random times, and the batches in which a model answers them."""

    axes: ClassVar[tuple[str, ...]] = ("model", "offered_load", "largest_batch", "longest_wait_ms")
    model: ModelConfig
    sequence_length: Dimension | None = column("Tokens a request; empty: the model's own.")
    offered_load: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="Requests a second, in multiples of what the model answers one by one.",
    )
    largest_batch: int = Field(
        16, ge=1, le=4096, description="Requests that are answered together at most."
    )
    longest_wait_ms: float = Field(
        0.0,
        ge=0,
        le=60_000,
        description="Time that the first of a batch waits for others, at most; 0: takes what is there.",
    )
    requests: int = Field(400, ge=2, le=MOST, description="Requests that arrive.")
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class ServingRow(Row):
    """One model under one load: latencies from arrival to answer, and the batches that were
    formed."""

    model: str = Field("", description="Name of the model.")
    offered_load: float | None = column(
        "Requests a second that arrive ÷ those that the model answers one by one."
    )
    largest_batch: int | None = column("Requests that are answered together at most.")
    longest_wait_ms: float | None = column("Time that the first of a batch waits for others.")
    requests: int | None = column("Requests that arrived and were answered.")
    answered_per_s: float | None = column(
        "Requests ÷ time from the first arrival to the last answer."
    )
    latency_p50_s: float | None = column("Median time from a request's arrival to its answer.")
    latency_p95_s: float | None = column("95th percentile of that time.")
    mean_batch: float | None = column("Requests ÷ batches.")
    batches: int | None = column("Batches that were answered.")
    serving_percent: Percent | None = column("Share of the time in which a batch was computed.")
    alone_s: float | None = counter_column("Median time of a batch of one, before requests arrive.")
    largest_s: float | None = counter_column(
        "Median time of the largest batch, before requests arrive."
    )
    other_processes_percent: Percent | None = OTHERS


MEASUREMENT = Measurement(
    "serving",
    ServeRequestsConfig,
    ServingRow,
    "Serving {wildcards.run}",
    "model offered_load largest_batch longest_wait_ms hardware status answered_per_s latency_p50_s"
    " latency_p95_s mean_batch serving_percent",
    position=45,
)
