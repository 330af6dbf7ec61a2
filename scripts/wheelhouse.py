"""Collects every wheel that an air-gapped machine needs: `make wheelhouse WHEELHOUSE="--python 3.12 --extras cuda"`.

Run it where there is a network; docs/clusters.md says how to install from the folder that it makes.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# What installing the project itself needs, in an environment without a network.
INSTALLERS = ["pip", "setuptools>=77", "wheel"]
# Wheels name the oldest C library that they run with; one for a newer system takes older ones too.
OLDER = {"manylinux_2_28": ["manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014"]}
# Published as source alone, and pure Python: a wheel that is built here serves any machine.
SOURCE_ONLY = ("antlr4-python3-runtime", "connection-pool")


def requirements(extras: Iterable[str]) -> list[str]:
    """What the project and its `extras` require, as pyproject.toml says; extras that name extras are followed."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, waiting = list(project["dependencies"]), list(extras)
    while waiting:
        for entry in project["optional-dependencies"][waiting.pop()]:
            own = re.fullmatch(r"mfulab\[([^\]]+)\]", entry)
            waiting += own.group(1).split(",") if own else []
            found += [] if own else [entry]
    return found


def platforms(platform: str) -> list[str]:
    """`platform` and the older ones whose wheels run there: `manylinux_2_28_x86_64` takes `manylinux2014_x86_64`."""
    for newer, older in OLDER.items():
        if platform.startswith(newer):
            return [platform, *(name + platform.removeprefix(newer) for name in older)]
    return [platform]


def download(wanted: Sequence[str], python: str, platform: str, folder: Path) -> None:
    """Fills `folder` with wheels of `wanted` and all that these need, at the versions of requirements.lock.

    Raises CalledProcessError, after pip has said why, where a package has no wheel for that Python and platform.
    """
    pip = [sys.executable, "-m", "pip"]
    lock = PROJECT / "requirements.lock"
    pins = [pin for pin in lock.read_text(encoding="utf-8").split() if pin.replace("_", "-").startswith(SOURCE_ONLY)]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *pins], check=True)
    target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    target += [part for name in platforms(platform) for part in ("--platform", name)]
    where = ["--dest", str(folder), "--find-links", str(folder), "--constraint", str(lock)]
    subprocess.run([*pip, "download", *where, *target, *wanted], check=True)


def main() -> None:
    """Downloads, and says how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help="version there, such as 3.12")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64", help="there: see `pip debug --verbose`")
    parser.add_argument("--extras", default="slurm", help="such as cuda,slurm; empty for none")
    parser.add_argument("--into", type=Path, default=Path("wheelhouse"))
    parser.add_argument("--only", nargs="*", help="these requirements instead of the project's")
    given = parser.parse_args()
    wanted = given.only or [*INSTALLERS, *requirements(filter(None, given.extras.split(",")))]
    download(wanted, given.python, given.platform, given.into)
    wheels = sorted(given.into.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 1e9
    print(f"{given.into}: {len(wheels)} wheels, {size:.1f} GB, for Python {given.python} on {given.platform}")


if __name__ == "__main__":
    main()
