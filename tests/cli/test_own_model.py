"""The worked example of docs/flops.md: a user's own file, counted by its dotted path as a user types it."""

import os
import re
import subprocess
import sys

import pytest
from support.processes import HANGS_S
from support.workflow_copy import ROOT

from mfulab.measurements.count_flops import CountFlopsConfig
from mfulab.measurements.count_flops.measure import measure


def by_hand(batch_size: int, width: int = 64, depth: int = 4, classes: int = 10) -> int:
    places = 8 * 8
    patches = 2 * 3 * 64 * width * places
    block = 2 * places * (25 * width + width**2)
    return batch_size * (patches + depth * block + 2 * width * classes)


@pytest.mark.parametrize("width", [64, 32])
def test_counts_are_those_worked_out_by_hand(tmp_path, monkeypatch, width):
    monkeypatch.syspath_prepend(ROOT / "examples")
    model = {
        "name": "my_model",
        "_target_": "my_model.build",
        "arguments": {"width": width},
        "input_shape": [3, 64, 64],
    }
    row = measure(CountFlopsConfig(model=model, batch_size=8), tmp_path).row
    assert row.forward_flops == by_hand(8, width)
    assert row.uncounted_operators is None


def test_the_documented_command_prints_the_tree():
    command = [
        sys.executable,
        "-m",
        "mfulab",
        "run",
        "count_flops",
        "model._target_=examples.my_model.build",
        "+model.arguments.width=32",
        "model.input_shape=[3,64,64]",
        "batch_size=8",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    assert "PatchMixer" in done.stdout
    assert re.search(rf"forward_flops +{by_hand(8, 32) / 1e6:.1f} MFLOP", done.stdout)
    documented = (ROOT / "docs" / "flops.md").read_text()
    assert "model._target_=examples.my_model.build" in documented
