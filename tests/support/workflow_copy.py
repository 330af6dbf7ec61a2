"""A copy of the workflow, which tests and benchmarks may change and run; needs nothing but Python."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINIATURE = ("--config", "experiment=miniature", "device=cpu")


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
