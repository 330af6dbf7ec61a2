"""Runs the notebook from top to bottom and keeps what it shows: `python scripts/notebook.py [notebooks/seminar.ipynb]`.

What was measured already is not measured again. Paths of this machine and times of day are left out.
"""

import argparse
import json
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=1200, record_timing=False, resources=folder).execute()
    for cell in notebook.cells:
        cell.metadata = {}
    return nbformat.from_dict(json.loads(json.dumps(notebook).replace(f"{ROOT}/", "").replace(str(ROOT), ".")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path, nargs="?", default=ROOT / "notebooks/seminar.ipynb")
    place = parser.parse_args().notebook
    nbformat.write(run(place), place)
