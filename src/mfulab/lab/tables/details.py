"""Details of a run for the page: config, samples, series, operators and the log's last lines."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mfulab.core.files import UnreadableError, read_tail
from mfulab.lab.tables.records import read_config, read_lines

MOST_RUNS = 2000  # beyond it a page would grow past what a browser opens at once
MOST_POINTS = 120
LOG_LINES = 15
LOG_CHARACTERS = 2000
OPERATORS = 12
PARTS = ("samples", "series", "operators")
SKIPPED = {"window", "sample", "step", "repetition", "round"}


def describe(folder: Path, problems: list[str]) -> dict[str, Any]:
    """All that is there of one run's folder; what is absent, or a problem, has no key."""
    without = "The page shows its run without it."
    samples, series, operators = (read_lines(folder / f"{name}.csv", problems, without) for name in PARTS)
    log = ""
    with suppress(FileNotFoundError, UnreadableError):
        log = "\n".join(read_tail(folder / "log", 4 * LOG_CHARACTERS).splitlines()[-LOG_LINES:])[-LOG_CHARACTERS:]
    found = {
        "folder": folder.as_posix(),
        "config": read_config(folder),
        "samples": curves(samples),
        "series": curves(series),
        "operators": longest(operators),
        "log": log,
    }
    return {name: value for name, value in found.items() if value}


def curves(lines: Sequence[Mapping[str, str]]) -> dict[str, list[float | None]]:
    """The numeric columns of a table, thinned evenly to MOST_POINTS points that keep the first and the last."""
    if not lines:
        return {}
    kept = [lines[index] for index in thin(len(lines), MOST_POINTS)]
    found = {name: [_number(line[name]) for line in kept] for name in lines[0] if name not in SKIPPED}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def thin(count: int, most: int) -> list[int]:
    """At most `most` indices below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def longest(lines: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The operators that took longest, as the traced pass wrote them, each with its share of the time of all."""
    times = [_number(line.get("self_device_time_s")) or _number(line.get("self_cpu_time_s")) or 0.0 for line in lines]
    whole, wanted = sum(times), ("operator", "input_shapes", "calls", "flops")
    return [
        {name: line[name] for name in wanted if line.get(name)}
        | {"time_s": f"{time:.4g}", "share_percent": f"{100 * time / whole:.3g}" if whole else ""}
        for time, line in sorted(zip(times, lines, strict=True), key=lambda each: -each[0])[:OPERATORS]
    ]


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return float(f"{value:.6g}") if abs(value) < float("inf") else None
