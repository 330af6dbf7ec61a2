"""Groups of the config (model, workload, precision, …): typed, without unknown keys, each field
with its unit and meaning."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mfulab.core.formats import BY_DTYPE, ELEMENT_BYTES, FORMATS, Format

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]


class Closed(BaseModel):
    """A config model that rejects unknown keys, infinity and NaN, and `true` where a number
    belongs."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, allow_inf_nan=False, defer_build=True
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: pydantic.ValidationInfo) -> object:
        if isinstance(value, bool) and bool not in _kinds(
            cls.model_fields[info.field_name or ""].annotation
        ):
            raise ValueError("give a value, not true or false")
        return value

    @pydantic.model_validator(mode="after")
    def _goes_together(self) -> Self:
        for reason in self.conflicts():
            raise ValueError(reason)
        return self

    def conflicts(self) -> Iterator[str]:
        """Yields reasons why the values do not fit together; the first one is reported."""
        yield from ()


def _kinds(annotation: object) -> set[object]:
    return {annotation}.union(*map(_kinds, get_args(annotation)))


MOST = (1 << 31) - 1  # of any length, count or size: kernels index by int32
Dimension = Annotated[int, Field(gt=0, le=MOST)]


def _of_formats(peaks: dict[str, float]) -> dict[str, float]:
    for name in peaks:
        if name not in ELEMENT_BYTES:
            raise ValueError(f"{name}: no number format. Choices: {', '.join(ELEMENT_BYTES)}")
    return peaks


Peaks = Annotated[dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]], AfterValidator(_of_formats)]
SIZE = "`N` for N×N×N, `MxNxK` for C[M,N] = A[M,K]·B[K,N], `BxMxNxK` for a batch of B."
Size = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(pattern=r"^[1-9]\d{0,9}(x[1-9]\d{0,9}){0,3}$"),
]
SLUG = r"[a-z0-9][a-z0-9-]{0,99}"  # the name of a device's folder


class ModelConfig(Closed):
    """One model: how to build it, and its inputs."""

    name: Name
    target: str = Field(
        alias="_target_", description="Dotted path of a callable that returns a torch.nn.Module."
    )
    arguments: dict[str, Any] = Field({}, description="Keyword arguments of the callable.")
    task: Literal["classification", "language_modeling"] = Field(
        "classification", description="Sets inputs and loss."
    )
    input_shape: list[Dimension] | None = Field(
        None,
        min_length=1,
        description="Shape of a float sample: [channels, height, width] for images.",
    )
    inputs: dict[str, Annotated[list[Dimension], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="Shape of each named input, which the model takes as keywords; instead of input_shape.",
    )
    input_vocabularies: dict[str, Dimension] = Field(
        {}, description="Number of token ids of each named input that takes ids instead of floats."
    )
    sequence_length: Dimension | None = Field(
        None, description="Tokens a sample where none is asked for."
    )
    vocabulary_size: Dimension | None = Field(
        None, description="Number of token ids; random ids are drawn below it."
    )
    pruning: Literal["none", "masked", "structured", "two_of_four"] = Field(
        "none",
        description="Pruning of linear layers: weights zeroed, hidden units removed, or two of each four weights kept.",
    )
    pruned_share: float = Field(
        0.0, ge=0, lt=1, description="Share of weights or units removed; two_of_four: half."
    )

    def conflicts(self) -> Iterator[str]:
        given = [self.input_shape, self.vocabulary_size, self.inputs]
        if len(given) - given.count(None) != 1:
            yield (
                "give input_shape (float inputs), vocabulary_size with sequence_length (token inputs),"
                " or inputs (several by name)"
            )
        for name in self.input_vocabularies:
            if name not in (self.inputs or {}):
                yield f"input_vocabularies.{name}: give its shape, inputs.{name}"
        if self.vocabulary_size is not None and self.sequence_length is None:
            yield "token inputs need sequence_length"
        if self.pruning == "none" and self.pruned_share:
            yield f"pruned_share={self.pruned_share} with pruning=none: masked, structured or two_of_four"
        if self.pruning == "two_of_four" and self.pruned_share != 0.5:
            yield f"pruned_share={self.pruned_share} with pruning=two_of_four: give 0.5, two of four"

    @property
    def sample_shape(self) -> list[int]:
        """Shape of a float sample: `input_shape`, or one row of all named inputs; empty for
        tokens."""
        if self.inputs is None:
            return [*(self.input_shape or ())]
        return [sum(math.prod(shape) for shape in self.inputs.values())]

    def sample_bytes(self, sequence_length: int | None = None) -> int:
        """Bytes of one sample in a file: one per float input, or 2 or 4 per token id, depending on
        the vocabulary."""
        if self.vocabulary_size is None:
            return math.prod(self.sample_shape)
        token_bytes = 2 if self.vocabulary_size <= 1 << 16 else 4
        return (sequence_length or self.sequence_length or 1) * token_bytes


LONGEST_S = 31 * 86_400.0  # of any time in the config: a month
LEAKED_STEPS = 8
"""Steps whose graphs `autograd=leaked` keeps: enough to see memory grow, bounded for a long run."""


class WorkloadConfig(Closed):
    """Work that one step does with the model."""

    name: Name
    mode: Literal["training", "inference", "prefill", "decoding"] = Field(
        "training",
        description="Kind of step; prefill: a prompt's keys, values, next token; decoding: one token more.",
    )
    optimizer: Literal["adam", "adamw", "sgd"] = Field(
        "adam", description="Algorithm that updates the parameters."
    )
    optimizer_implementation: Literal["default", "for_loop", "foreach", "fused"] = Field(
        "default",
        description="Update of one parameter after the other, all at once, or in one kernel; default: torch's choice.",
    )
    learning_rate: float = Field(1e-3, gt=0, le=1e38, description="Learning rate of the optimiser.")
    learning_rate_schedule: Literal["constant", "cosine"] = Field(
        "constant", description="Learning rate's course."
    )
    gradient_accumulation: int = Field(
        1, ge=1, le=MOST, description="Micro-batches of batch_size samples a step."
    )
    gradient_clipping: float | None = Field(
        None, gt=0, le=1e30, description="Maximum gradient norm; empty: none."
    )
    checkpointing: bool = Field(False, description="Recompute activations in the backward pass.")
    teacher: Literal["none", "online", "cached"] = Field(
        "none",
        description="Distillation from a frozen model of the same architecture, run in each step or before.",
    )
    input: Literal["device", "host"] = Field(
        "device", description="One batch on the device, or new from a DataLoader."
    )
    loader_workers: int = Field(
        0, ge=0, le=1024, description="Worker processes of the DataLoader; 0: none."
    )
    loader_source: Literal["random", "decode", "digits", "file"] = Field(
        "random",
        description="Samples drawn at random, decoded from JPEG, 1,797 real digits, or of a memory-mapped file.",
    )
    loader_file: str | None = Field(
        None, description="File of images' bytes or token ids; empty: made for the run."
    )
    loader_prefetch: int | None = Field(
        None, ge=1, le=1024, description="Batches that a worker holds ready; empty: 2."
    )
    loader_epoch: int | None = Field(
        None, ge=1, le=MOST, description="Batches of an epoch; empty: without end."
    )
    loader_persistent: bool = Field(
        False, description="Keep the workers from one epoch to the next."
    )
    loader_pinned: bool | None = Field(
        None, description="Copy to a GPU from page-locked memory; empty: yes."
    )
    autograd: Literal["no_grad", "inference_mode", "recorded", "leaked"] = Field(
        "no_grad",
        description=f"Graph in inference: none, an unneeded one, or those of {LEAKED_STEPS} steps kept.",
    )

    def conflicts(self) -> Iterator[str]:
        for key, value in (
            ("prefetch", self.loader_prefetch),
            ("persistent", self.loader_persistent),
        ):
            if value and not self.loader_workers:
                shown = str(value).lower()
                yield f"loader_{key}={shown} with loader_workers=0: only processes prefetch and persist"
        if self.loader_file is not None and self.loader_source != "file":
            yield f"loader_file={self.loader_file} with loader_source={self.loader_source}: give file"
        if self.teacher != "none" and self.mode != "training":
            yield f"teacher={self.teacher} with mode={self.mode}: only training is distilled"
        if self.teacher == "cached" and self.input == "host":
            yield "teacher=cached with input=host: outputs are kept for the batch on the device; use online"
        if self.mode in ("prefill", "decoding") and self.input == "host":
            yield f"input=host with mode={self.mode}: the next token comes from the model, not from a DataLoader"
        if self.autograd != "no_grad" and self.mode != "inference":
            yield f"autograd={self.autograd} with mode={self.mode}: only for mode=inference"


class PrecisionConfig(Closed):
    """The number format that multiplications are asked to use."""

    name: Name
    dtype: Literal[*BY_DTYPE] = Field(description="Number format in memory.")  # type: ignore[valid-type]
    tf32: bool = Field(False, description="Allow TF32 tensor cores for float32 matmuls (GPU).")
    autocast: bool = Field(
        False, description="Keep float32 parameters; cast inside torch.autocast."
    )

    @property
    def form(self) -> Format:
        """The requested number format."""
        if self.tf32:
            return FORMATS["tf32"]
        return BY_DTYPE[self.dtype]


class ExecutionConfig(Closed):
    """Execution mode of the model's operations."""

    name: Name
    mode: Literal[
        "eager",
        "trace",
        "script",
        "compile",
        "cuda_graph",
        "jax",
        "tensorflow_eager",
        "tensorflow_function",
        "onnxruntime",
    ] = Field("eager", description="Way to issue operations: by torch, or by another framework.")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = Field(
        "default", description="torch.compile's mode."
    )
    quantisation: Literal["none", "dynamic_int8", "static_int8", "weight_int8", "weight_int4"] = (
        Field(
            "none",
            description="Quantised linear layers: activations, ranges found in each call or before, or weights alone.",
        )
    )
    dynamic: bool | None = Field(
        None,
        description="One graph of torch.compile for all shapes, or one for each; empty: for all once one changed.",
    )
    attention: Literal["default", "math", "flash", "efficient", "cudnn"] = Field(
        "default",
        description="Backend of scaled_dot_product_attention; default: torch's choice for each call.",
    )
    channels_last: bool = Field(False, description="Lay images out with channels last.")
    cache: Literal["dynamic", "static"] = Field(
        "dynamic",
        description="Keys and values in decoding: copied as they grow, or in memory set aside beforehand.",
    )

    @property
    def multiplies_integers(self) -> bool:
        """True if linear layers multiply int8, whatever the format of the weights was."""
        return self.quantisation in ("dynamic_int8", "static_int8")

    @property
    def replays(self) -> bool:
        """True if a GPU's later steps replay CUDA graphs, during which nothing is allocated."""
        return self.mode == "cuda_graph" or (
            self.mode == "compile" and self.compile_mode != "default"
        )


class KernelConfig(Closed):
    """One matmul implementation."""

    name: Name
    target: str = Field(
        alias="_target_", description="Dotted path of a mfulab.kernels.base.MatmulKernel."
    )
    block: list[Dimension] | None = Field(
        None, min_length=1, description="Thread block or tile; empty: chosen."
    )


class DeviceConfig(Closed):
    """Device to measure."""

    name: Name = "auto"
    type: str = Field(
        "auto",
        description="`auto`: the GPU that CUDA or HIP sees, else the CPU; `mps`: Apple's GPU.",
    )
    threads: int | None = Field(
        None, ge=1, le=4096, description="CPU threads; empty: one per allowed physical core."
    )
    peak_tflop_s: Peaks = Field(
        {}, description="Dense peak, TFLOP/s, by number format for a device not known here."
    )


class TimingConfig(Closed):
    """Length of the measurement. Empty keys take the device's default: short on a CPU, 5 s in all
    if energy is read."""

    windows: int | None = Field(
        None, ge=2, le=100_000, description="Measured windows of each process."
    )
    window_time_s: float | None = Field(
        None, gt=0, le=LONGEST_S, description="Shortest length of a measured window."
    )
    warm_up_time_s: float | None = Field(
        None, gt=0, le=LONGEST_S, description="Longest warm-up; steadiness ends it."
    )
    relative_precision: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Relative half-width of the interval at which further windows and processes are left out.",
    )
    patience_s: float | None = Field(
        None,
        ge=0,
        le=LONGEST_S,
        description="Longest time of further windows, where some were disturbed or the precision is not reached.",
    )
    time_limit_s: float = Field(
        600, gt=0, le=LONGEST_S, description="Longest run; a longer one becomes a failed row."
    )

    def conflicts(self) -> Iterator[str]:
        if self.relative_precision is not None and self.patience_s == 0:
            yield f"relative_precision={self.relative_precision:g} with patience_s=0: no further window may follow"


class ProfileConfig(Closed):
    """Passes in addition to the timed one, each run separately."""

    operators: bool = Field(True, description="Table of operators from a separate traced pass.")
    trace: bool = Field(False, description="Keep the Chrome / Perfetto trace of the traced pass.")
    exact: bool = Field(
        False, description="Compare output or losses with those of the same model in float64."
    )
    losses: int = Field(
        0, ge=0, le=1000, description="Number of first training steps whose losses are kept."
    )
    varied_batches: int = Field(
        0, ge=0, le=100, description="Calls with other batch sizes; compilations counted."
    )


class TraceConfig(Closed):
    """One profiler trace: its name, its path and a digest of its content."""

    name: Name
    path: str = Field(description="Path of the file, *.json or *.json.gz.")
    digest: str = Field(description="SHA-256 of the file: a changed one is read anew.")


class ParallelConfig(Closed):
    """Data parallelism: processes that train one model together, each with its own batch and
    device."""

    processes: int = Field(
        1, ge=1, le=64, description="Processes, each on its own cores of a CPU or its own GPU."
    )
    nodes: int = Field(
        1,
        ge=1,
        le=64,
        description="Machines of a SLURM job over which processes are spread evenly.",
    )
    wrapper: Literal["ddp", "fsdp2"] = Field(
        "ddp", description="DistributedDataParallel, or fully_shard by block."
    )
    bucket_mb: int = Field(
        25, gt=0, le=1 << 20, description="Bucket of DDP, MiB, in which gradients are summed up."
    )
    slowed_rank: int | None = Field(
        None, ge=0, description="Rank that sleeps in each step, to see who waits for whom."
    )

    def conflicts(self) -> Iterator[str]:
        if self.slowed_rank is not None and self.slowed_rank >= self.processes:
            yield f"slowed_rank={self.slowed_rank}: ranks are counted from 0 to processes - 1"
        if self.processes % self.nodes:
            yield f"nodes={self.nodes} with processes={self.processes}: each node takes equally many"
