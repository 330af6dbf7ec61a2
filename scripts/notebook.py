"""Runs the notebook from top to bottom and keeps what it shows: `python scripts/notebook.py [notebooks/seminar.ipynb]`.

What was measured already is not measured again. Left out are this machine's paths, times of day, warnings, and the
terminal's colours and lines of progress. Then it is written in each language that has a catalogue of its markdown
cells: `seminar.ko.yaml` gives `seminar.ko.ipynb`. With `--translate` that alone is done, and nothing runs.
"""

import argparse
import json
import re
from pathlib import Path

import nbclient
import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[1]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Of each measurement a line or more, and what Snakemake says of its graph of jobs.
PROGRESS = re.compile(
    r"(?: +|\d+/\d+ +)\S.* · [\d.]+ (?:s|min).*|"
    r"DAG of jobs will be .*|Updating checkpoint dependencies.*|Using workflow.*"
)


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=1200, record_timing=False, resources=folder).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = together(cell.outputs)
    return nbformat.from_dict(json.loads(json.dumps(notebook).replace(f"{ROOT}/", "").replace(str(ROOT), ".")))


def together(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs in which what was printed in a row is one, without colours, progress and warnings."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            kept.append(output)
        elif output.name == "stdout":
            if not kept or kept[-1].output_type != "stream":
                kept.append(nbformat.v4.new_output("stream", name="stdout", text=""))
            kept[-1].text += output.text
    for output in kept:
        if output.output_type == "stream":
            lines = COLOUR.sub("", output.text).replace("\r\n", "\n").splitlines(keepends=True)
            output.text = "".join(line for line in lines if not PROGRESS.fullmatch(line.rstrip("\n")))
    return [output for output in kept if output.output_type != "stream" or output.text.strip()]


def translated(notebook: nbformat.NotebookNode, words: dict[str, str], language: str) -> nbformat.NotebookNode:
    """The notebook with other words in its markdown cells, by their ids, and that language set; without outputs.

    Raises ValueError where the words are not those of exactly these cells.
    """
    markdown = {cell.id for cell in notebook.cells if cell.cell_type == "markdown"}
    if markdown != set(words):
        raise ValueError(f"cells without words, or words without a cell: {', '.join(sorted(markdown ^ set(words)))}")
    copy = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = words[cell.id]
        else:
            cell.outputs, cell.execution_count = [], None
            cell.source = cell.source.replace('LANGUAGE = "en"', f'LANGUAGE = "{language}"')
    return copy


def translations(path: Path) -> dict[Path, nbformat.NotebookNode]:
    """The notebook at `path` in every language that has a catalogue, each with the file that it belongs into."""
    source = nbformat.read(path, as_version=4)
    catalogues = sorted(path.parent.glob(f"{path.stem}.*.yaml"))
    return {
        catalogue.with_suffix(".ipynb"): translated(
            source, yaml.safe_load(catalogue.read_text(encoding="utf-8")), catalogue.stem.rpartition(".")[2]
        )
        for catalogue in catalogues
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path, nargs="?", default=ROOT / "notebooks/seminar.ipynb")
    parser.add_argument("--translate", action="store_true", help="run nothing, write the other languages")
    given = parser.parse_args()
    if not given.translate:
        nbformat.write(run(given.notebook), given.notebook)
    for place, words in translations(given.notebook).items():
        nbformat.write(words, place)
