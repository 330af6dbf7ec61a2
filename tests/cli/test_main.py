"""The `mfulab` command as it is typed."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.words import faults
from support.workflow_copy import ROOT

import mfulab
from mfulab.cli.commands import COMMANDS
from mfulab.cli.main import _of_file, main, tree
from mfulab.cli.options import short
from mfulab.core.errors import FEW, unknown
from mfulab.core.files import AbsentError
from mfulab.core.language.sentences import sentence
from mfulab.core.said import Said
from mfulab.lab.report import figures
from mfulab.mfu import models

TREE = click.Context(tree)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_word_it_lists_its_subcommands(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for word in ("watch", "peak"):
        assert f"\n  {word} " in printed


def test_version(capsys):
    assert main(["--version"]) == 0
    assert mfulab.__version__ in capsys.readouterr().out


def test_an_unknown_word_is_one_message(capsys):
    assert main(["wach"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mfulab: wach: no such command. Did you mean watch?")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("x.so: failed to map segment from shared object")]
)
def test_too_little_memory_is_one_sentence(error, monkeypatch, capsys):
    """As under `ulimit -v`, or in a container; a library may be the first that finds none."""

    def none_left(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tree, "main", none_left)
    assert main(["peak"]) == 2
    assert "not enough memory" in capsys.readouterr().err


def test_every_subcommand_says_what_it_does_and_gives_an_example(capsys):
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert f"Example:\n    mfulab {name}" in capsys.readouterr().out


def test_every_declared_function_takes_what_is_declared():
    for name in COMMANDS:
        command = tree.get_command(TREE, name)
        given = {each.name for each in command.params if each.expose_value}
        signature = inspect.signature(command.callback)
        try:
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            pytest.fail(f"{name}: {error}")


@pytest.mark.parametrize(
    ("typed", "place", "offered"),
    [
        ("mfulab wa", 1, "watch"),
        ("mfulab run profile_step model = resnet1", 5, "resnet18"),
        ("mfulab figures --only roofl", 3, "roofline"),
        ("mfulab fits gpt2 --device a100-p", 4, "A100-PCIe-80GB"),
        ("mfulab explain mode = dec", 4, "decoding"),
        ("mfulab run profile_s", 2, "profile_step"),
        ("mfulab run profile_step mod", 3, "model="),
        ("mfulab peak h100", 2, "H100-SXM5-80GB"),
        ("mfulab peak mi250", 2, "MI250X"),
        ("mfulab fits gpt2_m", 2, "gpt2_medium"),
        ("mfulab check --device c", 3, "cuda"),
        ("mfulab explain dev", 2, "device="),
        ("mfulab explain model = gpt2 device = h200", 7, "H200-NVL"),
        ("mfulab page --lang", 2, "--language"),
    ],
)
def test_bash_completes_commands_options_and_overrides(typed, place, offered, monkeypatch, capsys):
    monkeypatch.setenv("_MFULAB_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(place))
    with pytest.raises(SystemExit):
        main([])
    assert f"plain,{offered}" in capsys.readouterr().out.split()


def test_the_command_that_bash_asks_completes():
    asked = {"_MFULAB_COMPLETE": "bash_complete", "COMP_WORDS": "mfulab wa", "COMP_CWORD": "1"}
    assert _typed("", **asked).stdout.split() == ["plain,watch"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_stands_alone(name):
    command = tree.get_command(TREE, name)
    helps = [command.help, *(getattr(each, "help", None) or "" for each in command.params)]
    paragraphs = [" ".join(each.split()) for text in helps for each in text.split("\n\n")]
    assert {each: said for each in paragraphs if (said := faults(each))} == {}


def test_help_lists_every_subcommand_whole_under_its_reader(capsys):
    main([])
    printed = " ".join(capsys.readouterr().out.split())
    for name, entry in COMMANDS.items():
        assert f"{entry.reader}: " in printed
        assert f" {name} {entry.summary}" in printed
    assert "..." not in printed.partition("Options:")[2]


PEAKS = "peak 'NVIDIA H100 80GB HBM3'"  # of few imports


def _typed(command: str, **more: str) -> subprocess.CompletedProcess[str]:
    words = f"{sys.executable} -m mfulab {command}"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | more
    return subprocess.run(
        ["bash", "-c", words],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        cwd="/",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_an_output_that_cannot_be_written_is_one_sentence():
    done = _typed(f"{PEAKS} > /dev/full")
    found = (done.returncode, done.stderr)
    assert found == (2, "mfulab: the output cannot be written: No space left on device\n")
    assert _typed("schema | head -c 10").stderr == ""


def test_a_terminal_without_width_or_letters_is_no_error():
    done = _typed(PEAKS, COLUMNS="0", PYTHONIOENCODING="iso-8859-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("NVIDIA H100")


def test_outside_a_checkout_a_measurement_takes_the_configuration_of_the_package():
    done = _typed("run bench_matmul --cfg job kernel=numpy size=64")
    assert done.returncode == 0, done.stderr
    assert {"name: numpy", "size: 64"} <= {line.strip() for line in done.stdout.splitlines()}
    assert _typed("summary").returncode == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "flops rsnet18",
            "model=rsnet18: unknown. Did you mean resnet18 or resnet50? All {model}: mfulab flops --list",
        ),
        (
            "fits rsnet18 --device H200",
            "model=rsnet18: unknown. Did you mean resnet18 or resnet50? All {model}: ",
        ),
        (
            "explain model=rsnet18 samples_per_s=1 device=H200",
            "model=rsnet18: unknown. Did you mean resnet18 or ",
        ),
        (
            "fits resnet18 --device RTX",
            "device=RTX: there is no datasheet of 'RTX' here, so its peak is unknown; did ",
        ),
        ("peak RTX", "there is no datasheet of 'RTX' here, so its peak is unknown; did you mean "),
        (
            "figures --only rooflin",
            "figure=rooflin: unknown. Did you mean roofline? All {figure}: ",
        ),
        ("figures --only Zipf", "figure=Zipf: unknown. All {figure}: "),
        (
            "run bench_matmul kernel=triton_plan",
            "kernel=triton_plan: unknown. Did you mean triton_plain, ",
        ),
        (
            "run bench_matml",
            "measurement=bench_matml: unknown. Did you mean bench_matmul? Choices: ",
        ),
        (
            "schema profil_step",
            "measurement=profil_step: unknown. Did you mean profile_step? Choices: ",
        ),
    ],
)
def test_a_wrong_name_has_the_nearest_and_where_all_are_in_a_short_message(typed, said, capsys):
    counts = {"model": len(models.names()), "figure": len(list(figures.modules()))}
    assert main(typed.split()) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"mfulab: {said.format(**counts)}")
    assert len(message) < 300
    assert " All " in message or " Choices: " in message


@given(
    st.text("abz_9", max_size=8),
    st.sets(st.text("abz_9", min_size=1, max_size=8), min_size=1, max_size=40),
)
def test_an_unknown_name_has_three_near_ones_or_all(value, choices):
    message = str(unknown("key", value, choices, "there"))
    hints = re.split(", | or ", message.partition("Did you mean ")[2].partition("?")[0])
    assert {*hints} - {""} <= choices
    assert len(hints) <= (3 if len(choices) > FEW else 1)
    assert message.endswith(
        f" All {len(choices)}: there." if len(choices) > FEW else f" {', '.join(sorted(choices))}."
    )


def test_a_subcommand_runs():
    assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "1"]) == 0


def test_help_waits_for_nothing_that_measures():
    code = "import sys, mfulab.cli.main as m; m.main([]); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "rich", "pydantic", "psutil"} & set(loaded)
    own = {name for name in loaded if name.startswith("mfulab.cli.")}
    assert own == {f"mfulab.cli.{name}" for name in ("main", "commands", "help", "options")}


@pytest.mark.parametrize(
    "words", [["tables", "--root"], ["figures", "--out"], ["refine", "--results"]]
)
def test_a_file_in_a_folders_place_is_a_mistake_that_names_it(words, tmp_path, capsys):
    file = tmp_path / "a file"
    file.write_text("")
    assert main([*words, str(file)]) == 2
    refused = Said("file_for_a_folder", {"value": short(str(file))})
    assert str(refused) in capsys.readouterr().err


def test_a_missing_option_is_named_in_korean(monkeypatch, capsys):
    monkeypatch.setenv("LANG", "ko_KR.UTF-8")
    assert main(["fits", "gpt2"]) == 2
    assert sentence("missing_option", {"option": "--device"}, "ko") in capsys.readouterr().err


def test_a_missing_file_is_named_by_an_error_of_ours():
    """It has neither a name nor a number of the system's, unlike errors of open()."""
    said = _of_file(AbsentError(Path("nowhere.csv"), Said("no_such_file")))
    assert "nowhere.csv" in str(said)
