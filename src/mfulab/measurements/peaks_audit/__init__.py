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
    library: Literal[tuple(AUDITED)] = Field("torch_inductor", description="The other one.")  # type: ignore[valid-type]
    installed: str = Field("", description="Its version, so that the next release is audited anew.")

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
    version: str | None = column("Its version.")
    device: str | None = column("The datasheet's name.")
    asked: str | None = column("The name that a driver reports, by which it was asked.")
    precision: str | None = column("A format, or `memory`; empty if it knows no format of a device.")
    theirs: float | None = column("Dense TFLOP/s as it uses them; memory: 10⁹ byte/s.")
    ours: float | None = column("The same by the datasheet.")
    ratio: float | None = column("Theirs ÷ ours.")
    verdict: PeakVerdict | None = column("How its peak compares with ours.")
    explanation: str | None = column("Whose number it is, where it is not this device's.")


MEASUREMENT = Measurement(
    "peaks",
    PeaksAuditConfig,
    PeaksAuditRow,
    "Asking {wildcards.run} for its peaks",
    "library version device precision theirs ours ratio verdict explanation status",
    lines=True,
    position=110,
)
