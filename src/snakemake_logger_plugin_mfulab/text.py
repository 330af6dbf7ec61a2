"""The end of a log, and what a run's row says of itself, as lines of text."""

import csv
from collections.abc import Iterable
from pathlib import Path

TAIL = 40  # lines


def tail(path: str, is_shown: bool) -> list[str]:
    """The path of a log and, where `is_shown`, its last lines, indented."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [f"    log: {path} (not there)"]
    if not lines or not is_shown:
        return [f"    log: {path}" + ("" if lines else " (empty)")]
    skipped = [f"    | … {len(lines) - TAIL} lines before"] if len(lines) > TAIL else []
    return [f"    log: {path}", *skipped, *(f"    | {line}" for line in lines[-TAIL:])]


def row_remark(outputs: Iterable[str]) -> str:
    """Status and message of the `row.csv` among a job's outputs where it is not ok, else nothing."""
    for path in (output for output in outputs if output.endswith("row.csv")):
        try:
            with open(path, newline="", encoding="utf-8") as file:
                row = next(csv.DictReader(file), {})
        except OSError:
            return ""
        if row.get("status", "ok") != "ok":
            return f"{row['status']}: {row.get('message', '')}"
    return ""
