"""Public runs with the FLOPs that their models need."""

import hashlib
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from mfulab.core.configs import StepConfig
from mfulab.core.groups import Name
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column, counter_column

RECORDINGS = Path("results/reference")
PUBLISHED = RECORDINGS / "published"
"""Public runs, one CSV a collection, one line a run with its source."""


class PublishedConfig(StepConfig):
    """One collection of public runs, whose FLOPs are counted here."""

    axes: ClassVar[tuple[str, ...]] = ("published",)
    on_device: ClassVar[bool] = False
    published: Name = Field(
        "papers", description="Collection: the name of a file in results/reference/published/."
    )
    digest: str = Field(
        "", description="SHA-256 of the collection's file, so that edited lines are computed anew."
    )

    @model_validator(mode="after")
    def _knows_its_file(self) -> "PublishedConfig":
        """Checks that the collection's file exists, and fills in its digest."""
        path = PUBLISHED / f"{self.published}.csv"
        if not path.exists():
            choices = ", ".join(sorted(file.stem for file in PUBLISHED.glob("*.csv")))
            raise ValueError(
                f"published={self.published}: unknown. Choices: {choices or f'none in {PUBLISHED}/'}"
            )
        self.digest = self.digest or hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return self


class PublishedRow(Row):
    """A public run with the FLOPs that its model needs, counted here. MFU is computed from them,
    not copied from the publisher."""

    published: str = Field(
        "", description="Collection of runs: a file in results/reference/published/."
    )
    submitter: str | None = column("Publisher of the run.")
    system: str | None = column("System that ran, in the publisher's words.")
    framework: str | None = column("Framework as published.")
    model: str = Field("", description="Model as published.")
    parameters: int | None = column("Elements of the model's weights.")
    sequence_length: int | None = column("Tokens a sample.")
    accelerator: str | None = column("Name of the device in the datasheets.")
    architecture: str | None = column(
        "Compute capability, gfx name or family of the device in the datasheets."
    )
    accelerators: int | None = column("Number of devices of the run.")
    precision: str | None = column("Precision as published; empty if it is not said.")
    batch_size: int | None = column("Samples a step, of all devices together.")
    samples_per_s: float | None = column("Samples a second of all devices together.")
    tokens_per_s_per_device: float | None = counter_column(
        "Tokens a second, as published, or samples × tokens ÷ devices."
    )
    flops_per_sample: float | None = column(
        "FLOPs of a sample, forward and backward, attention full."
    )
    tflop_s_per_device: float | None = counter_column(
        "Rate of the FLOPs that the model needs; else as published."
    )
    mfu_bf16_percent: Percent | None = column("MFU against the dense 16-bit peak.")
    mfu_fp8_percent: Percent | None = counter_column("MFU against the dense fp8 peak.")
    mfu_fp4_percent: Percent | None = counter_column("MFU against the dense fp4 peak.")
    mfu_percent: Percent | None = column(
        "MFU against the dense peak of the published precision, else of 16 bits."
    )
    mfu_format: str | None = column("Number format whose peak stands under mfu_percent.")
    slowest_format: str | None = counter_column(
        "Slowest number format whose peak the speed does not exceed."
    )
    printed_mfu_percent: Percent | None = column("MFU that the publisher prints.")
    convention: str | None = column("Convention that the publisher names.")
    convention_mfu_percent: Percent | None = counter_column("MFU by that convention.")
    difference_points: float | None = column("Printed MFU − MFU by that convention.")
    explanation: str | None = column("Points that the convention's choices add to our MFU.")
    source: str | None = column("Address of the publication.")


MEASUREMENT = Measurement(
    "published",
    PublishedConfig,
    PublishedRow,
    "Counting the models of {wildcards.run}",
    "submitter system model accelerator accelerators precision status mfu_percent mfu_format"
    " printed_mfu_percent difference_points explanation source",
    lines=True,
    position=100,
)
