"""Resolves pyproject.toml in a fresh environment and pins the outcome: `make lock`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = ".[test]"
HEADER = "# What `make report` installs, written by `make lock` for Python {version}. Do not edit.\n"


def main() -> None:
    """Writes requirements.lock: torch first, so that its version decides, then everything else as pip resolves it."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch==2.13.0", "setuptools>=77"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-build-isolation", EXTRAS], check=True)
        frozen = subprocess.check_output(
            [python, "-m", "pip", "freeze", "--all", "--exclude", "mfulab", "--exclude", "pip"], text=True
        )
    # A local label (+cpu) names a build that other indexes do not have.
    pins = [re.sub(r"\+[\w.]+$", "", line) for line in frozen.splitlines() if "==" in line]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = HEADER.format(version=version) + "\n".join(sorted(pins, key=str.lower)) + "\n"
    Path("requirements.lock").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
