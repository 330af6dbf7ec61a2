"""What each install is enough for: the base, `mfulab[torch]`, and what editors see."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from support.processes import HANGS_S
from support.workflow_copy import ROOT

import mfulab
from mfulab.core.errors import EXTRAS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = {Requirement(text).name for text in PROJECT["dependencies"]}

SCRIPT = """
import importlib.machinery, sys

class Missing:
    \"\"\"Stands for packages of the extra `pipeline`: they can be looked for and not imported.\"\"\"
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        raise ModuleNotFoundError(spec.name)
    def exec_module(self, module): ...

sys.meta_path.insert(0, Missing())
import mfulab
from mfulab.cli.main import main
import torch

model = torch.nn.Linear(16, 8)
with mfulab.measure(model, ceiling_s=0.1) as window:
    for _ in range(3):
        model(torch.randn(4, 16)).sum().backward()
assert window.row["mfu_percent"] > 0
assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "1"]) == 0
assert main(["peak", "NVIDIA L40S"]) == 0
"""
IMPORTED = {
    "hydra-core": "hydra",
    "numba-cuda": "numba_cuda",
    "cuda-python": "cuda",
    "cuda-core": "cuda",
}
IMPORTED |= {
    "protobuf": "google.protobuf",
    "fonttools": "fontTools",
    "koreanize-matplotlib": "koreanize_matplotlib",
}
OF_TORCH = {"jinja2", "markupsafe", "numpy", "msgspec"}


@pytest.mark.slow
def test_the_install_with_torch_measures_and_watches():
    extras = PROJECT["optional-dependencies"]
    names = {Requirement(text).name for text in [*extras["pipeline"], *extras["trace"]]}
    names -= {*OF_TORCH, "mfulab"}
    missing = {IMPORTED.get(name, name) for name in names} | {"matplotlib", "omegaconf"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *missing], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_base_install_is_a_handful_of_small_packages():
    assert {"nvidia-ml-py", "psutil", "pydantic", "pyyaml", "rich", "click"} >= BASE


def test_what_is_missing_is_named_by_the_first_extra_that_brings_it():
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRAS.items():
        names = {
            name: {IMPORTED.get(each, each) for each in (Requirement(text).name for text in texts)}
            for name, texts in extras.items()
        }
        assert next(name for name in names if package in names[name]) == extra


def test_what_the_library_offers_is_seen_and_imported_when_used():
    assert set(mfulab.__all__) <= set(dir(mfulab))
    assert (ROOT / "src/mfulab/py.typed").exists()
    code = "import sys, mfulab; print(*(set(sys.modules) - set(sys.stdlib_module_names)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {
        *BASE,
        "torch",
        "numpy",
        "rich",
        "pydantic",
        "psutil",
    }
