"""Peaks of other libraries beside those of the datasheets."""

import contextlib
from importlib import metadata
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mfulab.core.configs import StepConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row, column

AUDITED = {  # libraries with a table of peaks, each by what pip calls it, here or as part of another
    "torch_inductor": ("torch",),
    "lightning": ("pytorch-lightning", "lightning-fabric", "lightning"),
    "triton_proton": ("triton",),
}


def installed_version(library: str) -> str | None:
    """The version of an audited library, without importing it; None if it is not installed."""
    for distribution in AUDITED[library]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


class PeaksAuditConfig(StepConfig):
    """The peaks that one other library takes, held against ours."""

    axes: ClassVar[tuple[str, ...]] = ("library",)
    on_device: ClassVar[bool] = False
    library: Literal[tuple(AUDITED)] = Field("torch_inductor", description="Library whose peaks are compared.")  # type: ignore[valid-type]
    installed: str = Field("", description="Version of the library, so that the next release is audited anew.")

    @model_validator(mode="after")
    def _knows_its_version(self) -> "PeaksAuditConfig":
        self.installed = self.installed or installed_version(self.library) or "none"
        return self


PeakVerdict = Literal[
    "agreed", "sparse for dense", "another format", "halved", "another device", "guessed", "different", "missing"
]


class PeaksAuditRow(Row):
    """Another library's peak for one device in one format, beside ours."""

    library: str = Field("", description="Name of the other library.")
    version: str | None = column("Version of the other library.")
    device: str | None = column("Name of the device in the datasheets.")
    asked: str | None = column("Name that a driver reports, by which the library was asked.")
    precision: str | None = column("Number format, or `memory`; empty if the library knows no format of a device.")
    theirs: float | None = column("Dense TFLOP/s that the library uses; 10⁹ byte/s of memory.")
    ours: float | None = column("Dense TFLOP/s of the datasheet; 10⁹ byte/s of memory.")
    ratio: float | None = column("Quotient theirs ÷ ours.")
    verdict: PeakVerdict | None = column("Relation of the library's peak to the datasheet's.")
    explanation: str | None = column("Device or format whose number it is, where it is not this device's.")


MEASUREMENT = Measurement(
    "peaks",
    PeaksAuditConfig,
    PeaksAuditRow,
    "Asking {wildcards.run} for its peaks",
    "library version device precision theirs ours ratio verdict explanation status",
    lines=True,
    position=110,
)
