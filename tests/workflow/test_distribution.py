"""The package as an index would have it: a wheel from the sdist, checked and installed alone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.processes import HANGS_S
from support.workflow_copy import ROOT, copy_workflow

from mfulab.cli.commands import COMMANDS

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.xdist_group("distribution")]
ANYWHERE = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
H100 = "NVIDIA H100 80GB HBM3"
BASE_MB = 25  # on disk; a quarter of it to download


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=ANYWHERE, capture_output=True, text=True, timeout=HANGS_S
    )


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """An empty folder, and the programs of an environment that holds the wheel and what it
    requires."""
    folder = tmp_path_factory.mktemp("distribution")
    # building leaves files beside what is built
    source = copy_workflow(folder / "source", with_source=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        folder / "dist",
        source,
        cwd=folder,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    checked = run(
        sys.executable, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir(), cwd=folder
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2
    run(sys.executable, "-m", "venv", "--without-pip", folder / "alone", cwd=folder)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "alone/bin/python",
        "install",
        "--no-compile",
    ]
    [wheel] = (folder / "dist").glob("*.whl")
    done = run(*pip, "--constraint", ROOT / "requirements.lock", wheel, cwd=folder)
    if "Failed to establish a new connection" in done.stderr and done.returncode:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--version"], 0, "mfulab, version 0."),
        (["peak", H100, "bf16"], 0, "989.4"),
        (["flops", "gpt2"], 0, "forward 292 GFLOP, backward 583 GFLOP"),
        (
            ["explain", "model=llama_3_1_8b", f"device={H100}", "tokens_per_s=5762"],
            0,
            "PaLM, torchtitan, nanoGPT",
        ),
        (
            ["explain", "model=llama_3_1_8b", f"device={H100}"],
            0,
            'training, needs torch: pip install "mfulab[torch]"',
        ),
        (["flops", "resnet18"], 2, 'counting it needs torch: pip install "mfulab[torch]"'),
        (["trace", "a.json"], 2, 'needs numpy: pip install "mfulab[trace]"'),
        (["run", "profile_step"], 2, 'mfulab: This needs hydra: pip install "mfulab[pipeline]"'),
        (["refine"], 2, 'needs pandas: pip install "mfulab[trace]"'),
    ],
)
def test_the_wheel_alone_answers_what_needs_no_tensor(there, words, status, said):
    done = run(there / "alone/bin/mfulab", *words, cwd=there)
    shown = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode, said in shown) == (status, True), shown


WORDS = {
    "bits": ["0.1"],
    "collect": ["a"],
    "compare": ["a", "b"],
    "explain": ["model=gpt2", f"device={H100}", "tokens_per_s=1e5"],
    "fits": ["gpt2", "--device", H100],
    "flops": ["gpt2"],
    "gate": ["--minutes", "0.001", "true", "true"],
    "goodput": ["a"],
    "measure": ["a.py"],
    "paired": ["--base", "main"],
    "peak": [H100],
    "record": ["a"],
    "run": ["profile_step"],
    "slides": ["kernels"],
    "trace": ["a.json"],
    "watch": ["--count", "1", "--interval", "0.01"],
}


# All in one process, which has what each of them imports.
ANSWERS = """
import contextlib, io, json, sys
from mfulab.cli.main import main

answers = {}
for name, words in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        status = main([name, *words])
    answers[name] = (status, err.getvalue())
print(json.dumps(answers))
"""


def test_the_wheel_alone_answers_each_command_or_says_what_it_needs(there):
    asked = json.dumps({name: WORDS.get(name, []) for name in COMMANDS})
    done = run(there / "alone/bin/python", "-c", ANSWERS, asked, cwd=there)
    assert done.returncode == 0, done.stderr  # no command's traceback
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers.keys() == COMMANDS.keys()
    for name, (status, error) in answers.items():
        assert "checkout" not in error, name
        if status == 2:
            assert len(error.splitlines()) == 1, name


def test_the_wheel_measures_without_a_checkout(there):
    """Its own files beside what this environment has of the extra, in a folder with a `config/` of
    something else."""
    [wheel] = (there / "dist").glob("*.whl")
    folder = there / "elsewhere"
    (folder / "config").mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    command = [sys.executable, "-m", "mfulab", "run", "count_flops", "--json", "model=linear_1024"]
    environment = {**ANYWHERE, "PYTHONPATH": str(folder / "wheel")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["status"], row["forward_flops"]) == ("ok", 2 * row["batch_size"] * 1024 * 1024)
    assert (folder / "results/count_flops").is_dir()


def test_the_wheel_alone_says_what_measuring_needs(there):
    done = run(there / "alone/bin/python", "-c", "import mfulab; mfulab.measure", cwd=there)
    assert done.stderr.endswith('mfulab.measure needs torch: pip install "mfulab[torch]"\n')


def test_the_wheel_alone_is_small(there):
    """What pip wrote; what the tests before this one compiled beside it does not count."""
    [packages] = (there / "alone/lib").glob("python*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file()]
    installed = [path for path in files if path.parent.name != "__pycache__"]
    assert sum(path.stat().st_size for path in installed) < BASE_MB * 1e6
