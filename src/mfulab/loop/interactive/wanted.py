"""Options of `mfulab measure`, and what it says where nothing was measured. Nothing here imports
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

# CPU seconds of child processes from which a script without a model may have one in them.
CHILDREN_S = 1.0


@dataclass(frozen=True)
class Wanted:
    """Options of `mfulab measure`. `name` is the script as it was given, `out` the file of
    the row. Without `steps` and `seconds` a window has its usual length. `is_child`: this process
    was started by the script."""

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
        """The file of this process's row: of another rank than 0, and of a child, it has the rank
        or the process in its name."""
        if self.out is None or not (rank or self.is_child):
            return self.out
        part = f"rank{rank}" if rank or of_ranks else f"process{os.getpid()}"
        return self.out.with_name(f"{self.out.stem}.{part}{self.out.suffix}")


def tell_nothing(wanted: Wanted, why: str) -> None:
    """Says in one sentence why nothing is measured."""
    with suppress(OSError, ValueError):
        say(f"mfulab measure {wanted.name}: nothing is measured: {why}", file=sys.stderr)


def without_row(why: str) -> dict[str, object]:
    """JSON of a script of which nothing was measured."""
    return unanswered("%", Said("not_measured", {"because": why})).line({"reason": why})


def about_children(wanted: Wanted) -> str:
    """Says where else a model may be: in processes that the script started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    if seconds < CHILDREN_S:
        return ""
    if wanted.children:
        return "; processes that it started tell of themselves"
    return f"; processes that it started took {seconds:.0f} s: --children follows them too"
