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
from mfulab.core.said import Numbers, Said, of_source

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


def say_not_measured(wanted: Wanted, why: Said) -> None:
    """Reports in one sentence why nothing is measured."""
    say_of_script(wanted, "nothing_is_measured", why)


def say_of_script(wanted: Wanted, key: str, why: Said) -> None:
    """Prints the sentence `key` about the script, in the language asked for."""
    from mfulab.core.language.sentences import sentence

    with suppress(OSError, ValueError):
        numbers: Numbers = {"script": wanted.name, "why": why}
        say(sentence(key, numbers, wanted.language), file=sys.stderr)


def not_measured_row(why: Said) -> dict[str, object]:
    """JSON of a script of which nothing was measured, in English."""
    return unanswered("%", Said("not_measured", because=str(why))).line({"reason": str(why)})


def named_error(error: Exception) -> Said:
    """An error's type and message."""
    return of_source(type(error).__name__, str(error))


def with_children(wanted: Wanted, why: Said) -> Said:
    """Adds a hint at processes that the script started, which may hold a model, unless they took
    little time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    if seconds < CHILDREN_S:
        return why
    hint = Said("children_took", seconds=seconds)
    if wanted.children:
        hint = Said("children_report")
    return Said("both", first=why, second=hint)
