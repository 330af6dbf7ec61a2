"""`mfulab paired`: one at a time in a checkout."""

import subprocess
import sys

from mfulab.cli import paired
from mfulab.cli.main import main

HOLD = """
import sys
from pathlib import Path
from mfulab.lab.planning import store

store.check_writable(Path(sys.argv[1]))
store.take(Path(sys.argv[1]))
print(flush=True)
input()
"""


def test_a_second_one_is_refused_and_removes_nothing_of_the_first(tmp_path, monkeypatch, capsys):
    place = tmp_path / "results/paired"
    monkeypatch.setattr(paired, "FOLDER", place)
    (place / "old").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()  # as a checkout has
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert main(["paired", "--base", str(tmp_path)]) == 2
        assert f"process {holder.pid}" in capsys.readouterr().err
        holder.communicate(b"\n")
    assert (place / "old").is_dir()
