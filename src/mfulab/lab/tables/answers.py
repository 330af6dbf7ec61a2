"""Answer of a joined row: its MFU, or else the number that its measurement is for."""

from collections.abc import Mapping

from mfulab.core.answer import Answer, answered, unanswered
from mfulab.core.said import Said
from mfulab.mfu import account
from mfulab.mfu.step import Cell

# Column with the main result of a measurement, and its unit: measured, or counted.
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
    """Returns the answer of a row; without a value if the run failed or its measurement has no
    single number."""
    if row.get("status", "ok") != "ok":
        return unanswered(
            "", Said("failed", status=str(row["status"]), because=str(row.get("message") or ""))
        )
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
