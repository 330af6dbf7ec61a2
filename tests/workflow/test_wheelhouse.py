"""What `make wheelhouse` collects: by the real script and pip, from an index in a folder, without a network."""

import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from support.workflow_copy import ROOT

SCRIPT = ROOT / "scripts" / "wheelhouse.py"
LOCK = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line)


@pytest.fixture(scope="module")
def wheelhouse():
    spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(index, name, version, tag="py3-none-any", requires=()):
    """An empty wheel that only says what it needs."""
    name = name.replace("-", "_")
    metadata = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(index / f"{name}-{version}-{tag}.whl", "w") as wheel:
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path, wheelhouse):
    """A folder of wheels that stands for the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, version in LOCK.items():
        if name.replace("_", "-").startswith(wheelhouse.SOURCE_ONLY):
            put(folder, name, version)
    return folder


def collect(index, into, *arguments):
    offline = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    offline |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    command = [sys.executable, SCRIPT, "--into", into, *arguments]
    return subprocess.run(command, env=offline, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_wheels_are_for_the_machine_over_there_at_the_locked_versions(index, tmp_path):
    put(index, "mine", "1.0", requires=["numpy", "compiled; python_version >= '3.12'"])
    put(index, "numpy", LOCK["numpy"], "cp312-cp312-manylinux_2_17_x86_64")
    put(index, "numpy", "99.0", "cp312-cp312-manylinux_2_17_x86_64")
    put(index, "compiled", "2.0", "cp312-cp312-manylinux_2_28_x86_64")
    put(index, "compiled", "2.1", "cp312-cp312-manylinux_2_34_x86_64")  # for a newer C library than there is
    put(index, "compiled", "2.2", "cp313-cp313-manylinux_2_28_x86_64")
    options = ["--python", "3.12", "--platform", "manylinux_2_28_x86_64"]
    done = collect(index, tmp_path / "house", *options, "--only", "mine")
    assert done.returncode == 0, done.stdout
    names = {path.name.split("-py")[0].split("-cp")[0] for path in (tmp_path / "house").iterdir()}
    assert {"mine-1.0", f"numpy-{LOCK['numpy']}", "compiled-2.0"} < names
    assert f"{len(names)} wheels" in done.stdout
    assert "for Python 3.12 on manylinux_2_28_x86_64" in done.stdout


def test_a_package_without_a_wheel_for_it_is_an_error_that_names_it(index, tmp_path):
    put(index, "compiled", "2.0", "cp312-cp312-win_amd64")
    done = collect(index, tmp_path / "house", "--python", "3.12", "--only", "compiled")
    assert done.returncode != 0
    assert "No matching distribution found for compiled" in done.stdout


def test_extras_are_followed_to_the_extras_that_they_name(wheelhouse):
    plain = set(wheelhouse.requirements([]))
    everything = [Requirement(text) for text in wheelhouse.requirements(["test"])]
    names = {requirement.name for requirement in everything}
    assert {"torch", "pytest", "snakemake-executor-plugin-slurm", "nbclient", "fvcore"} <= names
    assert "mfulab" not in names
    assert plain < {str(text) for text in wheelhouse.requirements(["cuda"])}


def test_older_platforms_serve_a_newer_one(wheelhouse):
    assert "manylinux2014_aarch64" in wheelhouse.platforms("manylinux_2_28_aarch64")
    assert wheelhouse.platforms("win_amd64") == ["win_amd64"]
