"""Columns that the table of traces adds to those read from the trace."""

from mfulab.core import columns
from mfulab.core.rows import column, counter_column, json_column


class Joined(columns.VerdictColumns, columns.BudgetColumns, columns.WorkColumns, columns.Joined):
    """MFU of a step that was read from a trace, and of the job that its rank belongs to."""

    peak_weights: str | None = json_column(
        "number format → share of the FLOPs, by which peaks are weighted."
    )
    mfu_spec_percent: float | None = column(
        "MFU against the datasheet's peak, weighted by the formats that ran."
    )
    mfu_percent: float | None = column("MFU against the datasheet's peak.")
    attainable_mfu_percent: float | None = column(
        "MFU if each operator took its best time without waits."
    )
    mfu_basis: str | None = column("Peak that mfu_percent divides by: `spec`, the datasheet's.")
    hfu_percent: float | None = column("HFU: FLOPs that ran ÷ time ÷ peak.")
    best_basis: str | None = column("Source of the best matmuls: `trace`, `matmul_runs` or `both`.")
    operator_roofline: str | None = json_column(
        "for each operator ms a step, bound, best time and headroom in ms."
    )
    module_times: str | None = json_column(
        "for each module or range depth, calls, ms and FLOPs a step, MFU in %."
    )
    peak_gb_s: float | None = column("Memory bandwidth by the datasheet.")
    mfu_reason: str | None = json_column("reason why there is no MFU: keys and numbers.")
    collective_bandwidth: str | None = json_column(
        "for collectives by kind and size: calls, ms, GB/s, ms of waiting."
    )
    link_bytes: float | None = column(
        "Bytes a step over a process's link: of its collectives, × nccl-tests' bus factor."
    )
    job_ranks: int | None = column("Ranks of the same job among the traces.")
    job_time_s: float | None = counter_column("Step time of the slowest rank.")
    job_mfu_percent: float | None = column(
        "FLOPs of all ranks ÷ (the slowest rank's step × the sum of their peaks)."
    )
    job_slowest_rank: int | None = column("Rank for which the others wait.")
    job_verdict: str | None = json_column(
        "verdict on the ranks of the job: key and numbers of its sentence."
    )
    transfer_percent: float | None = column("Collectives as short as the shortest rank's ÷ window.")
    waiting_percent: float | None = counter_column(
        "Time of collectives beyond the transfer ÷ window: waiting for others."
    )
