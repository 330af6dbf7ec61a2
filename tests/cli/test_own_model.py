"""The worked example of docs/flops.md: a user's own file, counted by its dotted path."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from support.processes import HANGS_S
from support.slow import few
from support.workflow_copy import ROOT, Project, copy_workflow

from mfulab.lab.planning.composition import compose_experiments
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


@pytest.mark.slow
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
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
    assert "PatchMixer" in done.stdout
    assert re.search(rf"forward_flops +{by_hand(8, 32) / 1e6:.1f} MFLOP", done.stdout)
    documented = (ROOT / "docs" / "flops.md").read_text()
    assert "model._target_=examples.my_model.build" in documented


LINEAR = """
name: "{name}"
_target_: torch.nn.Linear
arguments: {{in_features: 4, out_features: 4}}
input_shape: [4]
"""


@pytest.fixture(scope="module")
def own_project(tmp_path_factory):
    """A copy of the workflow with a model of the user's own, and models whose names are digits."""
    copy = Project(copy_workflow(tmp_path_factory.mktemp("own") / "project"))
    (copy.folder / "my_module.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(4, 4)\n"
    )
    for name in ("123_456", "7"):
        (copy.folder / f"config/model/{name}.yaml").write_text(LINEAR.format(name=name))
    return copy


@pytest.mark.slow
@pytest.mark.workflow
def test_the_readmes_command_measures_the_model_alone(own_project):
    [command] = re.findall(
        r"^snakemake .*my_module.*$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    would = own_project.run(*shlex.split(command), "-n").stdout
    profiled = re.findall(r"^Profiling model=my_module.build,.*$", would, re.MULTILINE)
    precisions = [re.findall(r"precision=(\w+)", each)[0] for each in profiled]
    assert precisions.count("fp32") == 4
    assert precisions.count("bf16") in (1, 4)  # a machine that emulates it measures it once
    assert "Multiplying" not in would
    assert len(re.findall(r"model=(?!my_module.build,)", would)) == 0


@pytest.mark.slow
@pytest.mark.workflow
def test_snakemake_leaves_a_name_of_digits_as_it_is_typed(own_project):
    config = "--config", "experiment=miniature", "device=cpu", "model=123_456"
    would = own_project.snakemake("rows", "-n", *config).stdout
    assert "Counting FLOPs of model=123_456," in would


@pytest.mark.parametrize(
    ("typed", "names"),
    few(
        [
            ("resnet18,7,123_456", ["resnet18", "7", "123_456"]),
            ("'123_456'", ["123_456"]),
            ("123_456", ["123_456"]),
            ("7", ["7"]),
            ("choice(7, resnet18)", ["7", "resnet18"]),
        ],
        2,
    ),
)
def test_a_name_of_digits_is_no_number(own_project, typed, names):
    [composed] = compose_experiments(
        [f"model={typed}", "batch_size=1_024"], own_project.folder / "config"
    )
    assert [value.label for value in composed.axes["model"]] == names
    assert [value.content["name"] for value in composed.axes["model"]] == names
    assert composed.base["batch_size"] == 1024
