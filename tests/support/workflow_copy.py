"""Copies of the workflow that tests and benchmarks may change. Needs only the standard library."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINIATURE = ("--config", "experiment=miniature", "device=cpu")
# Figures of the miniature's report: one for each topic that workflow tests check.
FEW_FIGURES = (
    "mfu_versus_utilization",
    "utilization_ladder",
    "kernel_ladder",
    "memory_breakdown",
    "ceilings",
)
STEPS = ("environment", "ceilings", "count_flops", "profile_step", "bench_matmul")
MODULE = """
from snakemake.utils import min_version

min_version("6.10.0")


configfile: "config/config.yaml"


module mfulab:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from mfulab
"""
FAKE_STEP = """
import sys, types
from pathlib import Path
step = sys.argv.pop(1)
# CODE
from mfulab.lab.runtime.run import main
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.core.measurement import Measured
module = types.ModuleType(f"mfulab.measurements.{step}.measure")
module.measure = measure
if step in STEPS:
    sys.modules[module.__name__] = module
main(step)
"""


def fake_steps(folder: Path, code: str, steps: Iterable[str] = STEPS) -> None:
    """Replaces the measurement of `steps`: `code` defines `measure(config, folder)`. App and runner
    are real.

    `measure` may use `step`, `MEASUREMENTS` and `Measured`.
    """
    text = FAKE_STEP.replace("# CODE", code).replace("STEPS", str(tuple(steps)))
    (folder / "scripts/run.py").write_text(text)


def copy_workflow(folder: Path, with_source: bool = False) -> Path:
    """Copies the workflow's files into `folder`, without results. `with_source` also copies the
    package, for tests that edit it."""
    folder.mkdir(exist_ok=True)
    names = ["Snakefile", "workflow", "config", "scripts", *(["src"] if with_source else [])]
    for name in names:
        source = ROOT / name
        if source.is_dir():
            # Includes bytecode, which saves compiling it again.
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(source, folder / name)
    (folder / "profiles").symlink_to("workflow/profiles")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/seminar.yaml", folder / "docs")
    return folder


def draw_all(folder: Path) -> None:
    """Restores the figures of a copy after `draw_only`."""
    path = "src/mfulab/lab/report/figures/__init__.py"
    shutil.copy(ROOT / path, folder / path)


def draw_only(folder: Path, figures: tuple[str, ...]) -> None:
    """Limits the figures of a copy with source, because drawing all takes longest."""
    path = folder / "src/mfulab/lab/report/figures/__init__.py"
    text = path.read_text(encoding="utf-8")
    listed = "pick_all(loaded, order)"
    assert text.count(listed) == 1, f"{path}: nothing like {listed}"
    path.write_text(text.replace(listed, f"pick_all(loaded, {figures})"), encoding="utf-8")


def deploy_workflow(folder: Path, origin: Path = ROOT) -> Path:
    """Creates a folder as `snakedeploy deploy-workflow` does: config, profiles, and the workflow of
    `origin` as a module."""
    (folder / "workflow").mkdir(parents=True)
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copytree(ROOT / "profiles", folder / "profiles")
    (folder / "workflow/Snakefile").write_text(MODULE.format(snakefile=origin / "Snakefile"))
    return folder


@dataclass(frozen=True)
class Project:
    """Copy of the workflow. Code is imported from the copy if it has the package, else from
    `origin`."""

    folder: Path
    origin: Path = ROOT

    def run(
        self, *command: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of this Python environment in the copy. Output and errors are combined."""
        bin_folder = Path(sys.executable).parent
        paths = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        source = self.folder / "src" if (self.folder / "src").exists() else self.origin / "src"
        merged = {
            **os.environ,
            "PATH": paths,
            "PYTHONPATH": str(source),
            "COLUMNS": "200",
            **environment,
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=merged,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    def snakemake(
        self, *arguments: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs Snakemake on one core. The default target and experiment are those of the copy's
        config."""
        return self.run("snakemake", "--cores", "1", *arguments, check=check, **environment)

    def rows(self) -> dict[str, float]:
        """Modification time of every row below results/, by path."""
        found = (self.folder / "results").rglob("row.csv")
        return {
            str(path.relative_to(self.folder)): path.stat().st_mtime_ns
            for path in found
            if "superseded" not in path.parts
        }
