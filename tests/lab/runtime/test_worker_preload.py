"""Modules that the worker imports once for all runs leave every GPU alone."""

import ast
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support.workflow_copy import ROOT

from mfulab.lab.planning.resources import imported
from mfulab.lab.planning.workflow import Workflow
from mfulab.lab.runtime import server

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the worker is for Linux: elsewhere there is none"
)

CLASSES = ("transformers:GPT2LMHeadModel", "transformers:ResNetForImageClassification")


@pytest.mark.parametrize(
    ("target", "rules", "mode", "work"),
    [
        ("mfulab.kernels.cpu_numpy.Numpy", ["bench_matmul", "rows"], "eager", "rows"),
        (
            "mfulab.kernels.torch_compiled.TorchCompiled",
            ["bench_matmul", "tables"],
            "eager",
            "both dynamo",
        ),
        ("torch.nn.Linear", ["profile_step", "tables"], "eager", "both dynamo"),
        (
            "mfulab.models.busy.TinyKernels",
            ["profile_step", "tables"],
            "tensorflow_eager",
            "both tensorflow dynamo",
        ),
        (
            "mfulab.models.huggingface.build",
            ["profile_step", "rows"],
            "eager",
            "rows transformers dynamo",
        ),
        ("mfulab.models.busy.TinyKernels", ["profile_step", "tables"], "training", "both dynamo"),
        ("my_model.build", ["profile_step", "rows"], "compile", "rows transformers dynamo"),
        ("", ["page"], "eager", "report"),
    ],
)
def test_the_worker_imports_what_the_workflow_is_to_do(target, rules, mode, work):
    jobs = [SimpleNamespace(rule=SimpleNamespace(name=name)) for name in rules]
    group = "kernel" if "bench_matmul" in rules else "model"
    config = {group: {"_target_": target}, "execution": {"mode": mode}}
    runs = {"a": SimpleNamespace(text=json.dumps(config))} if target else {}
    assert Workflow.work(SimpleNamespace(inputs=SimpleNamespace(runs=runs)), jobs) == work
    modules = server.modules_for(work)
    frameworks = [name for name in modules if name.endswith(("_jax", "_tensorflow"))]
    assert frameworks == (["mfulab.models.framework_tensorflow"] if "tensorflow" in work else [])
    assert set(server.REPORT) <= set(modules) or work.startswith("rows")
    assert not {*server.REPORT, "mfulab.lab.tables.seminar"} & set(modules) or not work.startswith(
        "rows"
    )
    assert "triton" in modules or work == "report"
    assert ("torch._dynamo" in modules) == ("dynamo" in work)
    found = {"transformers.modeling_utils", "mfulab.models.huggingface"} <= set(modules)
    assert found == ("transformers" in work)


def test_an_architecture_of_transformers_is_named_with_its_class():
    text = (ROOT / "config/model/resnet18.yaml").read_text()
    config = json.dumps({"model": yaml.safe_load(text)}, indent=1)
    work = imported([config, config])
    assert work == ["transformers", "dynamo", "transformers:ResNetForImageClassification"]
    assert work[-1] in CLASSES  # whose module the test below looks for


def test_a_word_in_a_text_of_a_config_imports_nothing():
    config = {"kernel": {"_target_": "mfulab.kernels.cpu_numpy.Numpy"}, "note": 'like "mode": "jax'}
    assert imported([json.dumps(config)]) == []
    nested = {"model": {"arguments": {"_target_": "my_module.build"}}}
    assert imported([json.dumps(nested)]) == ["transformers", "dynamo"]


FAKE_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
static int told(const char *name) {
    FILE *file = fopen(getenv("MFULAB_TEST_TOLD"), "a");
    if (file) { fprintf(file, "%s\\n", name); fclose(file); }
    return 100; /* CUDA_ERROR_NO_DEVICE */
}
int cuInit(unsigned flags) { return told("cuInit"); }
int cuDriverGetVersion(int *version) { *version = 13000; told("cuDriverGetVersion"); return 0; }
int cuGetProcAddress(const char *s, void **f, int v, unsigned long long g) { *f = 0; return told("lookup"); }
int cuGetProcAddress_v2(const char *s, void **f, int v, unsigned long long g, int *q) { return told("lookup"); }
"""


@pytest.mark.slow
def test_what_the_worker_imports_wakes_no_gpu_and_what_few_runs_need_waits(tmp_path: Path) -> None:
    """Rows alone need no more than torch; each class's module is imported by its name alone; no GPU
    is woken.

    A forked child cannot use CUDA once its parent has; the driver's library is replaced by one that
    tells.
    """
    (tmp_path / "driver.c").write_text(FAKE_DRIVER)
    library = tmp_path / "libcuda.so.1"
    try:
        compile_it = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")]
        subprocess.run(compile_it, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    told = tmp_path / "told"
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(tmp_path),
        "MFULAB_TEST_TOLD": str(told),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    program = (
        "import sys; from mfulab.lab.runtime import server as s; s.preload(s.modules_for('rows'));"
        "print({'torch', 'transformers', 'torch._dynamo', 'jax', 'tensorflow'} & set(sys.modules));"
        f"modules = s.modules_for('both transformers dynamo {' '.join(CLASSES)}');"
        "s.preload(name for name in modules if ':' in name);"
        "print('transformers.models.resnet.modeling_resnet' in sys.modules);"
        "s.preload(modules); sys.modules['torch']"
    )
    preload = [sys.executable, "-c", program]
    done = subprocess.run(preload, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "{'torch'}\nTrue\n"
    assert not told.exists(), told.read_text()
    # The library does tell: this is what must not happen.
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"]
    subprocess.run(command, env=environment)
    assert told.read_text() == "cuInit\n"


def test_the_worker_forks_without_the_warning_of_python_3_12_and_keeps_others(monkeypatch):
    def forked() -> int:
        warnings.warn("This process (pid=467) is multi-threaded, use of fork() may lead to deadlocks in the child.",
                      DeprecationWarning, stacklevel=2)  # fmt: skip
        warnings.warn("another", DeprecationWarning, stacklevel=2)
        return 7

    monkeypatch.setattr(os, "fork", forked)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = [*warnings.filters]
        assert server.fork() == 7
        assert warnings.filters == before, "runs find the filters as they were"
    assert [str(each.message) for each in told] == ["another"]
    tree = ast.parse(Path(server.__file__).read_text())
    found = sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) == "os.fork"
        for node in ast.walk(tree)
    )
    assert found == 1
