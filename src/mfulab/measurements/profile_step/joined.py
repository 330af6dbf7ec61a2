"""Columns that the profile table has beyond its rows: values of the run's config, and what the join gives."""

from pydantic import BaseModel, Field

from mfulab.core import joined
from mfulab.core.joined import from_config, from_plan


class _Setting(BaseModel):
    flops_run: str | None = from_plan("Run of count_flops that counted the same model.")
    ceiling: str | None = from_plan("Ceiling of the run's format and threads.")
    mode: str | None = from_config("workload.mode")
    gradient_accumulation: int | None = from_config("workload.gradient_accumulation")
    checkpointing: bool | None = from_config("workload.checkpointing")
    teacher: str | None = from_config("workload.teacher")
    optimizer: str | None = from_config("workload.optimizer")
    optimizer_implementation: str | None = from_config("workload.optimizer_implementation")
    autograd: str | None = from_config("workload.autograd")
    attention: str | None = from_config("execution.attention")
    processes: int | None = from_config("parallel.processes")
    wrapper: str | None = from_config("parallel.wrapper")
    bucket_mb: int | None = from_config("parallel.bucket_mb")
    slowed_rank: int | None = from_config("parallel.slowed_rank")
    quantisation: str | None = from_config("execution.quantisation")
    pruning: str | None = from_config("model.pruning")
    pruned_share: float | None = from_config("model.pruned_share")
    input: str | None = from_config("workload.input")
    loader_source: str | None = from_config("workload.loader_source")
    loader_workers: int | None = from_config("workload.loader_workers")
    loader_prefetch: int | None = from_config("workload.loader_prefetch")
    loader_epoch: int | None = from_config("workload.loader_epoch")
    loader_persistent: bool | None = from_config("workload.loader_persistent")
    loader_pinned: bool | None = from_config("workload.loader_pinned")
    autocast: bool | None = from_config("precision.autocast")
    dtype: str | None = from_config("precision.dtype")


class _Useful(BaseModel):
    flops: float | None = Field(None, description="That the model needs for a step of all processes; attention full.")
    causal_flops: float | None = Field(None, description="The same, causal attention counted by its half.")
    executed_flops: float | None = Field(None, description="That a step executes, recomputation and teacher included.")
    tflop_s: float | None = Field(None, description="`flops` ÷ `time_s`.")
    mfu_spec_percent: float | None = Field(None, description="MFU against the spec peak.")
    mfu_max_clock_percent: float | None = Field(None, description="MFU against the peak at the highest clock allowed.")
    mfu_actual_clock_percent: float | None = Field(
        None, description="MFU against the spec peak at the mean clock of the windows."
    )
    mfu_measured_percent: float | None = Field(None, description="MFU against the best measured matmul.")
    mfu_percent: float | None = Field(
        None, description="Model FLOPs utilization: `flops` ÷ `time_s` ÷ the peak that `mfu_basis` names."
    )
    mfu_basis: str | None = Field(
        None, description="Peak under `mfu_percent`: `spec` on a GPU, `measured` on a CPU; empty without one."
    )
    mfu_ci_low_percent: float | None = Field(
        None, description="95 % confidence interval of `mfu_percent`, from those of time and ceiling."
    )
    mfu_ci_high_percent: float | None = Field(None, description="Upper end of the same interval.")
    mfu_causal_percent: float | None = Field(None, description="MFU of `causal_flops`.")
    hfu_percent: float | None = Field(
        None, description="Hardware FLOPs utilization: `executed_flops` ÷ `time_s` ÷ the same peak."
    )
    mbu_percent: float | None = Field(
        None,
        description="Memory bandwidth utilization: parameters and cache read ÷ `time_s` ÷ bandwidth; of inference.",
    )
    useful_mfu_percent: float | None = Field(None, description="MFU of the FLOPs that serve real tokens, no padding.")
    samples_per_s: float | None = Field(None, description="Samples of a step ÷ `time_s`.")
    tokens_per_s: float | None = Field(None, description="Tokens of a step ÷ `time_s`; of decoding the new ones.")
    key_value_cache_bytes: float | None = Field(
        None, description="Keys and values that a step of generation reads or makes."
    )
    bytes_moved: float | None = Field(
        None, description="Bytes that the counted operators of a step read and write, each operand once."
    )
    arithmetic_intensity: float | None = Field(None, description="`flops` ÷ `bytes_moved`, FLOPs a byte.")
    peak_precision: str | None = Field(None, description="Format whose ceiling stands under MFU.")
    ceiling_raised_percent: float | None = Field(
        None, description="Ceiling ÷ what its own sweep reached, where this run set it."
    )
    ceiling_slowdown: float | None = Field(
        None, description="The machine's slowdown while the ceiling was measured, where all its processes met one."
    )
    slower_than_fp32: float | None = Field(
        None, description="Time ÷ that of the same step in fp32, where the device emulates the format."
    )
    ceiling_tflop_s: float | None = Field(None, description="Best measured matmul in the format, of all devices.")
    peak_tflop_s: float | None = Field(None, description="Spec peak in the format, of all devices.")
    peak_clock_mhz: float | None = Field(None, description="Clock in the spec peak.")
    ceiling_gb_s: float | None = Field(None, description="Best measured memory bandwidth.")
    peak_gb_s: float | None = Field(None, description="Memory bandwidth by clock and width.")
    samples_per_j: float | None = Field(None, description="Samples a joule.")
    flops_per_j: float | None = Field(None, description="`flops` a joule.")
    predicted_memory_bytes: float | None = Field(None, description="Peak memory of the step, worked out, not measured.")
    roofline_time_s: float | None = Field(
        None, description="Least time that the measured roofline allows the matmuls, all else fused away."
    )
    unfused_roofline_time_s: float | None = Field(
        None, description="The same, every other operator reading and writing memory."
    )


class _Note(BaseModel):
    mfu_note: str | None = Field(None, description="Key of the sentence why MFU is empty or doubtful.")


class Joined(joined.Verdict, _Note, joined.Headroom, _Useful, _Setting, joined.Joined):
    """Config, MFU and its peaks, the roofline, the headroom, the verdict."""
