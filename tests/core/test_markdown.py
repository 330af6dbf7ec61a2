"""Cells of Markdown, as a parser of it reads them."""

import pytest

from mfulab.core.markdown import LONGEST, cell, code

markdown_it = pytest.importorskip("markdown_it")
COMMANDS = [
    'python -c "print(1 | 2)"',
    "first\nsecond \\\n  third",
    "echo `date`",
    "echo ``a`` | cat",
    "`",
    "echo <b>*bold*</b>",
    "x" * 5000,
]


def cells_of(text):
    """Cells of the only table's one row, each as its rendered text and the kinds of its parts."""
    document = f"| a | b | c |\n|---|---|---:|\n| before | {text} | 1 s |\n"
    inline = [
        token
        for token in markdown_it.MarkdownIt().enable("table").parse(document)
        if token.type == "inline"
    ]
    assert len(inline) == 6
    return [
        (
            "".join(part.content for part in token.children),
            {part.type for part in token.children},
        )
        for token in inline[3:]
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_cell_of_code(command):
    (_, _), (shown, kinds), (value, _) = cells_of(code(command))
    line = " ".join(command.split())
    assert shown.removesuffix("…") == line[:LONGEST]
    assert kinds == {"code_inline"}
    assert value == "1 s"


@pytest.mark.parametrize("text", ["a | b", "first\nsecond", "a <img src=x> b", "profile_step, x"])
def test_a_text_is_one_cell_of_text(text):
    (_, _), (shown, kinds), (_, _) = cells_of(cell(text))
    assert shown == " ".join(text.split())
    assert "html_inline" not in kinds
