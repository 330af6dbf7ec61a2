"""Cells of Markdown tables, for comments in code review."""

import re

LONGEST = 120  # characters of a cell of code


def cell(text: str) -> str:
    """Escapes a text for a cell: one line, in which neither a pipe nor a tag is interpreted."""
    line = re.sub(r"[\r\n]+", " ", text)
    return line.replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """Formats a text as a cell of inline code: one line, cut if it is long."""
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}…"
    longest_run = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest_run + 1)
    if longest_run:
        line = f" {line} "
    escaped = line.replace("|", "\\|")
    return f"{fence}{escaped}{fence}"
