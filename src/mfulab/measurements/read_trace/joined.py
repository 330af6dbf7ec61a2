"""Columns that the table of traces adds to what was read."""

from mfulab.core import columns
from mfulab.core.rows import column


class Joined(columns.Verdict, columns.Headroom, columns.Work, columns.Joined):
    """MFU of a step that was read from a trace, and of the job that its rank belongs to."""

    peak_weights: str | None = column("JSON: number format → share of the FLOPs, by which peaks are weighted.")
    mfu_spec_percent: float | None = column("MFU against the datasheet's peak, weighted by the formats that ran.")
    mfu_percent: float | None = column("MFU against the datasheet's peak.")
    attainable_mfu_percent: float | None = column("MFU if each operator took its best time without waits.")
    mfu_basis: str | None = column("Peak that mfu_percent divides by: `spec`, the datasheet's.")
    mfu_causal_percent: float | None = column("MFU with causal attention counted by its half.")
    hfu_percent: float | None = column("HFU: FLOPs that ran ÷ time ÷ peak.")
    best_basis: str | None = column("Source of the best matmuls: `trace`, `matmul_runs` or `both`.")
    operator_roofline: str | None = column("JSON: for each operator ms a step, bound, best time and headroom in ms.")
    module_times: str | None = column("JSON: for each module or range depth, calls, ms and FLOPs a step, MFU in %.")
    peak_gb_s: float | None = column("Memory bandwidth by the datasheet.")
    mfu_reason: str | None = column("JSON: reason why there is no MFU: keys and numbers.")
    collective_bandwidth: str | None = column("JSON: for collectives by kind and size: calls, ms, GB/s, ms of waiting.")
    job_ranks: int | None = column("Ranks of the same job among the traces.")
    job_time_s: float | None = column("Step time of the slowest rank.")
    job_mfu_percent: float | None = column("FLOPs of all ranks ÷ (the slowest rank's step × the sum of their peaks).")
    job_slowest_rank: int | None = column("Rank for which the others wait.")
    transfer_percent: float | None = column("Collectives as short as the shortest rank's ÷ window.")
    waiting_percent: float | None = column("Time of collectives beyond the transfer ÷ window: waiting for others.")
