"""Locks what each target installs: `make lock`; `make lock-check` resolves each for Linux (x86_64,
aarch64) and macOS.

All extras are resolved at once, so that all targets agree. requirements.lock has every pin, without
hashes, since pip takes no constraints that have them. requirements/pipeline.lock is what `make
report` installs, each other file there what its extra adds. uv resolves: pip cannot do so for
another Python or platform than its own.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EVERY_PIN = Path("requirements.lock")
REPORT = ("pyproject.toml", "--extra", "pipeline")  # what `make report` installs
# torch's default build requires them on Linux, its CPU build does not, and only a GPU can use them.
LIBRARIES: tuple[str, ...] = (
    "nvidia-cublas",
    "nvidia-cuda-cupti",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-cufile",
    "nvidia-curand",
)
LIBRARIES += (
    "nvidia-cusolver",
    "nvidia-cusparse",
    "nvidia-cusparselt-cu13",
    "nvidia-nccl-cu13",
    "nvidia-nvshmem-cu13",
)
LIBRARIES += ("nvidia-nvtx",)
COMPILERS = ("cuda-toolkit", "triton")
# What each extra's lock leaves out. Tests compile for GPUs without having one, and upload nothing.
UPLOAD = ("keyring",)
WITHOUT: dict[str, tuple[str, ...]] = {
    "cuda": (),
    "test": LIBRARIES + UPLOAD,
    "slurm": LIBRARIES + COMPILERS,
}
WITHOUT |= dict.fromkeys(
    (
        "tiles",
        "cutlass",
        "counters",
        "frameworks",
        "notebook",
        "docs",
        "prometheus",
        "jax-traces",
        "nsight-parquet",
    ),
    WITHOUT["slurm"],
)
TOOLS = {"uv": "uv", "audit": "pip-audit"}  # of maintainers, each in an environment of its own
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "Linux": "x86_64-unknown-linux-gnu",
    "Linux on Arm": "aarch64-unknown-linux-gnu",
    "macOS": "aarch64-apple-darwin",
}
UNREACHABLE = re.compile(r"error sending request|dns error|connect error|Network", re.IGNORECASE)


class Uv:
    """uv of a temporary environment, which reads none of this machine's settings of pip or uv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))
        }
        # the oldest that torch has wheels for
        self.environment["MACOSX_DEPLOYMENT_TARGET"] = "14.0"
        subprocess.run([sys.executable, "-m", "venv", folder / "uv"], check=True)
        pinned = ["--require-hashes", "--requirement", str(tool_lock("uv"))]
        subprocess.run(
            [folder / "uv/bin/python", "-m", "pip", "install", "--quiet", *pinned], check=True
        )

    def __call__(self, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs `uv pip` with `given` as its input; its messages are in `stderr`."""
        command = [self.folder / "uv/bin/uv", "pip", *arguments, "--quiet", "--no-config"]
        return subprocess.run(
            command, env=self.environment, input=given, text=True, capture_output=True
        )

    def excluding(self, extra: str) -> list[str]:
        """Gives the option that leaves out of a resolution what the lock of `extra` leaves out."""
        file = self.folder / f"without-{extra}"
        file.write_text(
            "\n".join(UPLOAD if extra == "everything" else WITHOUT.get(extra, WITHOUT["slurm"])),
            encoding="utf-8",
        )
        return ["--excludes", str(file)]


def compiled(uv: Uv, into: Path, *options: str | Path) -> list[str]:
    """Resolves pyproject.toml with `options`: each package's line with its hashes, sorted by name.

    Raises SystemExit with uv's message where no versions fit together.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    build = "\n".join(project["build-system"]["requires"])
    return resolved(uv, into, *options, "-", given=build)


def resolved(uv: Uv, into: Path, *options: str | Path, given: str) -> list[str]:
    """Resolves what is given and asked for: each package's line with its hashes, sorted by name.

    Raises SystemExit with uv's message where no versions fit together.
    """
    style = [
        "--universal",
        "--python-version",
        PYTHONS[0],
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
    ]
    done = uv("compile", *options, *style, "--output-file", into, given=given)
    if done.returncode:
        raise SystemExit(done.stderr)
    return re.split(r"\n(?=\S)", into.read_text(encoding="utf-8").strip())


def write(uv: Uv, upgrade: bool) -> None:
    """Writes every lock; pins that still fit stay, unless `upgrade`."""
    every = uv.folder / "every.lock"
    every.write_text(
        EVERY_PIN.read_text(encoding="utf-8") if EVERY_PIN.exists() else "", encoding="utf-8"
    )
    found = compiled(
        uv, every, "pyproject.toml", "--all-extras", *(["--upgrade"] if upgrade else [])
    )
    save(
        EVERY_PIN,
        "What every target may install, for `pip install --constraint`",
        [one.split(" \\\n")[0] for one in found],
    )
    pinned = ["--constraints", str(every)]
    base = compiled(uv, uv.folder / "base", *REPORT, *pinned, *uv.excluding("pipeline"))
    save(locks()["pipeline"], "What `make report` installs", base)
    save(
        locks()["build"],
        "What installing the project itself needs",
        compiled(uv, uv.folder / "build", *pinned),
    )
    for extra in WITHOUT:
        options = [*REPORT, "--extra", extra, *pinned, *uv.excluding(extra)]
        found = compiled(uv, uv.folder / extra, *options)
        save(
            locks()[extra],
            f"What `.[{extra}]` adds to pipeline.lock",
            [one for one in found if one not in base],
        )

    for tool, requirement in TOOLS.items():
        into = uv.folder / f"tool-{tool}"
        if tool_lock(tool).exists() and not upgrade:
            into.write_text(tool_lock(tool).read_text(encoding="utf-8"), encoding="utf-8")
        found = resolved(uv, into, "-", *pinned, given=requirement)
        save(tool_lock(tool), f"What {requirement} needs, for maintainers", found)


def tool_lock(tool: str) -> Path:
    """Lock of a tool that runs in an environment of its own."""
    return Path("requirements", "tools", f"{tool}.lock")


def locks() -> Mapping[str, Path]:
    """Names each lock's file."""
    return {name: Path("requirements", f"{name}.lock") for name in ("pipeline", "build", *WITHOUT)}


def save(file: Path, what: str, packages: list[str]) -> None:
    """Writes one lock."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "\n".join([f"# {what}. Made by `make lock`, not by hand.", *packages, ""]), encoding="utf-8"
    )


def check(uv: Uv, pythons: Sequence[str], platforms: Sequence[str]) -> list[str]:
    """Resolves each target for each of the Pythons and platforms from metadata alone, and gives
    what failed.

    A pin that contradicts another, a package without a pin or a hash, and a pin without a file for
    the platform fail. Raises ConnectionError if the package index cannot be reached.
    """
    without = {extra: uv.excluding(extra) for extra in ("everything", "pipeline", *WITHOUT)}

    def resolve(python: str, platform: str) -> list[str]:
        there = ["--target", str(uv.folder / "there"), "--python-version", python]
        there += ["--python-platform", PLATFORMS[platform]]
        tried = {}
        for extra in without:  # what everything asked of the index serves the rest
            names = locks() if extra == "everything" else dict.fromkeys(("pipeline", extra))
            files = [part for name in names for part in ("-r", str(locks()[name]))]
            options = without[extra] if extra == "everything" else ["--offline", *without[extra]]
            tried[extra] = uv("install", "--dry-run", "--require-hashes", *files, *there, *options)
        tried["requirements.lock as a constraint"] = uv(
            "install", "--dry-run", "-r", *REPORT, "--constraints", EVERY_PIN, *there
        )
        failed = {
            f"{name}, Python {python}, {platform}": one.stderr
            for name, one in tried.items()
            if one.returncode
        }
        if unreachable := [text for text in failed.values() if UNREACHABLE.search(text)]:
            raise ConnectionError(unreachable[0])
        return [f"{name}: {text}" for name, text in failed.items()]

    with ThreadPoolExecutor(4) as pool:
        return list(
            itertools.chain(
                *pool.map(resolve, *zip(*itertools.product(pythons, platforms), strict=True))
            )
        )


def main() -> None:
    """Writes the locks, or checks them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest compatible versions"
    )
    parser.add_argument(
        "--check", action="store_true", help="resolve the locks instead of writing them"
    )
    parser.add_argument(
        "--oldest", action="store_true", help="resolve them for the oldest Python on Linux alone"
    )
    given = parser.parse_args()
    pythons, platforms = (PYTHONS[:1], ["Linux"]) if given.oldest else (PYTHONS, list(PLATFORMS))
    with tempfile.TemporaryDirectory() as folder:
        uv = Uv(Path(folder))
        if not given.check:
            write(uv, given.upgrade)
            return
        try:
            failed = check(uv, pythons, platforms)
        except ConnectionError as error:
            failed = [f"The locks are not checked: the package index cannot be reached.\n{error}"]
            if "MFULAB_CI" not in os.environ:
                print(*failed)
                return
    if failed:
        raise SystemExit("\n".join(failed))
    print(
        f"{len(WITHOUT) + 2} targets resolve for Python {', '.join(pythons)} on {', '.join(platforms)}"
    )


if __name__ == "__main__":
    main()
