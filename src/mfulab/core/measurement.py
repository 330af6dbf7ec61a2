"""One kind of measurement, as its folder declares it, and the result of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec

from mfulab.core.columns import Joined
from mfulab.core.configs import StepConfig
from mfulab.core.rows import Row


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement: `MEASUREMENT` of a folder of mfulab/measurements/, which gives it
    its name."""

    table: str  # that holds its rows
    config: type[StepConfig]  # the keys that a run of it may have
    row: type[Row]  # what a run of it reports
    message: str  # what Snakemake says when a run starts; `{wildcards.run}` is the run's name
    shown: str  # columns that the page shows first, in order; the others appear on request
    position: int = 1000  # of its table on the page; lower ones come first
    # runs of a higher one start first: what others are joined with comes before them
    priority: int = 0
    runtime_min: int = 10  # minutes that a cluster is asked for
    # whether a run reports many rows, the lines of `samples.csv`; its own row says how it went
    lines: bool = False

    @property
    def step(self) -> str:
        """Name of the rule and of the folder."""
        return self.config.__module__.rpartition(".")[2]

    @cached_property
    def joined(self) -> type[Joined]:
        """Columns that its table adds to the row: of the folder's joined.py, which no measuring
        code imports."""
        module = f"mfulab.measurements.{self.step}.joined"
        if find_spec(module):
            return import_module(module).Joined
        return Joined

    @property
    def on_device(self) -> bool:
        """True if the runs belong to one machine; others are kept once for all."""
        return self.config.on_device

    @property
    def folder(self) -> str:
        """The folder of a run below results/, with Snakemake's wildcards in it."""
        return ("{hardware}/" if self.on_device else "") + self.step + "/{run}"


@dataclass(frozen=True)
class Measured:
    """A finished run: its row, and the raw samples (one mapping a CSV line, the same keys in each)
    behind it."""

    row: Row
    samples: Sequence[Mapping[str, object]] = field(default=())
