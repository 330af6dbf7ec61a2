"""Collects every wheel that an air-gapped machine needs: `make wheelhouse WHEELHOUSE="--python 3.12 --extras cuda"`.

Run it where there is a network; docs/clusters.md says how to install from the folder that it makes.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement  # pip is all that this script asks of a Python
from pip._vendor.packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
# What installing the project itself needs, in an environment without a network.
INSTALLERS = ["pip", "setuptools>=77", "wheel"]
# Wheels name the oldest C library that they run with; one for a newer system takes older ones too.
OLDER = {"manylinux_2_28": ["manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014"]}
SYSTEMS = {"win": ("Windows", "win32"), "macosx": ("Darwin", "darwin")}  # of all others: Linux
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


def collect(wanted: Sequence[str], python: str, platform: str, folder: Path) -> None:
    """Downloads `wanted` and all that these need over there.

    pip asks the Python and the system that run it whether a dependency holds (`tomli; python_version < "3.11"`), so
    what only the other side needs is looked for in the wheels that came.
    """
    missing = list(wanted)
    while missing:
        download(missing, python, platform, folder)
        missing = list(lacking(wanted, folder, markers(python, platform)))


def markers(python: str, platform: str) -> dict[str, str]:
    """What conditions of dependencies are told about the machine over there."""
    system, sys_platform = next(
        (names for start, names in SYSTEMS.items() if platform.startswith(start)), ("Linux", "linux")
    )
    machine = re.sub(r"^.*?(x86_64|aarch64|arm64|amd64)$", r"\1", platform)
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_system": system,
        "sys_platform": sys_platform,
        "platform_machine": machine,
        "os_name": "nt" if system == "Windows" else "posix",
    }


def lacking(wanted: Iterable[str], folder: Path, there: Mapping[str, str]) -> Iterator[str]:
    """Of `wanted` and all that these need, each requirement of which `folder` has no wheel."""
    wheels = {canonicalize_name(path.name.split("-")[0]): path for path in folder.glob("*.whl")}
    waiting = [(Requirement(text), "") for text in wanted]
    seen: dict[str, set[str]] = defaultdict(set)  # extras of each package
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({**there, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        requirement.marker = None
        if name not in wheels:
            yield str(requirement)
            continue
        for chosen in {"", *requirement.extras} - seen[name]:
            seen[name].add(chosen)
            waiting += [(needed, chosen) for needed in needs(wheels[name])]


def needs(wheel: Path) -> list[Requirement]:
    """What a wheel says that it requires."""
    with zipfile.ZipFile(wheel) as files:
        metadata = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(files.read(metadata).decode())
    return [Requirement(text) for text in headers.get_all("Requires-Dist", [])]


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
    collect(wanted, given.python, given.platform, given.into)
    wheels = sorted(given.into.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 1e9
    print(f"{given.into}: {len(wheels)} wheels, {size:.1f} GB, for Python {given.python} on {given.platform}")


if __name__ == "__main__":
    main()
