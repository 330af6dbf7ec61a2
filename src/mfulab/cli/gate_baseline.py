"""Named baselines of a gate: times of a command, kept in `.mfulab/gate/NAME.json` of the current
folder."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError, shortened, unknown
from mfulab.core.files import UnreadableError, read_json, write_json
from mfulab.core.parts import drop_none
from mfulab.core.said import Numbers, Said
from mfulab.device import cpu
from mfulab.timing.paired import Compared, decided
from mfulab.timing.statistics import relative_half_width

FOLDER = Path(".mfulab/gate")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
FEWEST, MOST = 8, 60  # runs of a command


@dataclass(frozen=True)
class Baseline:
    """Times of a command, with machine and date. Rates are kept as 1 ÷ rate."""

    command: str
    reads: str  # the regular expression, `cpu` or `wall`
    is_rate: bool
    machine: str
    measured_at: str
    values: tuple[float, ...]


def machine() -> str:
    """The properties of the machine that times depend on: its CPU and the number of usable
    cores."""
    return f"{cpu.cpu().name}, {cpu.usable_cores()} cores"


def now() -> str:
    """Current time (UTC) in ISO 8601, as baselines hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sampled(
    timed: Callable[[], float],
    minutes: float,
    noticeable: float,
    clock: Callable[[], float],
    say: Callable[[Said], object],
) -> list[float]:
    """Times of a command in several runs. Ends once the relative half-width of their interval is
    below a third of `noticeable`, or another run would exceed `minutes`."""
    began = clock()
    values = list[float]()
    while len(values) < MOST:
        values.append(timed())
        spent = (clock() - began) / 60
        progress: Numbers = {"count": len(values), "spent": spent, "minutes": minutes}
        say(Said("gate_sampled", progress))
        mean = spent / len(values)
        if len(values) > 1 and spent + mean > minutes:
            break
        if len(values) >= FEWEST and (relative_half_width(values) or math.inf) < noticeable / 3:
            break
    return values


def save(name: str, baseline: Baseline) -> Path:
    """Writes a baseline and returns its path. Raises ConfigurationError if the name is invalid."""
    path = _path("--save", name)
    write_json(path, asdict(baseline), indent=1)
    return path


def load(name: str) -> Baseline:
    """Reads a baseline. Raises ConfigurationError if it does not exist or cannot be read."""
    path = _path("--against", name)
    if not path.exists():
        saved = [other.stem for other in FOLDER.glob("*.json")]
        if saved:
            raise unknown("--against", name, saved)
        raise ConfigurationError(Said("no_baseline_saved", {"name": name}))
    try:
        content: dict[str, Any] = read_json(path)
        values = tuple(map(float, content.pop("values")))
        baseline = Baseline(values=values, **content)
    except (UnreadableError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(Said("no_baseline", {"file": str(path)})) from error
    if not values or not all(0 < value < math.inf for value in values):
        raise ConfigurationError(Said("baseline_of_no_times", {"file": str(path)}))
    return baseline


def check_alike(name: str, old: Baseline, new: Baseline) -> None:
    """Raises ConfigurationError if a baseline was measured on another machine, or is of another
    quantity."""
    for key in ("machine", "reads", "is_rate"):
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            differs: Numbers = {"name": name, "setting": key, "before": shortened(before)}
            raise ConfigurationError(Said("baseline_differs", {**differs, "now": str(after)}))


def compared(name: str, old: Sequence[float], new: Sequence[float], noticeable: float) -> Compared:
    """Verdict on two sets of runs that were not measured in turn, from the confidence intervals of
    both medians."""
    medians = statistics.median(old), statistics.median(new)
    ratio = medians[1] / medians[0]
    halves = list(map(relative_half_width, (old, new)))
    if None in halves:
        because = Said("one_run_no_interval")
        return Compared("gate", name, "ambiguous", *medians, ratio, because=because)
    factor = math.exp(math.hypot(*drop_none(halves)))
    bounds = (ratio / factor, ratio * factor)
    return decided(("gate", name), *medians, ratio, bounds, noticeable)


def _path(option: str, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ConfigurationError(Said("no_baseline_name", {"option": option, "name": name}))
    return FOLDER / f"{name}.json"
