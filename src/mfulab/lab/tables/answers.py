"""The answer of a joined row: its MFU, else the number that its measurement is for."""

from collections.abc import Mapping

from mfulab.core.answer import Answer, answered, unanswered
from mfulab.core.said import Numbers, Said
from mfulab.mfu import account
from mfulab.mfu.step import Cell

# The columns that measurements are for: unit, and whether it was measured or counted.
MEASURED = {
    "mfu_percent": "%",
    "tflop_s": "TFLOP/s",
    "measured_tflop_s": "TFLOP/s",
    "measured_gb_s": "GB/s",
    "mfulab_percent": "%",
    "accuracy_percent": "%",
    "time_per_access_s": "s",
}
COUNTED = {"flops": "FLOP", "forward_flops": "FLOP", "epsilon": ""}


def answer_of(row: Mapping[str, Cell]) -> Answer:
    """The answer of a row; none of a run that failed, or of a measurement without one number."""
    if row.get("status", "ok") != "ok":
        numbers: Numbers = {"status": str(row["status"]), "because": str(row.get("message") or "")}
        return unanswered("", Said("failed", numbers))
    if "mfu_spec_percent" in row:
        return account.read(row).mfu()
    for name, unit in MEASURED.items():
        if (value := _number(row.get(name))) is not None:
            return answered(value, unit, "measured")
    for name, unit in COUNTED.items():
        if (value := _number(row.get(name))) is not None:
            return answered(value, unit, "counted")
    return unanswered("", Said("no_number"))


def _number(cell: Cell) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return cell
