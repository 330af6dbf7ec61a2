"""The commands of a recording, without a GPU: their parts' limits, what they leave, and that what they name exists."""

import os
import re
import shutil
import subprocess
import tarfile

import pytest
from support.workflow_copy import ROOT

FOLDER = ROOT / "validation" / "recording"
COMMANDS = sorted(FOLDER.glob("[0-9]_*.sh"))
KERNELS = {path.stem for path in (ROOT / "config" / "kernel").glob("*.yaml")}
EXPERIMENTS = {path.stem for path in (ROOT / "config" / "experiment").glob("*.yaml")}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.stem)
def test_a_command_names_what_exists(command):
    subprocess.run(["bash", "-n", command], check=True)
    text = command.read_text()
    assert {name for names in re.findall(r"experiment=([\w,]+)", text) for name in names.split(",")} <= EXPERIMENTS
    assert set(re.findall(r"\bcuda_(?:hopper\w*|grouped)\b", text)) <= KERNELS
    for path in re.findall(r"(?:validation|tests)/[\w/]+\.py", text):
        assert (ROOT / path).exists(), path


def run(tmp_path, body):
    """Ends of parts of a command made of `body`, in a tree of its own."""
    shutil.copytree(FOLDER, tmp_path / "validation" / "recording")
    (tmp_path / "validation" / "recording" / "9_mine.sh").write_text(f'. "$(dirname "$0")/common.sh"\n{body}\ntrue\n')
    environment = os.environ | {"SITE": str(tmp_path / "site"), "LIMIT_S": "30"}
    command = ["bash", str(tmp_path / "validation" / "recording" / "9_mine.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "recorded" / "parts.txt").read_text()


def test_a_part_that_hangs_or_fails_costs_itself_alone(tmp_path):
    ends = run(tmp_path, "part hangs 1 sleep 60\npart fails 9 false\npart works 9 true\nLIMIT_S=0\npart late 9 true")
    assert re.findall(r"(\w+): (?:status (\d+)|left out)", ends) == [
        ("hangs", "124"),
        ("fails", "1"),
        ("works", "0"),
        ("late", ""),
    ]


def test_results_are_packed_without_traces_and_the_next_command_goes_on_from_them(tmp_path):
    made = "mkdir -p results/gpu/profile_step/a && touch results/gpu/profile_step/a/{row.csv,trace.json.gz}"
    run(tmp_path, f"part make 9 bash -c '{made}'")
    with tarfile.open(tmp_path / "recorded" / "results.tgz.00") as packed:
        assert [name for name in packed.getnames() if name.endswith((".csv", ".gz"))] == [
            "results/gpu/profile_step/a/row.csv"
        ]
    shutil.rmtree(tmp_path / "results")
    shutil.rmtree(tmp_path / "validation")
    run(tmp_path, "part look 9 test -e results/gpu/profile_step/a/row.csv")
    assert "look: status 0" in (tmp_path / "recorded" / "parts.txt").read_text()
