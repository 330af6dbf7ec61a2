"""Measures one step of training, inference or generating text, in one process or in several that train together."""

from pathlib import Path

from mfulab.core.measurement import Measured
from mfulab.measurements.profile_step import ProfileStepConfig, process, ranks


def measure(config: ProfileStepConfig, folder: Path) -> Measured:
    """One row for one step; leaves series.csv, operators.csv, on a GPU kernels.csv, and if asked trace.json.gz."""
    if config.parallel.processes > 1:
        return ranks.measure(config, folder)
    return process.measure_step(config, folder)[0]
