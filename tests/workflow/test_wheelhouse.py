"""Wheels that `make wheelhouse` collects, by the real script and pip, without a network."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile

import pytest
from support.workflow_copy import ROOT

SCRIPT = ROOT / "scripts" / "wheelhouse.py"


@pytest.fixture(scope="module")
def wheelhouse():
    spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def packages(tmp_path):
    """A project of three packages and one extra, whose index is a folder of empty wheels."""
    for folder in ("index", "scripts", "requirements"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts/wheelhouse.py").write_bytes(SCRIPT.read_bytes())
    plain = put(tmp_path, "numpy", "1.0", "cp312-cp312-manylinux_2_17_x86_64")
    put(tmp_path, "numpy", "99.0", "cp312-cp312-manylinux_2_17_x86_64")
    put(tmp_path, "compiled", "2.1", "cp313-cp313-manylinux_2_28_x86_64")
    newer = put(tmp_path, "compiled", "2.1", "cp312-cp312-manylinux_2_28_x86_64")
    lock = [f"numpy==1.0 \\\n    --hash=sha256:{plain}"]
    lock += [
        f"compiled==2.1 ; python_version >= '3.12' and sys_platform == 'linux' \\\n    --hash=sha256:{newer}"
    ]
    lock += [f"elsewhere==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:{plain}"]
    (tmp_path / "requirements/pipeline.lock").write_text("\n".join(["# made", *lock, ""]))
    added = put(tmp_path, "added", "3.0")
    (tmp_path / "requirements/slurm.lock").write_text(
        f"# made\nadded==3.0 \\\n    --hash=sha256:{added}\n"
    )
    return tmp_path


def put(packages, name, version, tag="py3-none-any"):
    """Makes an empty wheel, and gives its hash."""
    path = packages / "index" / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        info = f"{name}-{version}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def collect(packages, *arguments):
    offline = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    offline |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages / "index"),
    }
    command = [
        sys.executable,
        packages / "scripts/wheelhouse.py",
        "--into",
        packages / "house",
        *arguments,
    ]
    return subprocess.run(
        command, env=offline, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_wheels_are_the_locked_ones_for_the_machine_over_there(packages):
    done = collect(packages, "--python", "3.12", "--platform", "manylinux_2_28_x86_64")
    assert done.returncode == 0, done.stdout
    names = sorted(path.name for path in (packages / "house").iterdir())
    assert names == [
        "added-3.0-py3-none-any.whl",
        "compiled-2.1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "numpy-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
    ]
    assert "3 wheels" in done.stdout
    assert "for Python 3.12 on manylinux_2_28_x86_64" in done.stdout


@pytest.mark.slow
def test_what_the_other_machine_has_is_not_carried(packages):
    (packages / "present.txt").write_text("# has\nNumPy\nadded  # does without\n")
    done = collect(packages, "--python", "3.12", "--without", packages / "present.txt")
    assert done.returncode == 0, done.stdout
    assert [path.name.partition("-")[0] for path in (packages / "house").iterdir()] == ["compiled"]


def test_what_a_bare_gpu_machine_lacks_is_little_and_not_its_torch(wheelhouse):
    extras = re.search(r"BARE_GPU = --extras (\S+)", (ROOT / "Makefile").read_text())[1]
    target = wheelhouse.markers("3.12", "manylinux_2_28_x86_64")
    packages = wheelhouse.locked(extras.split(","), target)
    present = wheelhouse.names_in(wheelhouse.PROJECT / "validation" / "recording" / "present.txt")
    carried = {wheelhouse.canonicalize_name(name) for name in packages} - present
    assert len(carried) < 60
    assert {"snakemake", "hydra-core", "pydantic-core", "nvmath-python"} < carried
    assert not {"torch", "triton", "numpy", "numba-cuda", "scipy"} & carried
    assert "nvidia-cutlass" in carried, "its rung is one that no recording has"


def test_the_page_lists_what_is_carried_to_a_bare_gpu_machine(tmp_path):
    page = tmp_path / "gpu.md"
    page.write_bytes((ROOT / "docs/gpu.md").read_bytes())
    present = ROOT / "validation/recording/present.txt"
    command = [
        sys.executable,
        SCRIPT,
        "--python",
        "3.12",
        "--extras",
        "cuda,cutlass",
        "--without",
        present,
        "--list",
        page,
    ]
    subprocess.run(command, check=True)
    found = page.read_text(encoding="utf-8")
    assert found == (ROOT / "docs/gpu.md").read_text(encoding="utf-8"), "run `make lock`"
    page.write_text("no markers")
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode


@pytest.mark.slow
def test_a_package_without_a_wheel_for_it_is_an_error_that_names_it(packages):
    done = collect(
        packages, "--python", "3.11", "--platform", "manylinux_2_28_x86_64", "--extras", ""
    )
    assert done.returncode != 0
    assert "No matching distribution found for numpy==1.0" in done.stdout


@pytest.mark.slow
def test_a_wheel_that_is_not_the_locked_one_is_an_error(packages):
    put(packages, "added", "3.0", "py2.py3-none-any")
    (packages / "index/added-3.0-py3-none-any.whl").unlink()
    done = collect(packages, "--python", "3.12")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout


def test_older_platforms_serve_a_newer_one(wheelhouse):
    assert "manylinux2014_aarch64" in wheelhouse.platforms("manylinux_2_28_aarch64")
    assert wheelhouse.platforms("win_amd64") == ["win_amd64"]


def test_the_locks_give_each_machine_what_it_needs(wheelhouse):
    linux = wheelhouse.locked(["slurm"], wheelhouse.markers("3.12", "manylinux_2_28_x86_64"))
    assert {"torch", "setuptools", "numba-cuda", "snakemake-executor-plugin-slurm"} <= linux.keys()
    assert not {"pywin32", "appnope", "cuda-toolkit", "nvidia-cublas"} & linux.keys()
    assert "nvidia-cublas" in wheelhouse.locked(
        ["cuda"], wheelhouse.markers("3.12", "manylinux_2_28_x86_64")
    )
    assert "numba-cuda" not in wheelhouse.locked(
        [], wheelhouse.markers("3.12", "macosx_14_0_arm64")
    )
