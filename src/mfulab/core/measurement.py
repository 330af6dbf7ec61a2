"""Declaration of one kind of measurement, made in its folder, and the result of one run."""

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
    """One kind of measurement: `MEASUREMENT` in a folder of mfulab/measurements/, which has the
    same name."""

    table: str  # that holds its rows
    config: type[StepConfig]  # the keys that a run of it may have
    row: type[Row]  # what a run of it reports
    message: str  # that Snakemake prints when a run starts; `{wildcards.run}` is the run's name
    shown: str  # columns that the page shows first, in order; the others appear on request
    position: int = 1000  # of its table on the page; lower ones come first
    # Higher priority starts first: measurements that others are joined with need a higher one.
    priority: int = 0
    runtime_min: int = 10  # minutes to request from a cluster
    # Whether the lines of a run's `samples.csv` are its rows; its own row then holds only a status.
    lines: bool = False

    @property
    def step(self) -> str:
        """Name of the rule and of the folder in mfulab/measurements/."""
        return self.config.__module__.rpartition(".")[2]

    @cached_property
    def joined(self) -> type[Joined]:
        """Columns that the table adds to the row: `Joined` of the folder's joined.py, which no
        measuring code imports, or the common ones."""
        module = f"mfulab.measurements.{self.step}.joined"
        if find_spec(module):
            return import_module(module).Joined
        return Joined

    @property
    def on_device(self) -> bool:
        """True if results depend on the machine; all others are shared by all machines."""
        return self.config.on_device

    @property
    def folder(self) -> str:
        """Folder of a run below results/, with Snakemake's wildcards."""
        return ("{hardware}/" if self.on_device else "") + self.step + "/{run}"


@dataclass(frozen=True)
class Measured:
    """Result of a finished run: its row, and raw samples, which are the lines of a CSV file with
    the same keys each."""

    row: Row
    samples: Sequence[Mapping[str, object]] = field(default=())
