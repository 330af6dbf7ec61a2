"""The recipes of docs/loops.md as they stand."""

import re
import shlex
import subprocess
import sys

import pytest
import torch
from support.processes import HANGS_S
from support.workflow_copy import ROOT
from torch import nn

import mfulab

TEXT = (ROOT / "docs/loops.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^mfulab (measure .*)$", TEXT, re.MULTILINE)


def test_named_phases():
    [code] = [code for code in PYTHON if "window.phase(" in code]
    policy, reference = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(policy.parameters())

    def update(policy, answers, kept):
        optimizer.zero_grad()
        (policy(answers) - kept).square().sum().backward()
        optimizer.step()

    without = torch.no_grad()
    world = {"mfulab": mfulab, "policy": policy, "reference": reference, "update": update}
    world |= {"loader": [torch.randn(4, 8) for _ in range(5)]}
    world |= dict.fromkeys(("generate", "score"), without(lambda model, batch: model(batch)))
    exec(code.replace("])", "], quiet=True, ceiling_s=0)"), world)
    one = 2 * 4 * 8 * 8
    flops = {name: row["flops"] for name, row in world["window"].phases.items()}
    assert flops == {"rollout": one, "reference": one, "train": 2 * one}


@pytest.mark.slow
def test_a_script_that_is_not_changed():
    [command] = COMMANDS
    _, *words = shlex.split(command)
    asked = [sys.executable, "-m", "mfulab", "measure", "--ceiling", "0", *words]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "mfulab measure: Sequential, a step ends with AdamW.step()" in said
    assert re.search(
        r"loader [\d.]+ ms · forward [\d.]+ ms · backward [\d.]+ ms · optimiser [\d.]+ ms · rest",
        said,
    )
