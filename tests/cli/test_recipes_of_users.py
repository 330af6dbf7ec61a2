"""The Python of docs/recipes.md as it stands."""

import csv
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support.workflow_copy import ROOT

from mfulab.cli.main import main
from mfulab.kernels.base import Launch

PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(part: str) -> str:
    [code] = [code for code in BLOCKS if part in code]
    return code


def names(part: str) -> dict[str, object]:
    world: dict[str, object] = {}
    exec(compile(block(part), "docs/recipes.md", "exec"), world)
    return world


def test_every_block_is_run_here():
    parts = ("class ImageAndWords", "class ByRows", "def to_wandb", "def mfu")
    assert [block(part) for part in parts] == BLOCKS


def test_a_model_of_two_inputs_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_inputs.py").write_text(block("class ImageAndWords"))
    [typed] = re.findall(r"^    mfulab (flops .*two_inputs.*)$", PAGE, re.MULTILINE)
    words = [word.strip("'") for word in typed.split()]
    assert main([*words, "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    forward = 8 * (2 * 8 * 27 * 32 * 32 + 2 * (8 * 32 * 32 + 32) * 10)
    assert layers[0]["forward_flops"] == forward


@pytest.mark.parametrize(
    "workload", ["training", pytest.param("inference", marks=pytest.mark.slow)]
)
def test_a_model_of_two_inputs_is_measured(workload, tmp_path):
    (tmp_path / "two_inputs.py").write_text(block("class ImageAndWords"))
    [typed] = re.findall(r"^    mfulab (run .*two_inputs.*)$", PAGE, re.MULTILINE)
    words = [word.strip("'") for word in typed.split()]
    short = ["timing.windows=2", "timing.window_time_s=0.1", "batch_size=2", "device=cpu"]
    start = "import sys; from mfulab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, *words, *short, f"workload={workload}", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    row = json.loads(done.stdout)
    assert row["status"] == "ok"
    assert row["flops"] > 0


def test_the_kernel_multiplies():
    kernel = names("class ByRows")["ByRows"]("fp32")
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    c = torch.zeros(5, 3)
    operands = kernel.prepare(a.numpy(), b.numpy(), c.numpy())
    kernel.run(*operands, launch=Launch(()))
    torch.testing.assert_close(c, a @ b)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Rows that are measured, recorded and failed; the first lacks a number."""
    row = {"run": "a", "status": "ok", "recorded": "False", "model": "gpt2", "mfu_percent": "12.5"}
    row |= {"energy_j": "", "time_s": "0.25"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/tables").mkdir(parents=True)
    with (tmp_path / "results/tables/profile.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows([row, row | {"recorded": "True"}, row | {"status": "failed"}])


def test_rows_become_runs_of_a_tracker(table, monkeypatch):
    seen = []

    @contextmanager
    def run(**given):
        seen.append(given)
        yield SimpleNamespace(log=seen.append)

    for name, attributes in {
        "wandb": {"init": run},
        "mlflow": {
            "set_experiment": seen.append,
            "start_run": run,
            "log_params": seen.append,
            "log_metrics": seen.append,
        },
    }.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    recipe = names("def to_wandb")
    settings, numbers = {"model": "gpt2"}, {"mfu_percent": 12.5, "time_s": 0.25}
    recipe["to_wandb"]("mine")
    assert seen == [{"project": "mine", "name": "a", "config": settings}, numbers]
    seen.clear()
    recipe["to_mlflow"]("mine")
    assert seen == ["mine", {"run_name": "a"}, settings, numbers]


@pytest.mark.parametrize(("status", "expected"), [("ok", 3.5), ("out_of_memory", None)])
def test_an_optimiser_gets_mfu_or_none(status, expected, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command)
        return SimpleNamespace(stdout=json.dumps({"status": status, "mfu_percent": 3.5}))

    monkeypatch.setattr(subprocess, "run", run)
    assert names("def mfu")["mfu"](model="gpt2", batch_size=2) == expected
    assert asked[0][-2:] == ["model=gpt2", "batch_size=2"]
