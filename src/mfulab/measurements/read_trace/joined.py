"""Columns that the table of traces adds to what was read."""

from pydantic import Field

from mfulab.core import columns


class Joined(columns.Verdict, columns.Headroom, columns.Work, columns.Joined):
    """MFU of a step that was read from a trace, and of the job that its rank belongs to."""

    peak_weights: str | None = Field(None, description="JSON: format → its share of the FLOPs, by which peaks weigh.")
    mfu_spec_percent: float | None = Field(None, description="MFU of the datasheet's peak, by the formats that ran.")
    mfu_percent: float | None = Field(None, description="The same.")
    mfu_basis: str | None = Field(None, description="`spec`: the datasheet's peak.")
    mfu_causal_percent: float | None = Field(None, description="MFU with causal attention counted by its half.")
    hfu_percent: float | None = Field(None, description="HFU: FLOPs that ran ÷ time ÷ peak.")
    best_basis: str | None = Field(None, description="Whose best matmuls: `trace`, `matmul_runs` or `both`.")
    peak_gb_s: float | None = Field(None, description="Memory bandwidth by the datasheet.")
    mfu_reason: str | None = Field(None, description="JSON: why there is no MFU: keys and numbers.")
    job_ranks: int | None = Field(None, description="Ranks of the same job among the traces.")
    job_time_s: float | None = Field(None, description="Step of the slowest rank.")
    job_mfu_percent: float | None = Field(
        None, description="FLOPs of all ranks ÷ (the slowest rank's step × the sum of their peaks)."
    )
    job_slowest_rank: int | None = Field(None, description="The rank for which the others wait.")
    transfer_percent: float | None = Field(None, description="Collectives as long as the shortest rank's, of the step.")
    waiting_percent: float | None = Field(None, description="What collectives take beyond that: waiting for others.")
