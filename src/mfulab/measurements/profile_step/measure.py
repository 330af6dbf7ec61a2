"""Profiles one step of a model, in this process or in several ranks."""

from pathlib import Path

from mfulab.core.measurement import Measured
from mfulab.measurements.profile_step import ProfileStepConfig, ranks
from mfulab.measurements.profile_step.process import measure_step


def measure(config: ProfileStepConfig, folder: Path) -> Measured:
    """Returns one row for one step. Writes to `folder`: series.csv, operators.csv, kernels.csv on a
    GPU, and trace.json.gz if requested."""
    if config.parallel.processes > 1:
        return ranks.measure(config, folder)
    return measure_step(config, folder)[0]
