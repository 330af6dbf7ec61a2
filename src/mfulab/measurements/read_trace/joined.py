"""Columns that the table of traces adds to what was read."""

from mfulab.core import columns
from mfulab.core.rows import column


class Joined(columns.Verdict, columns.Headroom, columns.Work, columns.Joined):
    """MFU of a step that was read from a trace, and of the job that its rank belongs to."""

    peak_weights: str | None = column("JSON: format → its share of the FLOPs, by which peaks weigh.")
    mfu_spec_percent: float | None = column("MFU of the datasheet's peak, by the formats that ran.")
    mfu_percent: float | None = column("The same.")
    mfu_basis: str | None = column("`spec`: the datasheet's peak.")
    mfu_causal_percent: float | None = column("MFU with causal attention counted by its half.")
    hfu_percent: float | None = column("HFU: FLOPs that ran ÷ time ÷ peak.")
    best_basis: str | None = column("Whose best matmuls: `trace`, `matmul_runs` or `both`.")
    operator_roofline: str | None = column("JSON: of each operator its ms a step, bound, best time and headroom in ms.")
    module_times: str | None = column("JSON: of each module or range its depth, calls, ms and FLOPs a step, MFU in %.")
    peak_gb_s: float | None = column("Memory bandwidth by the datasheet.")
    mfu_reason: str | None = column("JSON: why there is no MFU: keys and numbers.")
    collective_bandwidth: str | None = column("JSON: of collectives by kind and size: calls, ms, GB/s, ms of waiting.")
    job_ranks: int | None = column("Ranks of the same job among the traces.")
    job_time_s: float | None = column("Step of the slowest rank.")
    job_mfu_percent: float | None = column("FLOPs of all ranks ÷ (the slowest rank's step × the sum of their peaks).")
    job_slowest_rank: int | None = column("The rank for which the others wait.")
    transfer_percent: float | None = column("Collectives as long as the shortest rank's, of the step.")
    waiting_percent: float | None = column("What collectives take beyond that: waiting for others.")
