"""Foreign text on a terminal is text: whatever a terminal or rich would obey is taken out."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mfulab.core.printing import printable
from mfulab.core.terminal import Terminal

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2028"


def shown(*what: object, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Terminal(file=file, width=80, force_terminal=False).print(*what)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_a_name_commands_neither_the_terminal_nor_rich() -> None:
    table = Table(f"operator{ESCAPES}")
    table.add_row(f"[bold]aten::mm[/][link=http://x]{ESCAPES}")
    said = shown(Group(table, Text(f"process{ESCAPES}"), f"[/]span{ESCAPES} :smile:"))
    assert not set(ESCAPES) - set("[2J]0;title31m") & set(said)
    assert all(word in said for word in ("[bold]aten::mm[/][link=http://x]", "[/]span", ":smile:"))


def test_lines_in_a_pipe_end_without_the_blanks_that_fill_a_table() -> None:
    table = Table("operator", "ms", box=None)
    table.add_row("aten::mm", "1")
    table.add_row("aten::add_", "")
    lines = shown(table).splitlines()
    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)


def test_what_the_encoding_lacks_is_a_question_mark_and_half_a_letter_nothing() -> None:
    assert "MFU ?" in shown("MFU █", encoding="ascii")
    assert "half" in shown(Text("ha\ud800lf"), encoding="cp949")


@given(st.text())
def test_any_text_is_printed_and_lines_stay(text: str) -> None:
    kept = printable(text)
    assert printable(kept) == kept
    assert not {"\x1b", "\x9b", "\r", "\x07"} & set(kept)
    assert kept.count("\n") == text.count("\n")
    shown(text, encoding="ascii")
