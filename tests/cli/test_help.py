"""Help in the terminal's language: every text has its translation, and fits a terminal."""

import re
from collections.abc import Iterator
from string import Formatter

import click
import pytest
from rich.cells import cell_len

from mfulab.__main__ import main
from mfulab.cli.commands import COMMANDS, READERS
from mfulab.cli.help import broken, translations
from mfulab.cli.main import main as run
from mfulab.cli.main import tree
from mfulab.core.language import Texts


@pytest.fixture
def texts(monkeypatch):
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    return translations()


def commands() -> Iterator[click.Command]:
    context = click.Context(tree, info_name="mfulab")
    yield tree
    for name in COMMANDS:
        command = tree.get_command(context, name)
        assert command is not None
        yield command


def english() -> set[str]:
    """Every text that help shows in English."""
    shown = set(READERS)
    for command in commands():
        for text in (command.help, command.epilog):
            for paragraph in (text or "").split("\n\n"):
                if not paragraph.startswith("\b"):
                    shown.add(" ".join(paragraph.split()))
        for option in command.params:
            shown.add(getattr(option, "help", "") or "")
    return shown - {""}


def test_every_text_of_help_has_a_translation_and_no_other_one_is_kept(texts):
    assert english() - set(texts) == set()
    of_click = {
        "Usage:",
        "Options",
        "Commands",
        "Example:",
        "default",
        "[required]",
        "(that of LANG)",
    }
    assert set(texts) - english() - of_click == {"Show this message and exit."}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_told_in_the_terminals_language_on_80_columns(name, texts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*filter(None, [name]), "--help"]) == 0
    printed = capsys.readouterr().out
    for text in (texts["Usage:"], texts["Options"]):
        assert text in printed
    assert "[default: " not in printed
    assert "[required]" not in printed
    head, _, _ = printed.partition(texts["Example:"])  # a command stays whole
    assert max(cell_len(line) for line in head.splitlines()) <= 80
    summary = COMMANDS[name].summary if name else str(tree.help)
    assert "".join(texts[summary].split()) in "".join(printed.split())


def test_help_is_english_elsewhere(capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    assert not translations()
    assert main(["peak", "--help"]) == 0
    assert COMMANDS["peak"].summary.split(":")[0] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("width", [1, 10, 24, 79])
def test_lines_hold_every_word_and_are_no_wider(width):
    text = "장치에 들어가는지와 들어가는 a largest batch를 알려 줍니다."
    lines = [*broken(text, width)]
    assert " ".join(lines) == text
    assert all(cell_len(line) <= width or " " not in line for line in lines)
    assert [*broken("", width)] == [""]


MISTAKES = [
    ("bits 1 --format int8", "no_such_choice"),
    ("check --baseline", "option_needs_value"),
    ("check --json=x", "option_takes_none"),
    ("check --no-such", "no_such_option"),
    ("check a b", "extra_argument"),
    ("compare a b --gate fast", "no_share"),
    ("flops gpt2 --batch-size 0", "no_integer"),
    ("watch --interval 0", "no_number_within"),
    ("watch --engine ftp:x", "no_address"),
    (f"summary --tables {'n' * 300}", "path_too_long"),
]


@pytest.mark.parametrize(("words", "key"), MISTAKES, ids=[key for _, key in MISTAKES])
def test_a_mistake_is_told_without_english(words, key, texts, capsys):
    assert run(words.split()) == 2
    *_, told = capsys.readouterr().err.splitlines()
    template = Texts("ko", "reasons")._find(key)
    assert re.search(r"[가-힣]", template)
    literals = [re.escape(literal) for literal, *_ in Formatter().parse(template)]
    assert re.search(".*".join(literals), told)
    assert not re.search(r"Invalid|Option|is no|Got|unexpected|Error", told)
