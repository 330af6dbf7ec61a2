"""The table of docs/exit_codes.md against the commands."""

import inspect
import re
from pathlib import Path

import pytest

from mfulab.__main__ import main
from mfulab.cli import check, gate, refine
from mfulab.cli.commands import COMMANDS
from mfulab.cli.main import MISTAKE, tree
from mfulab.lab.tables import compare

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/exit_codes.md").read_text(encoding="utf-8")
OTHERS = {"measure", "run"}  # end with the code of a script, or of a run's process


def table() -> dict[str, dict[int, str]]:
    """What codes 1, 2 and 3 mean, by command; a code without a meaning of its own is left out."""
    found = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and (name := cells[0].strip("`")) in COMMANDS:
            meanings = enumerate(cells[1:], start=1)
            found[name] = {code: meaning for code, meaning in meanings if meaning}
    return found


TABLE = table()


def test_every_command_has_a_line():
    assert TABLE.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_codes_of_the_help_are_in_the_table(name):
    command = tree.get_command(None, name)  # type: ignore[arg-type]
    told = " ".join(str(command.help).split())
    options = " ".join(str(getattr(param, "help", "")) for param in command.params)
    sentences = [part for part in re.split(r"[.;]", f"{told} {options}") if "status" in part]
    codes = {int(code) for code in re.findall(r"\b([123])\b (?:for|where|if)", " ".join(sentences))}
    assert codes <= TABLE[name].keys()


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - OTHERS))
def test_a_command_that_returns_no_status_has_no_code_of_its_own(name):
    callback = tree.get_command(None, name).callback  # type: ignore[arg-type]
    if inspect.signature(callback).return_annotation in (None, "None"):
        assert not TABLE[name]


def test_codes_of_verdicts_are_those_of_the_code():
    assert set(gate.STATUS.values()) - {0} == {1, 3} <= TABLE["gate"].keys()
    assert set(check.STATUS.values()) - {0} == TABLE["check"].keys()
    assert {refine.UNDECIDED} == TABLE["refine"].keys()
    assert compare.UNDECIDED in TABLE["compare"].keys() & TABLE["paired"].keys()


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - OTHERS))
def test_a_mistake_ends_with_2(name, capsys):
    assert main([name, "--no-such-option"]) == MISTAKE


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["peak", "Apple M4"], 1),
        (["summary", "--tables", "none"], 1),
        (["figures", "--tables", "none", "--only", "roofline"], 1),
        (["trace", "broken.json"], 1),
        (["fits", "simple_cnn", "--batch-size", "9000000", "--device", "Tesla T4"], 1),
        (["compare", "none", "none"], 2),
        (["gate", "--minutes", "0.1", "exit 3", "exit 3"], 2),
        (
            [
                *("explain", "model=gpt2", "batch_size=8", "sequence_length=64"),
                *("time_s=0.1", "reported=99", "device=NVIDIA L40S"),
            ],
            1,
        ),
        (["bits", "0.1"], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_answers_end_with_the_codes_of_the_table(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"traceEvents": [')
    assert main(words) == code, capsys.readouterr()
    assert code in {0, MISTAKE, *TABLE[words[0]]}
