"""Arguments of a window, in the form in which measuring needs them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mfulab.core.groups import DeviceConfig
from mfulab.loop.interactive.peaks import peaks_of
from mfulab.loop.interactive.row import Site


@dataclass(frozen=True)
class Given:
    """Arguments of `mfulab.measure`. `peaks` holds the given peaks, and `lies_on` the devices of
    the models' parameters."""

    batch: object
    flops_per_step: float | None
    ceiling_s: float
    peaks: DeviceConfig
    lies_on: Sequence[torch.device]
    series: str | Path | None
    trace: str | Path | None
    quiet: bool
    language: str

    @property
    def is_counted(self) -> bool:
        """True if FLOPs are counted while the loop runs, since nothing gives them."""
        return self.flops_per_step is None and self.batch is None

    def site(self, dtype: torch.dtype, device: torch.device, anew: bool) -> Site:
        """Site of a model of this dtype. `anew` measures a disturbed ceiling again."""
        peaks = functools.partial(
            peaks_of, device, given=self.peaks, ceiling_s=self.ceiling_s, anew=anew
        )
        return Site(dtype, device, self.lies_on, peaks)


def peaks_given(peak_tflop_s: dict[str, float] | None) -> DeviceConfig:
    """Dense peaks by number format, as a device's config. Raises ValueError for an unknown format
    or a peak out of range."""
    try:
        return DeviceConfig(peak_tflop_s=peak_tflop_s or {})
    except ValueError as error:
        advice = "give dense TFLOP/s by number format, such as {'bf16': 989}"
        raise ValueError(f"peak_tflop_s={peak_tflop_s}: {advice}") from error
