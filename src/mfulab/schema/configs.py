"""Configs of runs: closed and typed, every field with its unit and meaning.

A run's config is the part of the composed Hydra config that its step reads, so that runs which differ only in what a
step does not read share one measurement.
"""

import contextlib
import hashlib
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mfulab.schema.groups import (
    MOST,
    SIZE,
    Closed,
    DeviceConfig,
    Dimension,
    ExecutionConfig,
    KernelConfig,
    ModelConfig,
    Name,
    ParallelConfig,
    Peaks,
    PrecisionConfig,
    ProfileConfig,
    Size,
    TimingConfig,
    TraceConfig,
    WorkloadConfig,
)

SEED = Field(0, ge=0, le=(1 << 63) - 1, description="Of weights and inputs.")
REPLICATE = Field(1, ge=1, description="Which of the processes that measure the run, apart in time; planning sets it.")


class StepConfig(Closed):
    """The config of one step; its `axes` make a run's name; what is measured `on_device` stands below the device."""

    axes: ClassVar[tuple[str, ...]] = ()
    on_device: ClassVar[bool] = True


class EnvironmentConfig(StepConfig):
    """The machine: device, system and packages."""

    device: DeviceConfig = DeviceConfig()


class CeilingsConfig(StepConfig):
    """One ceiling: the best GEMM in one precision, or the memory bandwidth."""

    axes: ClassVar[tuple[str, ...]] = ("ceiling",)
    ceiling: Name = Field(description="The name of a precision, or `memory`.")
    precision: PrecisionConfig | None = Field(None, description="Empty for `memory`.")
    device: DeviceConfig = DeviceConfig()
    replicate: int = REPLICATE


class CountFlopsConfig(StepConfig):
    """FLOPs of a model's step, counted once for every precision, workload, execution and device."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length")
    on_device: ClassVar[bool] = False
    model: ModelConfig
    batch_size: Dimension = Field(description="Samples a step; of each micro-batch with gradient accumulation.")
    sequence_length: Dimension | None = Field(None, description="Tokens a sample; empty: the model's own.")

    @model_validator(mode="after")
    def _sequence_only_for_tokens(self) -> "CountFlopsConfig":
        length = None if self.model.vocabulary_size is None else self.sequence_length or self.model.sequence_length
        self.sequence_length = length
        return self


class CompareCountersConfig(CountFlopsConfig):
    """A model's forward pass counted by another tool."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length", "counter")
    counter: Literal["torch", "fvcore", "calflops", "ptflops", "thop", "deepspeed"] = Field(
        description="The other tool."
    )


class ProfileStepConfig(CountFlopsConfig):
    """One step of a model: of training, inference or decoding."""

    on_device: ClassVar[bool] = True
    axes: ClassVar[tuple[str, ...]] = (
        "model",
        "workload",
        "batch_size",
        "sequence_length",
        "precision",
        "execution",
    )
    workload: WorkloadConfig
    precision: PrecisionConfig
    execution: ExecutionConfig
    device: DeviceConfig = DeviceConfig()
    timing: TimingConfig = TimingConfig()
    profile: ProfileConfig = ProfileConfig()
    parallel: ParallelConfig = ParallelConfig()
    seed: int = SEED
    replicate: int = REPLICATE

    @model_validator(mode="after")
    def _several_processes_train(self) -> "ProfileStepConfig":
        if self.parallel.processes > 1 and self.workload.mode != "training":
            raise ValueError(
                f"parallel.processes={self.parallel.processes} with mode={self.workload.mode}: only training"
            )
        if self.parallel.processes > 1 and self.workload.loader_workers:
            raise ValueError(
                f"parallel.processes={self.parallel.processes} with workload.loader_workers="
                f"{self.workload.loader_workers}: ranks start no processes of their own"
            )
        return self

    @model_validator(mode="after")
    def _quantised_models_are_not_trained(self) -> "ProfileStepConfig":
        if self.execution.quantisation != "none" and self.workload.mode == "training":
            raise ValueError(f"execution.quantisation={self.execution.quantisation} with mode=training: only inference")
        return self

    @model_validator(mode="after")
    def _pruned_models_are_not_trained(self) -> "ProfileStepConfig":
        if self.model.pruning != "none" and self.workload.mode == "training":
            raise ValueError(f"model.pruning={self.model.pruning} with mode=training: only inference")
        return self

    @model_validator(mode="after")
    def _file_holds_a_sample(self) -> "ProfileStepConfig":
        named = self.workload.loader_file
        if named is None:
            return self
        if not Path(named).is_file():
            raise ValueError(f"workload.loader_file={named}: no such file")
        each, found = self.model.sample_bytes(self.sequence_length), Path(named).stat().st_size
        if found < each:
            raise ValueError(f"workload.loader_file={named}: {found} bytes, and one sample takes {each}")
        return self


class BenchMatmulConfig(StepConfig):
    """One matmul by one implementation."""

    axes: ClassVar[tuple[str, ...]] = ("kernel", "size", "precision")
    kernel: KernelConfig
    size: Size = Field(description=SIZE)
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    timing: TimingConfig = TimingConfig()
    first_calls: int | None = Field(
        None, ge=2, le=1000, description="Calls timed together from the first on, as by a script without warm-up."
    )
    seed: int = SEED
    replicate: int = REPLICATE

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k)."""
        sides = [int(side) for side in self.size.split("x")]
        match sides:
            case [n]:
                return (1, n, n, n)
            case [m, n, k]:
                return (1, m, n, k)
            case [batch, m, n, k]:
                return (batch, m, n, k)
        raise ValueError(f"size={self.size}: give N, MxNxK or BxMxNxK")


class ReadUtilizationConfig(StepConfig):
    """A load of known utilization, and how often its device is asked."""

    axes: ClassVar[tuple[str, ...]] = ("load", "polling_period_s", "precision")
    load: Literal["idle", "spin_one", "copies", "duty_25", "duty_50", "duty_75", "padded", "steady", "bursty"] = Field(
        description="Nothing; a core or SM spinning; a thread copying; matmuls for so much of the time; half padding."
    )
    polling_period_s: float = Field(0.2, ge=1e-3, le=60, description="Seconds between two single readings.")
    load_time_s: float = Field(4.0, gt=0, le=600, description="Length of the loop.")
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class ProbeMemoryConfig(StepConfig):
    """One working set, walked in one order."""

    axes: ClassVar[tuple[str, ...]] = ("pattern", "working_set_bytes")
    pattern: Literal["sequential", "strided", "random", "rows", "columns", "host"] = Field(
        description="In order; one element a line; a pointer chase; a matrix by rows, by columns; a copy to the GPU."
    )
    working_set_bytes: int = Field(ge=1024, le=1 << 36, description="How much memory is walked through.")
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class ReadTraceConfig(StepConfig):
    """One trace that torch.profiler wrote somewhere, read."""

    axes: ClassVar[tuple[str, ...]] = ("trace", "trace_range")
    on_device: ClassVar[bool] = False
    trace: TraceConfig
    trace_range: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of the run of consecutive steps, if a trace holds several; empty: the first.",
    )
    trace_steps: Dimension | None = Field(None, description="Steps in a trace without ProfilerStep spans.")
    trace_peaks: Peaks = Field({}, description="Dense peaks by format in TFLOP/s, of a device that is not known here.")


class NumberFormatsConfig(StepConfig):
    """One number format: its parts, and what rounding does in it."""

    axes: ClassVar[tuple[str, ...]] = ("precision",)
    on_device: ClassVar[bool] = False
    precision: PrecisionConfig
    sum_length: int = Field(
        4096, ge=2, le=1 << 24, description="Numbers a sum; fewer where their sum would leave the format's range."
    )
    seed: int = SEED


PUBLISHED = Path("results/reference/published")
"""Public runs, one CSV a collection, one line a run with its source."""


class PublishedConfig(StepConfig):
    """One collection of public runs, their FLOPs counted here."""

    axes: ClassVar[tuple[str, ...]] = ("published",)
    on_device: ClassVar[bool] = False
    published: Name = Field(description="A collection: the name of a file in results/reference/published/.")
    digest: str = Field("", description="Of that file, so that edited lines are computed anew.")

    @model_validator(mode="after")
    def _knows_its_file(self) -> "PublishedConfig":
        path = PUBLISHED / f"{self.published}.csv"
        if not path.exists():
            choices = ", ".join(sorted(each.stem for each in PUBLISHED.glob("*.csv")))
            raise ValueError(f"published={self.published}: unknown. Choices: {choices or f'none in {PUBLISHED}/'}")
        self.digest = self.digest or hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return self


AUDITED = {  # libraries with a table of peaks, each by what pip calls it, here or as part of another
    "torch_inductor": ("torch",),
    "lightning": ("pytorch-lightning", "lightning-fabric", "lightning"),
    "triton_proton": ("triton",),
    "torchtitan": ("torchtitan",),
    "composer": ("mosaicml",),
}


def installed_version(library: str) -> str | None:
    """The version of an audited library, without importing it; None if it is not installed."""
    for distribution in AUDITED[library]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


class PeaksAuditConfig(StepConfig):
    """The peaks that one other library takes, held against ours."""

    axes: ClassVar[tuple[str, ...]] = ("library",)
    on_device: ClassVar[bool] = False
    library: Literal["torch_inductor", "lightning", "triton_proton", "torchtitan", "composer"] = Field(
        description="The other library."
    )
    installed: str = Field("", description="Its version, so that the next release is audited anew.")

    @model_validator(mode="after")
    def _knows_its_version(self) -> "PeaksAuditConfig":
        self.installed = self.installed or installed_version(self.library) or "none"
        return self
