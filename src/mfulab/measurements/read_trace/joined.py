"""Columns that the traces table has beyond its rows: MFU by the peaks of the trace's device, and its job."""

from pydantic import BaseModel, Field

from mfulab.core import joined


class _Useful(BaseModel):
    tflop_s: float | None = Field(None, description="`flops` ÷ `time_s`.")
    peak_tflop_s: float | None = Field(
        None, description="Peak of the device, the harmonic mean over formats weighted by their FLOPs."
    )
    peak_weights: str | None = Field(None, description="JSON: format → its share of the FLOPs.")
    mfu_spec_percent: float | None = Field(None, description="The same as `mfu_percent`.")
    mfu_percent: float | None = Field(None, description="Model FLOPs utilization: `flops` ÷ `time_s` ÷ `peak_tflop_s`.")
    mfu_basis: str | None = Field(None, description="`spec` where MFU is known.")
    mfu_causal_percent: float | None = Field(None, description="MFU with causal attention counted by its half.")
    hfu_percent: float | None = Field(None, description="Hardware FLOPs utilization: the same of executed FLOPs.")
    arithmetic_intensity: float | None = Field(None, description="`flops` ÷ `bytes_moved`, FLOPs a byte.")


class _Beside(BaseModel):
    best_basis: str | None = Field(
        None, description="What the best speed of matmuls rests on: `trace`, `matmul_runs` or `both`."
    )
    peak_gb_s: float | None = Field(None, description="Memory bandwidth of the device's datasheet.")
    mfu_note: str | None = Field(None, description="Key of the sentence why MFU is empty or doubtful.")
    mfu_reason: str | None = Field(None, description="JSON: why there is no MFU, with a remedy, as keys and numbers.")


class _Job(BaseModel):
    job_ranks: int | None = Field(None, description="Ranks of the same job and steps that were read.")
    job_time_s: float | None = Field(None, description="Step of the slowest of them.")
    job_mfu_percent: float | None = Field(
        None, description="FLOPs of all ranks ÷ the slowest step ÷ the sum of their peaks."
    )
    job_slowest_rank: int | None = Field(None, description="The rank for which the others wait.")
    transfer_percent: float | None = Field(None, description="Collectives as long as the shortest rank's.")
    waiting_percent: float | None = Field(None, description="What its collectives take beyond that.")


class Joined(_Job, joined.Verdict, _Beside, joined.Headroom, _Useful, joined.Joined):
    """MFU, the headroom, the verdict, and the job of several ranks."""
