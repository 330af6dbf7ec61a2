"""A copy of the workflow, which tests and benchmarks may change and run; needs nothing but Python."""

import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINIATURE = ("--config", "experiment=miniature", "device=cpu")
STEPS = ("environment", "ceilings", "count_flops", "profile_step", "bench_matmul")
FAKE_STEP = """
import sys, types
from pathlib import Path
# CODE
from mfulab.cli.step import main
from mfulab.schema.measurements import MEASUREMENTS
from mfulab.steps.base import Measured
step = Path(__file__).stem
module = types.ModuleType(f"mfulab.steps.{step}")
module.measure = measure
sys.modules[module.__name__] = module
main(step)
"""


def fake_steps(folder: Path, code: str, steps: Iterable[str] = STEPS) -> None:
    """Gives `steps` another measurement: `code` defines `measure(config, folder)`; the app and the runner are real.

    `measure` may use `step`, `MEASUREMENTS` and `Measured`.
    """
    for step in steps:
        (folder / "scripts" / f"{step}.py").write_text(FAKE_STEP.replace("# CODE", code))


def copy_workflow(folder: Path, with_source: bool = False) -> Path:
    """The workflow's files in `folder`, without results; with the package too where a test edits it."""
    names = ["Snakefile", "environment.yml", "workflow", "config", "scripts", *(["src"] if with_source else [])]
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / name)
    (folder / "profiles").symlink_to("workflow/profiles")
    return folder
