"""Columns that the profile table adds to the measured ones."""

from mfulab.core import columns
from mfulab.core.columns import of_config, of_link
from mfulab.core.rows import column, counter_column, json_column


class Joined(columns.VerdictColumns, columns.BudgetColumns, columns.WorkColumns, columns.Joined):
    """Config, FLOPs, ceilings and MFU of one profiled step. Percentages may exceed 100."""

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
    flops: float | None = column("FLOPs that the model needs for the step, all processes together.")
    causal_flops: float | None = column(
        "FLOPs that the model needs, causal attention counted by its half."
    )
    executed_flops: float | None = column("FLOPs that ran, recomputation included.")
    mfu_spec_percent: float | None = column("MFU against the computed peak at its own clock.")
    mfu_max_clock_percent: float | None = column(
        "MFU against the computed peak at the device's highest clock."
    )
    mfu_actual_clock_percent: float | None = column(
        "MFU against the computed peak at the mean clock of the step."
    )
    mfu_measured_percent: float | None = column(
        "MFU against the best matmul measured on the device."
    )
    mfu_percent: float | None = column(
        "MFU: FLOPs that the model needs ÷ time ÷ peak by `mfu_basis`."
    )
    mfu_basis: str | None = column(
        "Peak that mfu_percent divides by: `spec` on a GPU, `measured` on a CPU."
    )
    mfu_ci_low_percent: float | None = counter_column("95 % confidence interval of MFU, lower end.")
    mfu_ci_high_percent: float | None = counter_column(
        "95 % confidence interval of MFU, upper end."
    )
    hfu_percent: float | None = column("HFU: FLOPs that ran ÷ time ÷ peak.")
    mbu_percent: float | None = column(
        "MBU of inference: weights and cache read ÷ time ÷ bandwidth."
    )
    useful_mfu_percent: float | None = column("MFU of the FLOPs that serve real tokens.")
    samples_per_s: float | None = column("Samples of all processes ÷ time.")
    tokens_per_s: float | None = column("Tokens of all processes ÷ time.")
    key_value_cache_bytes: float | None = column("Keys and values that generation reads or makes.")
    bytes_moved: float | None = column(
        "Operands of counted operators, once each; quantised weights as stored."
    )
    peak_precision: str | None = column("Number format whose ceiling MFU divides by.")
    ceiling_raised_percent: float | None = counter_column(
        "Speed of this run ÷ the ceiling measured before, where faster."
    )
    ceiling_slowdown: float | None = counter_column(
        "Probe's time ÷ its best, where all processes of the ceiling were slowed."
    )
    slower_than_fp32: float | None = counter_column(
        "Time ÷ time of the same step in fp32, for an emulated format."
    )
    ceiling_tflop_s: float | None = column(
        "Best matmul measured in the format of peak_precision, of all devices."
    )
    peak_clock_mhz: float | None = column("Clock in the computed peak.")
    ceiling_gb_s: float | None = column("Memory bandwidth measured, of all devices.")
    peak_gb_s: float | None = column("Memory bandwidth by clock and bus width.")
    samples_per_j: float | None = column("Samples ÷ energy.")
    flops_per_j: float | None = column("FLOPs that the model needs ÷ energy.")
    module_times: str | None = json_column(
        "for each module its depth, calls, ms and FLOPs a step, MFU in %."
    )
    predicted_memory_bytes: float | None = column(
        "Peak memory as a pretended allocator counts it; empty if uncounted."
    )
    roofline_time_s: float | None = counter_column(
        "Least time of the matmuls by measured roofline, where that is known."
    )
    unfused_roofline_time_s: float | None = counter_column(
        "Least time by measured roofline, other operators not fused away."
    )
