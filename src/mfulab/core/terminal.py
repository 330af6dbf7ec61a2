"""Tables and other things of rich in a terminal, which foreign text must not command."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.segment import Segment
from rich.table import Column, Table

from mfulab.core.printing import printable


def table(
    words: Iterable[str | Column], numbers: Iterable[str], last: Iterable[str] = (), **options: Any
) -> Table:
    """A table with a line below its heads: columns of words, of numbers flush right, and the last
    ones of words, which are broken and never cut off."""
    columns = (Column(name, justify="right") for name in numbers)
    whole = (Column(name, overflow="fold") for name in last)
    return Table(*words, *columns, *whole, **{"box": box.SIMPLE_HEAD} | options)


class Terminal(Console):
    """Rich's console for foreign text: no markup, nothing that is not printable, and what its
    encoding lacks as `?`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Gives the segments of a renderable; those that rich itself commands the terminal with
        stay."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                shown = (
                    printable(segment.text)
                    .encode(self.encoding, errors="replace")
                    .decode(self.encoding)
                )
                yield Segment(shown, segment.style)
