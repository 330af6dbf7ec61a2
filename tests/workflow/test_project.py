"""Facts that the project states in several places agree."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.words import faults
from support.workflow_copy import ROOT

from mfulab.cli import schema
from mfulab.cli.main import main
from mfulab.lab.planning import keys, sources
from mfulab.measurements.registry import MEASUREMENTS

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]
LOCKS = {path.stem: path.read_text() for path in (ROOT / "requirements").glob("*.lock")}
EXTRAS = PROJECT["optional-dependencies"]
MACHINES = [
    {**default_environment(), "python_version": python, "python_full_version": f"{python}.1"}
    | system
    for python in ("3.11", "3.13")
    for system in (
        {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"},
        {"platform_system": "Darwin", "sys_platform": "darwin", "platform_machine": "arm64"},
    )
]


def needed(texts):
    """Requirements, followed through the project's own extras."""
    for requirement in map(Requirement, texts):
        if requirement.name == "mfulab":
            yield from needed(text for extra in requirement.extras for text in EXTRAS[extra])
        else:
            yield requirement


def pins(name, machine):
    """Each package's version that the lock of the pipeline and the lock `name` give `machine`."""
    return pinned(LOCKS["pipeline"] + LOCKS.get(name, ""), machine)


def pinned(text, machine):
    """Each package's version that the lines of a lock give `machine`."""
    lines = [line.removesuffix("\\") for line in text.splitlines() if line[0] not in "# "]
    locked = [
        one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate(machine)
    ]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in locked}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_pins_a_version_that_each_requirement_allows(extra):
    for machine in MACHINES:
        versions = pins(extra, machine)
        for requirement in needed([*PROJECT["dependencies"], *EXTRAS[extra]]):
            if requirement.marker is None or requirement.marker.evaluate(machine):
                assert requirement.specifier.contains(
                    versions[canonicalize_name(requirement.name)]
                ), requirement


def test_all_locks_agree_on_each_version_and_every_pin_has_a_hash():
    for machine in MACHINES:
        base = pins("pipeline", machine)
        everything = {name: pins(name, machine) for name in LOCKS}
        for name, one in everything.items():
            assert base.items() <= one.items(), name
            assert not {
                key
                for other in everything.values()
                for key in one.keys() & other.keys()
                if one[key] != other[key]
            }
    for text in LOCKS.values():
        packages = re.split(r"\n(?=\S)", text.strip())[1:]
        assert packages
        assert all("--hash=sha256:" in package for package in packages)
        assert "://" not in text


def test_the_constraints_are_the_pins_of_all_locks_without_their_hashes():
    constraints = (ROOT / "requirements.lock").read_text()
    assert "--hash" not in constraints  # pip refuses constraints that have them
    for machine in MACHINES:
        every = {name: version for lock in LOCKS for name, version in pins(lock, machine).items()}
        assert every.items() <= pinned(constraints, machine).items()


@pytest.mark.parametrize("file", ["environment.yml", "environment-cuda.yml"])
def test_conda_users_get_a_python_that_the_project_allows(file):
    environment = yaml.safe_load((ROOT / file).read_text())
    [python] = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(
        python.removeprefix("python=")
    )


@pytest.mark.parametrize(
    ("file", "extras"),
    [("environment.yml", ".[pipeline]"), ("environment-cuda.yml", ".[pipeline,cuda]")],
)
def test_conda_installs_the_pipeline_at_the_locked_versions(file, extras):
    *_, last = yaml.safe_load((ROOT / file).read_text())["dependencies"]
    options = [line.split(" ") for line in last["pip"]]
    files = [ROOT / path for option, path in options if option in ("--constraint", "--requirement")]
    assert files
    assert all(path.is_file() for path in files)
    assert ["--editable", extras] in options
    # A torch for CPUs would leave the GPU without a word of conda's.
    assert any("whl/cpu" in line for line in last["pip"]) == ("cuda" not in extras)


def test_no_rule_names_an_environment_that_lies_elsewhere_when_snakemake_copies_it():
    for path in (ROOT / "workflow/envs").glob("*.yaml"):
        assert all(
            isinstance(entry, str) for entry in yaml.safe_load(path.read_text())["dependencies"]
        )
    named = re.findall(
        r'conda:\s+"(.+)"',
        "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")),
    )
    assert named
    assert all(
        (ROOT / "workflow/rules" / name).resolve().parent == ROOT / "workflow/envs"
        for name in named
    )


def test_the_pipeline_brings_no_library_that_only_a_gpu_can_use():
    locked = {name for machine in MACHINES for name in pins("pipeline", machine)}
    named = {
        name for name in locked if name.startswith(("nvidia-", "nvmath", "triton", "cuda-toolkit"))
    }
    assert named == {"nvidia-ml-py"}  # pure Python


def test_every_file_of_the_package_goes_into_the_wheel():
    """By the patterns; the wheel itself is built and tried every night."""
    package = ROOT / "src/mfulab"
    patterns = TOOLS["setuptools"]["package-data"]["mfulab"]
    carried = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file()}
    data = {path for path in files if path.suffix not in (".py", ".pyc", ".typed")}
    assert len(data) > 30
    assert data - carried == set()


def test_every_step_has_its_module():
    for step in MEASUREMENTS:
        assert (ROOT / "src/mfulab/measurements" / step / "measure.py").exists()


def test_the_table_of_groups_is_that_of_the_folders_and_of_what_steps_read():
    table = (
        (ROOT / "config/README.md").read_text().partition("## Groups")[2].partition("## Keys")[0]
    )
    said = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", table, re.MULTILINE))
    read_by = {
        group: ", ".join(
            f"`{step}`" for step, each in MEASUREMENTS.items() if group in each.config.model_fields
        )
        for group in keys.groups(ROOT / "config")
    }
    assert said == read_by | {"experiment": "planning"}


@pytest.mark.slow
def test_what_is_generated_is_up_to_date(monkeypatch, capsys):
    """config.yaml's defaults, KEYS.md, the schema and the tables of experiments; `mfulab schema
    --fix` writes them."""
    monkeypatch.chdir(ROOT)
    assert schema.check(fix=False) == 0, capsys.readouterr().out
    assert "|  |" not in schema.table_of_keys(), "each key says what it means"


def descriptions(schema):
    """Name and description of every key of a JSON Schema, its groups' among them."""
    for one in (schema, *schema.get("$defs", {}).values()):
        yield from (
            (name, field["description"])
            for name, field in one["properties"].items()
            if "description" in field
        )


@pytest.mark.parametrize("name", ["planning", *MEASUREMENTS])
def test_every_description_of_a_key_stands_alone(name):
    model = keys.Asked if name == "planning" else MEASUREMENTS[name].config
    spoken = {
        key: faults(text) for key, text in descriptions(model.model_json_schema(by_alias=False))
    }
    assert spoken
    assert {key: said for key, said in spoken.items() if said} == {}


def test_what_is_out_of_date_is_shown_and_written(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    readme = tmp_path / "config/README.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/experiment/mine.yaml").write_text(
        "# @package _global_\n# Shows mine.\nsteps: []\n"
    )
    kernel = "| `kernel` | the matmul implementation |"
    unread = re.sub(re.escape(kernel) + ".*", f"{kernel} nobody |", readme.read_text())
    readme.write_text(unread)
    config = tmp_path / "config/config.yaml"
    config.write_text(config.read_text().replace("batch_size: 8 ", "batch_size: 9 "))
    (tmp_path / "config/schema.json").unlink()
    assert schema.check(fix=False) == 1
    shown = capsys.readouterr().out
    for line in (
        "-batch_size: 9 # Samples",
        "+batch_size: 8 # Samples",
        "+| `mine` | Shows mine. |",
        f"+{kernel} `bench_matmul` |",
        '+  "TimingConfig": {',
    ):
        assert line in shown
    assert "Shows mine." not in readme.read_text()
    assert schema.check(fix=True) == 0
    for path in ("config/README.md", "config/config.yaml", "config/schema.json"):
        ours = (ROOT / path).read_text()
        assert (tmp_path / path).read_text().replace("| `mine` | Shows mine. |\n", "") == ours


def test_the_schema_of_a_step_is_what_its_runs_are_checked_by(capsys):
    assert main(["schema", "bench_matmul"]) == 0
    assert "kernel" in json.loads(capsys.readouterr().out)["required"]
    assert main(["schema", "profile_stepp", "--row"]) == 2
    assert (
        "measurement=profile_stepp: unknown. Did you mean profile_step?" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_the_documentation_is_built_and_its_links_lead_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    one = os.environ | {"FIGURES": "1"}
    finished = subprocess.run(
        command, cwd=ROOT, env=one, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "mfu_versus_utilization" in (tmp_path / "gallery/index.html").read_text()


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    source = ROOT / "src"
    names = {
        ".".join(path.relative_to(source).with_suffix("").parts): path
        for path in source.glob("mfulab/*/**/*.py")
    }
    imported = {}
    for name, path in names.items():
        nodes = [
            node
            for node in ast.walk(ast.parse(path.read_bytes()))
            if isinstance(node, sources.IMPORTS)
        ]
        meant = [
            module
            for node in nodes
            for module, _ in sources._module(name, path)._imports(node).values()
        ]
        imported[name] = set(meant) & set(names)
    assert any(imported.values())
    TopologicalSorter(imported).prepare()


@pytest.mark.xdist_group("groups")
def test_tests_of_a_group_share_a_process(request):
    """xdist tells groups by a suffix of the test's name; without it, each process draws the page
    again, silently."""
    found = request.node.nodeid.endswith("@groups")
    assert found == getattr(request.config.option, "loadgroup", False)


def test_nothing_is_installed_into_a_python_that_nobody_named():
    """With no PYTHON given, `make install` makes `.venv` and writes there, with its extras."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")
    }
    commands = {
        words: subprocess.run(
            ["make", "-n", "VENV=none", "EXTRAS=slurm", *words],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout.splitlines()
        for words in (("install",), ("install", "PYTHON=python3"))
    }
    writes = {
        words: set(re.findall(r"\S+(?= -m pip install )", "\n".join(lines)))
        for words, lines in commands.items()
    }
    assert writes[("install",)] == {"none/bin/python"}
    assert writes[("install", "PYTHON=python3")] == {"python3"}
    assert any("slurm" in line for line in commands[("install",)])


@pytest.mark.parametrize("status", [0, 1, None])
def test_uv_installs_where_it_is_and_pip_where_it_fails(tmp_path, status):
    """Each by the locks' hashes; None is a machine without uv."""
    for name, code in {"uv": status, "python": 0}.items():
        stand_in = tmp_path / name
        stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.said\nexit {code}\n')
        stand_in.chmod(0o755)
    uv = "" if status is None else tmp_path / "uv"
    make = [
        "make",
        "install",
        f"VENV={tmp_path}",
        f"PYTHON={tmp_path}/python",
        f"UV={uv}",
        "CUDA=1",
    ]
    subprocess.run(make, check=True, capture_output=True)
    said = {
        name: file.read_text().splitlines() if (file := tmp_path / f"{name}.said").exists() else []
        for name in ("uv", "python")
    }
    by_pip = [line for line in said["python"] if "pip install" in line]
    for lines in (said["uv"], by_pip):
        locked = [line for line in lines if ".lock" in line]
        assert len(lines) == len(locked) + bool(lines), "all but the project itself"
        assert all("--require-hashes" in line for line in locked)
    assert bool(said["uv"]) == (status is not None)
    assert bool(by_pip) == (status != 0)


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("status", [0, 1, None])
def test_torch_for_cpus_comes_beside_the_rest_by_uv_and_before_it_by_pip(tmp_path, status, answers):
    """uv compares the hashes of all but torch, whose CPU build is not in the lock."""
    refuses = "" if answers else 'case "$*" in *urllib*) exit 1;; esac'
    stand_ins = {"uv": (status, ""), "python": (0, refuses)}
    for name, (code, first) in stand_ins.items():
        stand_in = tmp_path / name
        said = f'echo "$@" >> {tmp_path}/{name}.said'
        stand_in.write_text(f"#!/bin/sh\n{said}\n{first}\nexit {code}\n")
        stand_in.chmod(0o755)
    uv = "" if status is None else tmp_path / "uv"
    index = "https://torch.example/cpu"
    words = [f"VENV={tmp_path}", f"PYTHON={tmp_path}/python", f"UV={uv}", f"CPU_TORCH={index}"]
    subprocess.run(["make", "install", *words, "CUDA="], check=True, capture_output=True)
    of_torch = {}
    for name in stand_ins:
        file = tmp_path / f"{name}.said"
        lines = file.read_text().splitlines() if file.exists() else []
        of_torch[name] = [line.split() for line in lines if " torch==" in line]
    rest = tmp_path / "rest.lock"
    if answers and status is not None:
        [beside] = of_torch["uv"]
        assert beside[beside.index("--find-links") + 1] == f"{index}/torch/"
        assert beside[beside.index("--requirement") + 1] == str(rest)
        assert "--verify-hashes" in beside
        whole = Path("requirements/pipeline.lock").read_text()
        torch = re.search(r"^torch==.*\n(?: .*\n)+", whole, re.MULTILINE)
        assert "--hash=" in torch[0]
        assert rest.read_text() == whole.replace(torch[0], "")
    else:
        assert not of_torch["uv"]
        assert not rest.exists()
    if answers and status == 0:
        assert not of_torch["python"]
        return
    [by_pip] = of_torch["python"]
    assert ("--extra-index-url" in by_pip) == answers


NEW_LOCK = """annotated-types==0.8.0
numba==0.68.1
numba-cuda==0.30.4 ; sys_platform != 'darwin'
snakemake==9.27.1
torch==2.13.0
"""


def test_what_a_python_has_stays_there_where_it_is_asked_to(tmp_path):
    """KEEP=1 lets pip choose no other torch than the one that is there, and adds what is missing as
    it is locked."""
    make = ["make", "-n", f"VENV={tmp_path}", "install", f"PYTHON={sys.executable}", "KEEP=1"]
    lines = subprocess.run(make, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert re.findall(r"requirements/\w+\.lock", lines) == [], "locks replace what is there"
    assert f"--constraint {tmp_path}/new.lock --editable '.[pipeline]'" in lines
    program = re.search(r"-c '(import re.*?)' > ", lines, re.DOTALL)[1]
    (tmp_path / "requirements.lock").write_text(NEW_LOCK)
    for name in ("torch-2.11.0+cu128", "Numba-0.61.2", "annotated_types-0.7.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/METADATA").write_text(
            f"Name: {name.partition('-')[0]}\nVersion: 1\n"
        )
    alone = {"PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-S", "-c", program]
    done = subprocess.run(
        words, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    )
    kept = [line.partition("==")[0] for line in done.stdout.split("\n") if line]
    expected = ["numba", "numba-cuda", "snakemake"]
    assert kept == expected, "torch and annotated-types stay; Numba's parts belong together"


def test_a_torch_of_cuda_12_may_stay():
    """It pins cuda-bindings below 13, and cuda-python asks for those of its own release."""
    [python] = [Requirement(line) for line in EXTRAS["pipeline"] if line.startswith("cuda-python")]
    [torch] = [Requirement(line) for line in EXTRAS["torch"] if line.startswith("torch")]
    assert python.specifier.contains("12.9.7")
    assert torch.specifier.contains("2.11.0")


@pytest.mark.parametrize("name", ["seminar", "seminar.ko"])
def test_a_notebook_without_a_checkout_installs_beside_what_is_there_and_finds_it(name, tmp_path):
    cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    [cell] = [
        source
        for cell in cells
        if "git" in (source := "".join(cell["source"])) and "clone" in source
    ]
    (tmp_path / "bin").mkdir()
    clone = f'for last; do :; done; mkdir -p "$last"; ln -s {ROOT}/src "$last/src"'
    for tool, body in (("git", clone), ("make", 'echo "$@" > ../made')):
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    program = f"""
import sys, types
for name in ("pandas", "IPython", "IPython.display", "PIL"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["IPython.display"].Image = sys.modules["IPython.display"].display = sys.modules["PIL"].Image = None
sys.path = [path for path in sys.path if not path.endswith("/src")]
REPOSITORY = "https://example.org/mfulab"
exec({cell!r})
import mfulab
assert mfulab.__file__.startswith({str(tmp_path)!r}), mfulab.__file__
"""
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert "KEEP=1" in (tmp_path / "made").read_text()


@pytest.mark.parametrize(
    ("installing_s", "given", "config"),
    [
        (0, [], ""),
        (82, [], " --config budget_min=2.5"),
        (600, [], " --config budget_min=2.0"),
        (85, ["CONFIG=experiment=kernels"], " --config experiment=kernels"),
        (85, ["CUDA=cuda"], ""),
    ],
)
def test_installing_is_taken_off_the_first_pages_budget(installing_s, given, config):
    began = f"BEGAN={int(time.time()) - installing_s}"
    command = ["make", "--dry-run", "--no-print-directory", "report", began, "CUDA=", *given]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.rstrip().endswith(f"-m snakemake --cores 1 report{config}")
