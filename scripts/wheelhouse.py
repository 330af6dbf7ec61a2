"""Collects every wheel that an air-gapped machine needs: `make wheelhouse WHEELHOUSE="--python 3.12
--extras cuda"`.

Run it where there is a network; docs/clusters.md says how to install from the folder that it makes.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pip._vendor.packaging.requirements import (
    Requirement,
)  # pip is all that this script asks of a Python
from pip._vendor.packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
# Wheels name the oldest C library that they run with; one for a newer system takes older ones too.
OLDER = {"manylinux_2_28": ["manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014"]}
SYSTEMS = {"win": ("Windows", "win32"), "macosx": ("Darwin", "darwin")}  # of all others: Linux
# Published as source alone, and pure Python: a wheel that is built here serves any machine.
SOURCE_ONLY = ("antlr4-python3-runtime", "connection-pool", "fvcore", "iopath")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def platforms(platform: str) -> list[str]:
    """`platform` and the older ones whose wheels run there: `manylinux_2_28_x86_64` takes
    `manylinux2014_x86_64`."""
    for newer, older in OLDER.items():
        if platform.startswith(newer):
            return [platform, *(name + platform.removeprefix(newer) for name in older)]
    return [platform]


def markers(python: str, platform: str) -> dict[str, str]:
    """Markers of the target machine, by which the locks' conditions are evaluated."""
    system, sys_platform = next(
        (names for start, names in SYSTEMS.items() if platform.startswith(start)),
        ("Linux", "linux"),
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


def locked(extras: Iterable[str], there: Mapping[str, str]) -> dict[str, str]:
    """Pins and hashes of the packages in the locks of the pipeline and of `extras`, where their
    conditions hold."""
    found = {}
    for extra in ("pipeline", *extras):
        for pinned in re.split(
            r"\n(?=\S)", (PROJECT / f"requirements/{extra}.lock").read_text(encoding="utf-8")
        ):
            if pinned.startswith("#"):
                continue
            requirement = Requirement(pinned.split("\\\n")[0])
            if requirement.marker is None or requirement.marker.evaluate(dict(there)):
                hashes = [part for part in pinned.split() if part.startswith("--hash=")]
                found[requirement.name] = " ".join(
                    [f"{requirement.name}{requirement.specifier}", *hashes]
                )
    return found


def names_in(file: Path) -> set[str]:
    """The packages that a file lists, one a line, in the index's spelling; `#` begins a comment."""
    lines = (
        line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()
    )
    return {canonicalize_name(line) for line in lines if line}


def collect(packages: Mapping[str, str], target: Sequence[str], folder: Path, cuda: bool) -> None:
    """Fills `folder`: wheels of `packages` for `target`, torch as PyTorch builds it for CPUs unless
    `cuda`.

    Raises CalledProcessError, after pip has said why, where a package has no wheel for that Python
    and platform.
    """
    source = {name: pinned for name, pinned in packages.items() if name in SOURCE_ONLY}
    wheels = {name: pinned for name, pinned in packages.items() if name not in SOURCE_ONLY}
    if not cuda and "torch" in wheels:  # its hash is not in the lock
        pip(
            "download",
            [wheels.pop("torch").split()[0]],
            folder,
            "--extra-index-url",
            CPU_TORCH,
            *target,
        )
    pip("wheel", source.values(), folder)
    pip("download", wheels.values(), folder, *target)


def pip(command: str, packages: Iterable[str], folder: Path, *options: str) -> None:
    """Runs `pip download` or `pip wheel` for `packages` alone, without what they need."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "requirements.txt")
        file.write_text("\n".join(packages), encoding="utf-8")
        into = "--dest" if command == "download" else "--wheel-dir"
        asked = [
            "--quiet",
            "--no-deps",
            "--retries",
            "1",
            into,
            str(folder),
            "--requirement",
            str(file),
            *options,
        ]
        subprocess.run([sys.executable, "-m", "pip", command, *asked], check=True)


def write_list(page: Path, packages: Mapping[str, str]) -> None:
    """Writes names and versions of `packages` between the markers in `page`; raises ValueError if
    it has none."""
    begin, end = "<!-- wheels -->\n", "<!-- end of wheels -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no lines {begin.strip()} and {end}")
    named = sorted(pinned.split()[0].replace("==", " ") for pinned in packages.values())
    lines = textwrap.fill(f"{len(named)} wheels: {', '.join(named)}.", 128, break_on_hyphens=False)
    page.write_text(f"{before}{begin}{lines}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Downloads the wheels, and says how much."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument(
        "--python", default=here, help="Python version of the other machine, such as 3.12"
    )
    parser.add_argument(
        "--platform",
        default="manylinux_2_28_x86_64",
        help="platform of the other machine: see `pip debug --verbose`",
    )
    parser.add_argument("--extras", default="slurm", help="such as cuda,slurm; empty for none")
    parser.add_argument(
        "--without", type=Path, help="file of packages that it has already, one a line"
    )
    parser.add_argument("--into", type=Path, default=Path("wheelhouse"))
    parser.add_argument(
        "--list",
        type=Path,
        metavar="PAGE",
        help="download nothing: write the wheels' names into a page",
    )
    given = parser.parse_args()
    target = ["--only-binary=:all:", "--python-version", given.python, "--implementation", "cp"]
    target += [part for name in platforms(given.platform) for part in ("--platform", name)]
    extras = given.extras.split(",") if given.extras else []
    packages = locked(extras, markers(given.python, given.platform))
    if given.without:
        there = names_in(given.without)
        packages = {
            name: pinned
            for name, pinned in packages.items()
            if canonicalize_name(name) not in there
        }
    if given.list:
        write_list(given.list, packages)
        return
    collect(packages, target, given.into, cuda="cuda" in extras)
    wheels = sorted(given.into.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 1e6
    print(
        f"{given.into}: {len(wheels)} wheels, {size:,.0f} MB, for Python {given.python} on {given.platform}"
    )


if __name__ == "__main__":
    main()
