"""The `mfulab` command as it is typed."""

import subprocess
import sys

import pytest

import mfulab
from mfulab.cli.main import main


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
    assert "No such command 'wach'" in capsys.readouterr().err


def test_a_subcommand_runs():
    assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "1"]) == 0


def test_help_waits_for_nothing_that_measures():
    code = "import sys, mfulab.cli.main as m; m.main([]); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "rich", "pydantic", "psutil"} & set(loaded)
