"""Tables and a console of rich that print foreign text without letting it control the terminal."""

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from mfulab.core.printing import printable

BLANKS = re.compile(r"[ \t]+(?=\n)")  # at the ends of lines


def table(
    words: Iterable[str | Column], numbers: Iterable[str], last: Iterable[str] = (), **options: Any
) -> Table:
    """A table with a line below its header. Columns `words` are text, `numbers` are right-aligned,
    and `last` are text that wraps instead of being cut off."""
    columns = (Column(name, justify="right") for name in numbers)
    wrapped = (Column(name, overflow="fold") for name in last)
    return Table(*words, *columns, *wrapped, **{"box": box.SIMPLE_HEAD} | options)


def bare_table(*columns: Column) -> Table:
    """A table of cells alone, without a header or lines."""
    return Table(*columns, box=None, pad_edge=False, show_header=False)


def uncut(words: str, style: str = "") -> Text:
    """Text of a table's cell that wraps and is never cut off. By default rich cuts a line that wide
    letters fill, since it does not strip the line's last blank."""
    return Text(words, style=style, overflow="fold")


class Terminal(Console):
    """Console for foreign text: no markup, no highlighting, no control characters, and `?` for
    characters that the terminal's encoding lacks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @classmethod
    def wide(cls, columns: int) -> "Terminal":
        """A console as wide as the terminal, or `columns` wide if stdout is none."""
        return cls(width=None if sys.stdout.isatty() else columns)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yields the segments of a renderable with their text cleaned; rich's own control codes
        stay."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                encoded = printable(segment.text).encode(self.encoding, errors="replace")
                yield Segment(encoded.decode(self.encoding), segment.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Text of segments. In a pipe or file lines have no blanks at their ends, with which rich fills
        the cells of tables."""
        words = super()._render_buffer(buffer)
        if self.is_terminal:
            return words
        return BLANKS.sub("", words)
