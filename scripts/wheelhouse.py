"""Collects all wheels for a machine without network: `make wheelhouse WHEELHOUSE="--python 3.12
--extras cuda"`.

Run it on a machine with network. docs/clusters.md describes the installation from the resulting
folder.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# pip's own copy, so that this script needs nothing but pip
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
# A wheel names the oldest C library that it runs with: newer systems accept older wheels too.
OLDER = {"manylinux_2_28": ["manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014"]}
SYSTEMS = {"win": ("Windows", "win32"), "macosx": ("Darwin", "darwin")}  # all others: Linux
# Published only as source, and pure Python: a wheel that is built here runs on any machine.
SOURCE_ONLY = ("antlr4-python3-runtime", "connection-pool", "fvcore", "iopath")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def platforms(platform: str) -> list[str]:
    """Returns `platform` and the older platforms whose wheels it can use: `manylinux_2_28_x86_64`
    also accepts `manylinux2014_x86_64`."""
    for newer, older in OLDER.items():
        if platform.startswith(newer):
            return [platform, *(name + platform.removeprefix(newer) for name in older)]
    return [platform]


def markers(python: str, platform: str) -> dict[str, str]:
    """Environment markers of the target machine, to evaluate the conditions in the locks."""
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


def locked(extras: Iterable[str], target: Mapping[str, str]) -> dict[str, str]:
    """Pins and hashes of the packages in the locks of the pipeline and of `extras` whose conditions
    hold, by name."""
    found = {}
    for extra in ("pipeline", *extras):
        lock = (PROJECT / f"requirements/{extra}.lock").read_text(encoding="utf-8")
        for pinned in re.split(r"\n(?=\S)", lock):
            if pinned.startswith("#"):
                continue
            requirement = Requirement(pinned.split("\\\n")[0])
            if requirement.marker is None or requirement.marker.evaluate(dict(target)):
                hashes = [part for part in pinned.split() if part.startswith("--hash=")]
                found[requirement.name] = " ".join(
                    [f"{requirement.name}{requirement.specifier}", *hashes]
                )
    return found


def names_in(file: Path) -> set[str]:
    """Package names in a file with one per line, normalised. `#` starts a comment."""
    lines = (
        line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()
    )
    return {canonicalize_name(line) for line in lines if line}


def collect(packages: Mapping[str, str], target: Sequence[str], folder: Path, cuda: bool) -> None:
    """Fills `folder` with wheels of `packages` for `target`. Uses PyTorch's CPU build of torch
    unless `cuda`.

    Raises CalledProcessError, after pip printed the reason, if a package has no wheel for that
    Python and platform.
    """
    source = {name: pinned for name, pinned in packages.items() if name in SOURCE_ONLY}
    wheels = {name: pinned for name, pinned in packages.items() if name not in SOURCE_ONLY}
    if not cuda and "torch" in wheels:  # without the hash: the lock has that of the default build
        torch = wheels.pop("torch").split()[0]
        pip("download", [torch], folder, "--extra-index-url", CPU_TORCH, *target)
    pip("wheel", source.values(), folder)
    pip("download", wheels.values(), folder, *target)


def pip(command: str, packages: Iterable[str], folder: Path, *options: str) -> None:
    """Runs `pip download` or `pip wheel` for `packages`, without their dependencies."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "requirements.txt")
        file.write_text("\n".join(packages), encoding="utf-8")
        into = "--dest" if command == "download" else "--wheel-dir"
        arguments = [
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
        subprocess.run([sys.executable, "-m", "pip", command, *arguments], check=True)


def write_list(page: Path, packages: Mapping[str, str]) -> None:
    """Writes names and versions of `packages` between the markers in `page`. Raises ValueError if
    the markers are missing."""
    begin, end = "<!-- wheels -->\n", "<!-- end of wheels -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no lines {begin.strip()} and {end}")
    named = sorted(pinned.split()[0].replace("==", " ") for pinned in packages.values())
    lines = textwrap.fill(f"{len(named)} wheels: {', '.join(named)}.", 128, break_on_hyphens=False)
    page.write_text(f"{before}{begin}{lines}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Downloads the wheels and prints their number and size."""
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
    options = parser.parse_args()
    target = ["--only-binary=:all:", "--python-version", options.python, "--implementation", "cp"]
    for name in platforms(options.platform):
        target += ["--platform", name]
    extras = []
    if options.extras:
        extras = options.extras.split(",")
    packages = locked(extras, markers(options.python, options.platform))
    if options.without:
        present = names_in(options.without)
        packages = {
            name: pinned
            for name, pinned in packages.items()
            if canonicalize_name(name) not in present
        }
    if options.list:
        write_list(options.list, packages)
        return
    collect(packages, target, options.into, cuda="cuda" in extras)
    wheels = sorted(options.into.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 1e6
    print(
        f"{options.into}: {len(wheels)} wheels, {size:,.0f} MB, for Python {options.python} on {options.platform}"
    )


if __name__ == "__main__":
    main()
