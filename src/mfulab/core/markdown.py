"""Cells of Markdown tables, for comments where code is reviewed."""

import re

LONGEST = 120  # characters of a cell of code


def cell(text: str) -> str:
    """Text as a cell holds it: one line, in which neither a pipe nor a tag ends anything."""
    line = re.sub(r"[\r\n]+", " ", text)
    return line.replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """A cell of code, such as a command: one line, its beginning where it is long."""
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}…"
    longest_run = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest_run + 1)
    if longest_run:
        line = f" {line} "
    escaped = line.replace("|", "\\|")
    return f"{fence}{escaped}{fence}"
