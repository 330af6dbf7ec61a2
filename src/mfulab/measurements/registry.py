"""The measurements, found by their folders.

Planning, the rules in workflow/rules/measure.smk, tables, merging, recordings and the page derive from it. A folder
declares config, row and `MEASUREMENT` in its `__init__.py`, which imports no torch. Its `measure.py` is imported by the
process that measures: `measure(config, folder)` gives a `Measured`, and may leave files in the run's own folder. It
raises UnsupportedError if a run cannot be done; out of memory and other exceptions become rows in lab/runtime/run.py.
"""

import importlib
import pkgutil

from mfulab import measurements
from mfulab.core.measurement import Measurement


def _found() -> dict[str, Measurement]:
    names = [module.name for module in pkgutil.iter_modules(measurements.__path__) if module.ispkg]
    each = [importlib.import_module(f"mfulab.measurements.{name}").MEASUREMENT for name in names]
    return {measurement.step: measurement for measurement in sorted(each, key=lambda each: each.position)}


# In the order in which the page offers their tables.
MEASUREMENTS = _found()
TABLES = {each.table: each for each in MEASUREMENTS.values()}
# What a recording of a machine holds: public runs and other libraries' tables are no machine's.
RECORDED = {table: each for table, each in TABLES.items() if not each.lines}
# Folders of results/ that are no machine's.
NO_MACHINE = {
    "plan",
    "tables",
    "reference",
    "superseded",
    "public",
    *(m.step for m in MEASUREMENTS.values() if not m.on_device),
}


def machine(hardware: str) -> str:
    """The name of a machine's folder as given. Raises ValueError for one of results/ that is no machine's."""
    if hardware in NO_MACHINE:
        raise ValueError("results/ has a folder of that name which is no machine's")
    return hardware
