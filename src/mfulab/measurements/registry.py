"""The measurements, found by their folders; planning, rules, tables, merging, recordings and the
page derive from it. A folder's `__init__.py` declares config, row and `MEASUREMENT`, without torch.
`measure(config, folder)` of its `measure.py` gives a `Measured`, may leave files in the folder, and
raises UnsupportedError if a run cannot be done."""

import pkgutil
from importlib import import_module
from operator import attrgetter

from mfulab import measurements
from mfulab.core.measurement import Measurement

_FOLDERS = [module.name for module in pkgutil.iter_modules(measurements.__path__) if module.ispkg]
_DECLARED: list[Measurement] = [
    import_module(f"mfulab.measurements.{name}").MEASUREMENT for name in _FOLDERS
]
# In the order in which the page offers their tables.
MEASUREMENTS = {
    measurement.step: measurement for measurement in sorted(_DECLARED, key=attrgetter("position"))
}
TABLES = {measurement.table: measurement for measurement in MEASUREMENTS.values()}
# What a recording of a machine holds: public runs and other libraries' tables are no machine's.
RECORDED = {table: measurement for table, measurement in TABLES.items() if not measurement.lines}
# Folders of results/ that are no machine's.
SUPERSEDED = "superseded"  # of runs whose config or code has changed
NO_MACHINE = {"plan", "tables", "reference", SUPERSEDED, "public"}
NO_MACHINE |= {
    measurement.step for measurement in MEASUREMENTS.values() if not measurement.on_device
}


def machine(hardware: str) -> str:
    """The name of a machine's folder as given. Raises ValueError for one of results/ that is no
    machine's."""
    if hardware in NO_MACHINE:
        raise ValueError("results/ has a folder of that name which is no machine's")
    return hardware
