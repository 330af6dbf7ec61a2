"""The README's lines in place of a framework's table, against that framework's newest release.

Only the functions that a line replaces or calls are taken out of a release and run, here where the
test runs: no framework is installed. nanoGPT is in no index: its source is a clone in the folder
that MFULAB_CLONES names, else one that is made.
"""

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mfulab.peaks import peak

pytestmark = pytest.mark.slow
README = Path(__file__).parents[2] / "packages/peaks/README.md"
NAME = "NVIDIA H200"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Gives a file of a package's newest wheel; skips where the index does not answer."""

    def read(package: str, path: str) -> ast.Module:
        folder = tmp_path_factory.mktemp(package)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        only = ["--only-binary", ":all:", "--dest", str(folder), package]
        done = subprocess.run([*command, *only], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{package}: no release to be had: {done.stderr.strip().splitlines()[-1]}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return ast.parse(archive.read(path))

    return read


def taken(module: ast.Module, *names: str) -> dict[str, object]:
    """Functions and constants of a module by name, without the rest of it."""
    wanted = []
    for node in module.body:
        targets = [ast.unparse(target) for target in getattr(node, "targets", ())]
        if getattr(node, "name", None) in names or set(targets) & set(names):
            wanted.append(node)
    assert len(wanted) == len(names), f"of {names} there are {len(wanted)}"
    space: dict[str, object] = {"re": re, "log": None, "logger": None, "Optional": object}
    code = ast.Module([ast.parse("from __future__ import annotations").body[0], *wanted], [])
    exec(compile(ast.fix_missing_locations(code), "taken", "exec"), space)
    return space


def uses(module: ast.Module, name: str) -> int:
    """How often a module calls a function of its own by this name."""
    calls = (node.func for node in ast.walk(module) if isinstance(node, ast.Call))
    return sum(ast.unparse(called).rpartition(".")[2] == name for called in calls)


def test_torchtitan_asks_the_function_that_the_line_replaces(source):
    utils = source("torchtitan", "torchtitan/tools/utils.py")
    (function,) = (node for node in utils.body if getattr(node, "name", "") == "get_peak_flops")
    assert [argument.arg for argument in function.args.args] == ["device_name"]
    trainer = source("torchtitan", "torchtitan/trainer.py")
    assert uses(trainer, "get_peak_flops")
    imported = [ast.unparse(node) for node in ast.walk(trainer) if isinstance(node, ast.ImportFrom)]
    assert not any("get_peak_flops" in line for line in imported), "the line would not reach it"


def test_trl_computes_with_the_number_that_the_line_gives(source):
    space = taken(
        source("trl", "trl/trainer/utils.py"),
        "_PEAK_FLOPS_BY_DEVICE",
        "get_peak_flops",
        "get_peak_flops_per_device",
        "compute_mfu",
    )
    theirs = space["get_peak_flops"](NAME, "bfloat16")
    space["torch"] = type(
        "torch", (), {"cuda": type("cuda", (), {"get_device_name": lambda _: NAME})}
    )
    space["get_peak_flops"] = lambda device_name, dtype: peak(device_name, dtype).value
    accelerator = type("Accelerator", (), {"device": 0})
    ours = space["get_peak_flops_per_device"](accelerator, "bfloat16")
    assert ours == pytest.approx(theirs, rel=0.01)
    assert space["compute_mfu"](1e9, 1e3, 1, ours) == pytest.approx(1e14 / ours)


def test_olmo_core_s_callback_keeps_the_field_that_the_line_sets(source):
    module = source("ai2-olmo-core", "olmo_core/train/callbacks/speed_monitor.py")
    (callback,) = (
        node for node in module.body if getattr(node, "name", "") == "SpeedMonitorCallback"
    )
    fields = {ast.unparse(node.target) for node in callback.body if isinstance(node, ast.AnnAssign)}
    assert "device_peak_flops_per_second" in fields
    text = ast.unparse(callback)
    assert "self.device_peak_flops_per_second is None and" in text  # else it is looked up
    assert "/ self.device_peak_flops_per_second" in text


def test_lightning_s_callback_asks_the_function_that_the_line_replaces(source):
    module = source("pytorch-lightning", "pytorch_lightning/callbacks/throughput_monitor.py")
    assert uses(module, "get_available_flops")
    fabric = source("lightning-fabric", "lightning_fabric/utilities/throughput.py")
    space = {node.name: node for node in fabric.body if isinstance(node, ast.FunctionDef)}
    arguments = [argument.arg for argument in space["get_available_flops"].args.args]
    assert arguments == ["device", "dtype"]


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory) -> ast.Module:
    """nanoGPT's model; skips where there is no clone and none can be made."""
    folder = Path(os.environ.get("MFULAB_CLONES", tmp_path_factory.mktemp("clones"))) / "nanogpt"
    if not folder.exists():
        command = ["git", "clone", "--quiet", "--depth", "1"]
        address = "https://github.com/karpathy/nanoGPT"
        done = subprocess.run([*command, address, str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nanoGPT: no clone to be had: {done.stderr.strip().splitlines()[-1]}")
    return ast.parse((folder / "model.py").read_text(encoding="utf-8"))


def test_nanogpt_divides_by_the_number_that_the_line_gives(nanogpt):
    line = re.search(r"^flops_promised = .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    (function,) = (
        node for node in ast.walk(nanogpt) if getattr(node, "name", "") == "estimate_mfu"
    )
    theirs = estimated(function)
    (place,) = (
        place
        for place, node in enumerate(function.body)
        if ast.unparse(node).startswith("flops_promised =")
    )
    function.body[place] = ast.parse(line[0]).body[0]
    assert estimated(function) == pytest.approx(theirs * 312e12 / peak(NAME, "bf16").value)


def estimated(function: ast.FunctionDef) -> float:
    """What a function of nanoGPT's model makes of a small model's iteration."""
    cuda = SimpleNamespace(get_device_name=lambda: NAME)
    space = {"torch": SimpleNamespace(cuda=cuda), "peak": peak}
    code = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(code, "taken", "exec"), space)
    config = SimpleNamespace(n_layer=12, n_head=12, n_embd=768, block_size=1024)
    model = SimpleNamespace(config=config, get_num_params=lambda: 124_000_000)
    return space["estimate_mfu"](model, 40, 1.0)


def test_the_readme_has_each_line_that_is_tried_here():
    text = README.read_text(encoding="utf-8")
    for line in (
        "utils.get_peak_flops = lambda device_name: peak(",
        "utils.get_peak_flops = lambda device_name, dtype: peak(",
        "SpeedMonitorCallback(device_peak_flops_per_second=",
        "monitor.get_available_flops = lambda device, dtype: int(",
        "flops_promised = peak(",
    ):
        assert line in text
