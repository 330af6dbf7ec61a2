"""Finds the measurements by their folders. Planning, rules, tables, merging, recordings and the
page all derive from this list. Each folder's `__init__.py` declares the config, the row and
`MEASUREMENT`, without importing torch. `measure(config, folder)` in its `measure.py` returns a
`Measured` and may leave files in `folder`. It raises UnsupportedError if the run is not possible
here."""

import pkgutil
from importlib import import_module
from operator import attrgetter

from mfulab import measurements
from mfulab.core.measurement import Measurement

_FOLDERS = [module.name for module in pkgutil.iter_modules(measurements.__path__) if module.ispkg]
_DECLARED: list[Measurement] = [
    import_module(f"mfulab.measurements.{name}").MEASUREMENT for name in _FOLDERS
]
# In the order of their tables on the page.
MEASUREMENTS = {
    measurement.step: measurement for measurement in sorted(_DECLARED, key=attrgetter("position"))
}
TABLES = {measurement.table: measurement for measurement in MEASUREMENTS.values()}
# Tables in a machine's recording. Public runs and tables of other libraries belong to no machine.
RECORDED = {table: measurement for table, measurement in TABLES.items() if not measurement.lines}
# Folders of results/ that belong to no machine.
SUPERSEDED = "superseded"  # runs whose config or code has changed since
NO_MACHINE = {"plan", "tables", "reference", SUPERSEDED, "public"}
NO_MACHINE |= {
    measurement.step for measurement in MEASUREMENTS.values() if not measurement.on_device
}


def machine(hardware: str) -> str:
    """Returns `hardware`, the name of a machine's folder in results/. Raises ValueError if the name
    is reserved for a folder of another kind."""
    if hardware in NO_MACHINE:
        raise ValueError("results/ has a folder of that name which is no machine's")
    return hardware
