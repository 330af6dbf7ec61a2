"""Every subcommand with words from its own parameters, most of them none that it can use: an exit
status and a sentence, never a traceback, and no escape in what it prints."""

import json
import os
import signal
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.slow import few

from mfulab.cli.commands import COMMANDS
from mfulab.cli.main import main, tree
from mfulab.cli.options import Address, Location, Name, Number, Overrides, Share
from mfulab.core.printing import say_json
from mfulab.device.system import place_in

TREE = click.Context(tree)
EXAMPLES = int(os.environ.get("MFULAB_EXAMPLES", "8"))
LONGEST_S = 120  # of a command, on a machine that does other things too
ESCAPE = "\x1b[2J\x1b]0;owned\a"
TEXTS = ("", " ", "x", "\udcff", ESCAPE, "a\nb", "‮x", "x" * 300, "x/" * 3000, "[" * 5000)
TEXTS += ("=", "a=b", "a=[", "{}", "$(x)", "한글", "-", "null", "../..", "*", "(", "9" * 5000)
NUMBERS = ("0", "1", "2", "-1", "nan", "inf", "-inf", "1e-9", "1e-320", "1e400", "0x1", "1_0", "٣")
NUMBERS += ("9" * 5000, "1" * 19, "5%", "101%", "nan%", "0.5", "", "one", ESCAPE)
PATHS = ("/proc", "/dev/null", "/dev/full/x", "/nonexistent/x", "folder", "folder/file", "", ".")
PATHS += ("latin-\udce9", "x" * 256, "한" * 90, "y/" * 2100, f"folder/{ESCAPE}", "binary", "\0")
ADDRESSES = ("", "http://", "http://[", "file:///etc/passwd", "localhost:99999", "127.0.0.1:9", " ")
ADDRESSES += ("http://127.0.0.1:9/\x1b", "http://é.invalid", "x" * 400, "http://a:b", "\udcff")
GIVEN = ("model=digit_cnn", "batch_size=2", "device=H200", "tokens_per_s=nan", "time_s=1e400")
GIVEN += ("experiment=nothing", "size=1", "kernel=numpy", "+a=1", "~a", "a.b.c=1", "batch_size=-1")
# What keeps a command that is right from measuring for minutes, or for ever.
ENDS = {
    "run": ["--cfg", "job"],
    "watch": ["--count", "1", "--interval", "0.001"],
    "gate": ["--minutes", "0.001"],
    "paired": ["--minutes", "0.001"],
    "refine": ["--minutes", "0"],
    "check": ["--table", "folder/file"],
}
# Ports would be served for ever; a sweep's experiments of this checkout are not to be written.
LEFT_OUT = {"--prometheus", "--fix", "--help"}


def values(param: click.Parameter) -> st.SearchStrategy[str]:
    """Words for a parameter, by its type."""
    kind = param.type
    if isinstance(kind, Number | Share):
        return st.sampled_from(NUMBERS)
    if isinstance(kind, Location):
        return st.sampled_from(PATHS)
    if isinstance(kind, Address):
        return st.sampled_from(ADDRESSES)
    if isinstance(kind, click.Choice):
        return st.sampled_from((*kind.choices, "nothing", ""))
    if isinstance(kind, Name):
        known = [name for name in kind.choices() if name in ("digit_cnn", "H200-NVL", "bf16", "en")]
        return st.sampled_from((*TEXTS, *known, *known, *known))
    if isinstance(kind, Overrides):
        return st.sampled_from((*TEXTS, *GIVEN, *GIVEN))
    return st.sampled_from((*TEXTS, *PATHS))


def parameters(name: str) -> list[tuple[click.Parameter, st.SearchStrategy[str]]]:
    """A subcommand's parameters, each with its words; asked for before any is drawn, since a
    command's module is imported for them."""
    found = []
    for param in tree.get_command(TREE, name).params:
        if LEFT_OUT & set(param.opts):
            continue
        # a file that is there would be run
        is_script = name == "measure" and param.nargs == -1
        found.append((param, st.sampled_from(TEXTS) if is_script else values(param)))
    return found


@st.composite
def typed(draw, name: str, params: list[tuple[click.Parameter, st.SearchStrategy[str]]]):
    """A command line."""
    words = [name]
    for param, kind in params:
        is_option = isinstance(param, click.Option)
        if is_option and not param.required and draw(st.integers(0, 3)):
            continue
        if is_option and param.is_flag:
            words.append(param.opts[0])
            continue
        count = draw(st.integers(1, 2)) if param.nargs == -1 or param.multiple else 1
        for _ in range(count):
            words += [param.opts[0]] * is_option
            words.append(draw(kind))
    return words + ENDS.get(name, [])


@pytest.fixture(autouse=True)
def no_other_program(monkeypatch) -> None:
    """Keeps this process from becoming Python with a script."""
    monkeypatch.setattr(os, "execve", lambda *_: 0)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A working folder with little in it."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "folder").mkdir()
    (made / "folder/file").write_text("{}\n")
    (made / f"folder/{ESCAPE}.json").write_text('{"traceEvents": []}')
    (made / "binary").write_bytes(bytes(range(256)))
    os.close(os.open(os.fsencode(made) + b"/latin-\xe9", os.O_CREAT))
    return made


def run(words: list[str], capfd) -> None:
    """Runs a command line; it must end by itself, with a status and no traceback."""

    def hangs(*_):
        raise AssertionError(f"{words} has not ended")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LONGEST_S)
    try:
        status = main(words)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    printed = "".join(capfd.readouterr())
    assert status in (0, 1, 2, 3), words
    assert "Traceback" not in printed, (words, printed)
    assert "\x1b" not in printed, (words, printed)
    assert "\a" not in printed, (words, printed)


def look(name: str, examples: int, folder: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(folder)

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(typed(name, parameters(name)))
    def check(words: list[str]) -> None:
        run(words, capfd)

    check()


# By day without the command that trains and counts whole models, whatever its words.
@pytest.mark.parametrize("name", few(sorted(COMMANDS, key="seminar".__eq__), len(COMMANDS) - 1))
def test_no_words_cost_a_traceback(name, folder, monkeypatch, capfd):
    look(name, 4, folder, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_words_cost_a_traceback_at_night(name, folder, monkeypatch, capfd):
    look(name, max(100, min(EXAMPLES, 200)), folder, monkeypatch, capfd)


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "--interval", "nan"],
        ["watch", "--interval", "1e-9"],
        ["watch", "--interval", "1e300"],
        ["watch", "--jobs", ""],
        ["watch", "--jobs", "file:///etc/passwd"],
        ["watch", "--engine", "http://["],
        ["gate", "--minutes", "inf", "true", "true"],
        ["gate", "--minutes", "1e-9", "true", "true"],
        ["gate", "--base", "\udcff", "true"],
        ["gate", "--noticeable", "nan", "true", "true"],
        ["paired", "--base", "x" * 300],
        ["measure", "--seconds", "inf", "x"],
        ["measure", "x" * 300],
        ["refine", "--minutes", "nan"],
        ["summary", "--page", "한" * 90],
        ["tables", "--out", "/dev/null"],
        ["flops", "digit_cnn", "--batch-size", "9" * 5000],
        ["flops", "digit_cnn", "batch=" + "9" * 5000],
        ["flops", "digit_cnn", "a=" + "[" * 5000],
        ["fits", "digit_cnn", "--device", "H200-NVL", "--batch-size", "1" * 12],
        ["explain", "model=digit_cnn", "device=H200-NVL", "batch_size=" + "9" * 5000],
        ["explain", "model=digit_cnn", "device=H200-NVL", "time_s=1e-320", "batch_size=1"],
        ["bits", "9" * 5000],
        ["slides", "kernels", "--topics", "/dev/null"],
        ["slides", "kernels", "--topics", "folder"],
        ["trace", "x" * 300],
        [ESCAPE],
    ],
)
def test_what_no_command_can_use_is_one_sentence(words, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    assert main(words) == 2
    said = capfd.readouterr().err
    assert said.splitlines()[-1].startswith(("mfulab: ", "Error: "))
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLUMNS", "9" * 5000),
        ("COLUMNS", "9" * 12),
        ("COLUMNS", "²"),
        ("CUDA_VISIBLE_DEVICES", "9" * 5000),
        ("CUDA_VISIBLE_DEVICES", "²"),
        ("HIP_VISIBLE_DEVICES", "9" * 5000),
    ],
)
def test_no_variable_costs_a_traceback(name, value, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    monkeypatch.setenv(name, value)
    run(["watch", "--count", "1", "--interval", "0.001"], capfd)
    assert all(place_in(entry, 8) == 8 for entry in ("9" * 5000, "²", "", "-1", "8", "a"))
    assert place_in(" 7 ", 8) == 7


@pytest.mark.parametrize("words", [["summary", "--tables", "/"], ["summary", "--tables", "folder"]])
def test_a_folder_without_tables_is_one_sentence(words, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    assert main(words) == 1
    assert capfd.readouterr().out.count("\n") == 1


def test_a_letter_that_commands_a_terminal_stays_in_json(capsys):
    value = {"name": f"{ESCAPE}\x9b\u202e한\n"}
    say_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert printed.removesuffix("\n").isprintable()


def test_names_of_files_command_no_terminal(folder, monkeypatch, capfd):
    """A trace's, a folder's and a script's."""
    monkeypatch.chdir(folder)
    script = folder / f"{ESCAPE}.py"
    script.write_text("1 / 0")
    for words in (
        ["trace", "folder"],
        ["trace", f"folder/{ESCAPE}.json", "--json"],
        ["measure", f"{ESCAPE}.txt"],
        ["goodput", f"folder/{ESCAPE}"],
        ["collect", f"folder/{ESCAPE}"],
    ):
        assert main(words) in (1, 2), words
        printed = "".join(capfd.readouterr())
        assert "owned" in printed
        assert {*printed} & {"\x1b", "\a", "\x9b"} == set()
