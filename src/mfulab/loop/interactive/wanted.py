"""Options of `mfulab measure`, and what it reports if nothing was measured. Nothing here imports
torch."""

import os
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mfulab.core.answer import unanswered
from mfulab.core.printing import say
from mfulab.core.said import Said

# Child processes that took more CPU seconds may hold the model of a script that has none itself.
CHILDREN_S = 1.0


@dataclass(frozen=True)
class Wanted:
    """Options of `mfulab measure`. `name` is the script as given, `out` the file of the row.
    Without `steps` and `seconds` a window has its usual length. `is_child` is True if the script
    started this process."""

    name: str
    steps: int | None = None
    seconds: float | None = None
    warm_up: int = 3
    ceiling_s: float = 2.0
    out: Path | None = None
    language: str = "en"
    children: bool = False
    is_child: bool = False

    def own_file(self, rank: int, of_ranks: bool) -> Path | None:
        """File of this process's row; None if no file is asked for. Its name includes the rank, if
        that is not 0, or the process number of a child."""
        if self.out is None or not (rank or self.is_child):
            return self.out
        part = f"rank{rank}" if rank or of_ranks else f"process{os.getpid()}"
        return self.out.with_name(f"{self.out.stem}.{part}{self.out.suffix}")


def say_not_measured(wanted: Wanted, why: str) -> None:
    """Reports in one sentence why nothing is measured."""
    with suppress(OSError, ValueError):
        say(f"mfulab measure {wanted.name}: nothing is measured: {why}", file=sys.stderr)


def not_measured_row(why: str) -> dict[str, object]:
    """JSON of a script of which nothing was measured."""
    return unanswered("%", Said("not_measured", {"because": why})).line({"reason": why})


def about_children(wanted: Wanted) -> str:
    """Hint at processes that the script started, which may hold a model; empty if they took little
    time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    if seconds < CHILDREN_S:
        return ""
    if wanted.children:
        return "; processes that it started tell of themselves"
    return f"; processes that it started took {seconds:.0f} s: --children follows them too"
