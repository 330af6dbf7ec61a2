"""Measures profile_step: one row for a step of a model, measured in this process or by several
ranks."""

from pathlib import Path

from mfulab.core.measurement import Measured
from mfulab.measurements.profile_step import ProfileStepConfig, ranks
from mfulab.measurements.profile_step.process import measure_step


def measure(config: ProfileStepConfig, folder: Path) -> Measured:
    """One row for one step; leaves series.csv, operators.csv, on a GPU kernels.csv, and if asked
    trace.json.gz."""
    if config.parallel.processes > 1:
        return ranks.measure(config, folder)
    return measure_step(config, folder)[0]
