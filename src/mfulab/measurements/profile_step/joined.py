"""Columns that the profile table adds to what was measured."""

from mfulab.core import columns
from mfulab.core.columns import of_config, of_link
from mfulab.core.rows import column


class Joined(columns.Verdict, columns.Headroom, columns.Work, columns.Joined):
    """Config, FLOPs, ceilings and MFU of one profiled step; percentages are never clipped at 100."""

    flops_run: str | None = of_link("The run of count_flops that its FLOPs come from.")
    ceiling: str | None = of_link("The ceiling of its precision, with its conditions.")
    mode: str | None = of_config("workload.mode")
    gradient_accumulation: int | None = of_config("workload.gradient_accumulation")
    checkpointing: bool | None = of_config("workload.checkpointing")
    teacher: str | None = of_config("workload.teacher")
    optimizer: str | None = of_config("workload.optimizer")
    optimizer_implementation: str | None = of_config("workload.optimizer_implementation")
    autograd: str | None = of_config("workload.autograd")
    attention: str | None = of_config("execution.attention")
    processes: int | None = of_config("parallel.processes")
    wrapper: str | None = of_config("parallel.wrapper")
    bucket_mb: int | None = of_config("parallel.bucket_mb")
    slowed_rank: int | None = of_config("parallel.slowed_rank")
    quantisation: str | None = of_config("execution.quantisation")
    pruning: str | None = of_config("model.pruning")
    pruned_share: float | None = of_config("model.pruned_share")
    input: str | None = of_config("workload.input")
    loader_source: str | None = of_config("workload.loader_source")
    loader_workers: int | None = of_config("workload.loader_workers")
    loader_prefetch: int | None = of_config("workload.loader_prefetch")
    loader_epoch: int | None = of_config("workload.loader_epoch")
    loader_persistent: bool | None = of_config("workload.loader_persistent")
    loader_pinned: bool | None = of_config("workload.loader_pinned")
    autocast: bool | None = of_config("precision.autocast")
    dtype: str | None = of_config("precision.dtype")
    flops: float | None = column("What the model needs for the step, of all its processes.")
    causal_flops: float | None = column("The same, causal attention counted by its half.")
    executed_flops: float | None = column("What ran, recomputation included.")
    mfu_spec_percent: float | None = column("MFU of the computed peak at its own clock.")
    mfu_max_clock_percent: float | None = column("MFU of that peak at the device's highest clock.")
    mfu_actual_clock_percent: float | None = column("MFU of that peak at the mean clock of the step.")
    mfu_measured_percent: float | None = column("MFU of the best matmul measured on the device.")
    mfu_percent: float | None = column("MFU: FLOPs that the model needs ÷ time ÷ peak by `mfu_basis`.")
    mfu_basis: str | None = column("`spec` on a GPU, `measured` on a CPU.")
    mfu_ci_low_percent: float | None = column("95 % confidence interval of MFU, lower end.")
    mfu_ci_high_percent: float | None = column("95 % confidence interval of MFU, upper end.")
    mfu_causal_percent: float | None = column("MFU with causal attention counted by its half.")
    hfu_percent: float | None = column("HFU: FLOPs that ran ÷ time ÷ peak.")
    mbu_percent: float | None = column("Of inference: weights and cache read ÷ time ÷ bandwidth.")
    useful_mfu_percent: float | None = column("MFU of the FLOPs that serve real tokens.")
    samples_per_s: float | None = column("Samples of all processes ÷ time.")
    tokens_per_s: float | None = column("Tokens of all processes ÷ time.")
    key_value_cache_bytes: float | None = column("Keys and values that generation reads or makes.")
    bytes_moved: float | None = column(
        "Operands of the counted operators, each once, in its format; quantised weights as they lie."
    )
    peak_precision: str | None = column("The format whose ceiling MFU divides by.")
    ceiling_raised_percent: float | None = column("This run's speed ÷ the measured ceiling, where it was faster.")
    ceiling_slowdown: float | None = column(
        "The probe ÷ its best while the ceiling was measured, where all its processes were disturbed."
    )
    slower_than_fp32: float | None = column("Time ÷ that of the same step in fp32, of an emulated format.")
    ceiling_tflop_s: float | None = column("Best matmul measured in that format, of all its devices.")
    peak_clock_mhz: float | None = column("The clock in the computed peak.")
    ceiling_gb_s: float | None = column("Memory bandwidth measured, of all its devices.")
    peak_gb_s: float | None = column("Memory bandwidth by clock and bus width.")
    samples_per_j: float | None = column("Samples ÷ energy.")
    flops_per_j: float | None = column("FLOPs that the model needs ÷ energy.")
    module_times: str | None = column("JSON: of each module by class its depth, calls, ms and FLOPs a step, MFU in %.")
    predicted_memory_bytes: float | None = column("Peak of a pretended allocator; empty if uncounted.")
    roofline_time_s: float | None = column(
        "Least time of the matmuls by measured roofline; not with checkpointing or quantised weights."
    )
    unfused_roofline_time_s: float | None = column("The same with every other operator reading and writing memory.")
