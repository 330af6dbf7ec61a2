"""Writes the lock files: `make lock`. Or checks them for Linux (x86_64, aarch64) and macOS: `make
lock-check`.

All extras are resolved together, so that all targets use the same versions. requirements.lock has
every pin, without hashes, because pip does not allow hashes in constraints.
requirements/pipeline.lock is what `make report` installs; each other file there is what its extra
adds. uv resolves, because pip cannot resolve for another Python or platform.
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
REPORT = ("pyproject.toml", "--extra", "pipeline")  # installed by `make report`
# torch's default build for Linux requires these, its CPU build does not. Only a GPU can use them.
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
# Packages that each extra's lock leaves out. Tests compile for GPUs without one, and upload nothing.
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
TOOLS = {"uv": "uv", "audit": "pip-audit"}  # for maintainers, each in its own environment
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "Linux": "x86_64-unknown-linux-gnu",
    "Linux on Arm": "aarch64-unknown-linux-gnu",
    "macOS": "aarch64-apple-darwin",
}
UNREACHABLE = re.compile(r"error sending request|dns error|connect error|Network", re.IGNORECASE)


class Uv:
    """uv, installed into a temporary environment. It ignores this machine's settings of pip and
    uv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))
        }
        # the oldest version that torch has wheels for
        self.environment["MACOSX_DEPLOYMENT_TARGET"] = "14.0"
        subprocess.run([sys.executable, "-m", "venv", folder / "uv"], check=True)
        pinned = ["--require-hashes", "--requirement", str(tool_lock("uv"))]
        subprocess.run(
            [folder / "uv/bin/python", "-m", "pip", "install", "--quiet", *pinned], check=True
        )

    def __call__(self, *arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs `uv pip` with `text` on stdin. Messages are in `stderr` of the result."""
        command = [self.folder / "uv/bin/uv", "pip", *arguments, "--quiet", "--no-config"]
        return subprocess.run(
            command, env=self.environment, input=text, text=True, capture_output=True
        )

    def excluding(self, extra: str) -> list[str]:
        """Option for uv that excludes the packages that the lock of `extra` leaves out."""
        excluded = WITHOUT.get(extra, WITHOUT["slurm"])
        if extra == "everything":
            excluded = UPLOAD
        file = self.folder / f"without-{extra}"
        file.write_text("\n".join(excluded), encoding="utf-8")
        return ["--excludes", str(file)]


def compiled(uv: Uv, into: Path, *options: str | Path) -> list[str]:
    """Resolves pyproject.toml with `options`. Returns the lines of each package with its hashes,
    sorted by name.

    Raises SystemExit with uv's message if the requirements conflict.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    build = "\n".join(project["build-system"]["requires"])
    return resolved(uv, into, *options, "-", text=build)


def resolved(uv: Uv, into: Path, *options: str | Path, text: str) -> list[str]:
    """Resolves the requirements in `text` and `options`. Returns the lines of each package with its
    hashes, sorted by name.

    Raises SystemExit with uv's message if the requirements conflict.
    """
    style = [
        "--universal",
        "--python-version",
        PYTHONS[0],
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
    ]
    done = uv("compile", *options, *style, "--output-file", into, text=text)
    if done.returncode:
        raise SystemExit(done.stderr)
    return re.split(r"\n(?=\S)", into.read_text(encoding="utf-8").strip())


def write(uv: Uv, upgrade: bool) -> None:
    """Writes all locks. Keeps pins that still fit, unless `upgrade`."""
    every = uv.folder / "every.lock"
    pins = EVERY_PIN.read_text(encoding="utf-8") if EVERY_PIN.exists() else ""
    every.write_text(pins, encoding="utf-8")
    newest = ["--upgrade"] if upgrade else []
    found = compiled(uv, every, "pyproject.toml", "--all-extras", *newest)
    save(
        EVERY_PIN,
        "What every target may install, for `pip install --constraint`",
        [package.split(" \\\n")[0] for package in found],
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
            [package for package in found if package not in base],
        )

    for tool, requirement in TOOLS.items():
        into = uv.folder / f"tool-{tool}"
        if tool_lock(tool).exists() and not upgrade:
            into.write_text(tool_lock(tool).read_text(encoding="utf-8"), encoding="utf-8")
        found = resolved(uv, into, "-", *pinned, text=requirement)
        save(tool_lock(tool), f"What {requirement} needs, for maintainers", found)


def tool_lock(tool: str) -> Path:
    """Lock file of a maintainer's tool, which gets its own environment."""
    return Path("requirements", "tools", f"{tool}.lock")


def locks() -> Mapping[str, Path]:
    """Lock files by name."""
    return {name: Path("requirements", f"{name}.lock") for name in ("pipeline", "build", *WITHOUT)}


def save(file: Path, what: str, packages: list[str]) -> None:
    """Writes one lock."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "\n".join([f"# {what}. Made by `make lock`, not by hand.", *packages, ""]), encoding="utf-8"
    )


def check(uv: Uv, pythons: Sequence[str], platforms: Sequence[str]) -> list[str]:
    """Resolves each target for each Python and platform, using metadata only. Returns descriptions
    of what failed.

    Fails for contradicting pins, a package without a pin or a hash, and a pin without a file for
    the platform. Raises ConnectionError if the package index cannot be reached.
    """
    without = {extra: uv.excluding(extra) for extra in ("everything", "pipeline", *WITHOUT)}

    def resolve(python: str, platform: str) -> list[str]:
        target = ["--target", str(uv.folder / "there"), "--python-version", python]
        target += ["--python-platform", PLATFORMS[platform]]
        results = {}
        for extra in without:  # "everything" is first and fills the cache for the others
            names = list(locks())
            options = list(without[extra])
            if extra != "everything":
                names = list(dict.fromkeys(("pipeline", extra)))
                options.insert(0, "--offline")
            files = []
            for name in names:
                files += ["-r", str(locks()[name])]
            results[extra] = uv(
                "install", "--dry-run", "--require-hashes", *files, *target, *options
            )
        results["requirements.lock as a constraint"] = uv(
            "install", "--dry-run", "-r", *REPORT, "--constraints", EVERY_PIN, *target
        )
        failures = []
        for name, done in results.items():
            if not done.returncode:
                continue
            if UNREACHABLE.search(done.stderr):
                raise ConnectionError(done.stderr)
            failures.append(f"{name}, Python {python}, {platform}: {done.stderr}")
        return failures

    targets = itertools.product(pythons, platforms)
    with ThreadPoolExecutor(4) as pool:
        failures = pool.map(lambda target: resolve(*target), targets)
        return list(itertools.chain.from_iterable(failures))


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
    options = parser.parse_args()
    pythons, platforms = (PYTHONS[:1], ["Linux"]) if options.oldest else (PYTHONS, list(PLATFORMS))
    with tempfile.TemporaryDirectory() as folder:
        uv = Uv(Path(folder))
        if not options.check:
            write(uv, options.upgrade)
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
