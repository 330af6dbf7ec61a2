"""Runs the notebook from top to bottom in each language and keeps what it shows: `python
scripts/notebook.py [notebooks/seminar.ipynb]`.

What was measured already is not measured again. Left out are this machine's paths, times of day,
warnings, and the terminal's colours and lines of progress. Another language has a catalogue of the
markdown cells: `seminar.ko.yaml` gives `seminar.ko.ipynb`, which runs after the first and measures
nothing. Where more than a tenth of the measured rows are doubtful nothing is written: other
programs ran beside them. With `--translate` nothing runs, and other languages' cells whose code is
the same keep their outputs.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import nbclient
import nbformat

from mfulab.core.files import UnreadableError
from mfulab.core.yaml_text import load_yaml

ROOT = Path(__file__).resolve().parents[1]
MOST_DOUBTFUL = 0.1  # of the rows that a notebook shows
# What the cell with the tables prints.
MEASURED = re.compile(
    r"(\d+) training and inference steps, (\d+) matmuls\n(\d+) of them are doubtful"
)
LANGUAGE = re.compile(r"[a-z]{2,3}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Of each measurement a line or more, and what Snakemake says of its graph of jobs.
PROGRESS = re.compile(
    r"(?: +|\d+/\d+ +)\S.* · [\d.]+ (?:s|min).*|"
    r"DAG of jobs will be .*|Updating checkpoint dependencies.*|Using workflow.*"
)


def run(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run in a folder. Raises CellExecutionError where a
    cell fails."""
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=1200, record_timing=False, resources=resources
    ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = together(cell.outputs)
    return nbformat.from_dict(
        json.loads(json.dumps(notebook).replace(f"{ROOT}/", "").replace(str(ROOT), "."))
    )


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
            output.text = "".join(
                line for line in lines if not PROGRESS.fullmatch(line.rstrip("\n"))
            )
    return [output for output in kept if output.output_type != "stream" or output.text.strip()]


def doubtful_share(notebook: nbformat.NotebookNode) -> float:
    """Share of the measured rows that the notebook itself calls doubtful. Raises ValueError where it
    says nothing of them."""
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    found = MEASURED.search(printed)
    if found is None:
        raise ValueError("no cell prints how many rows are doubtful")
    steps, matmuls, doubtful = map(int, found.groups())
    return doubtful / max(1, steps + matmuls)


def translated(
    notebook: nbformat.NotebookNode,
    words: dict[str, str],
    language: str,
    kept: nbformat.NotebookNode | None = None,
) -> nbformat.NotebookNode:
    """The notebook with other words in its markdown cells, by their ids, and that language set;
    with the outputs that cells of the same code have in `kept`.

    Raises ValueError where the words are not those of exactly these cells.
    """
    markdown = {cell.id for cell in notebook.cells if cell.cell_type == "markdown"}
    if markdown != set(words):
        raise ValueError(
            f"cells without words, or words without a cell: {', '.join(sorted(markdown ^ set(words)))}"
        )
    shown = {}
    if kept is not None:
        shown = {(cell.id, cell.source): cell for cell in kept.cells if cell.cell_type == "code"}
    copy = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = words[cell.id]
            continue
        cell.source = cell.source.replace('LANGUAGE = "en"', f'LANGUAGE = "{language}"')
        old = shown.get((cell.id, cell.source))
        cell.outputs = old.outputs if old else []
        cell.execution_count = old.execution_count if old else None
    return copy


def words_of(catalogue: Path) -> dict[str, str]:
    """Texts by the ids of their cells. Raises SystemExit, naming the file, where it holds none."""
    try:
        words = load_yaml(catalogue)
    except UnreadableError as error:
        sys.exit(f"{error}.")
    texts = [*words, *words.values()] if isinstance(words, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        sys.exit(f"{catalogue}: give a text for each cell of words, as CELL: TEXT.")
    return words


def translations(path: Path) -> dict[Path, nbformat.NotebookNode]:
    """The notebook at `path` in every language that has a catalogue, each with the file that it
    belongs into."""
    source = nbformat.read(path, as_version=4)
    made = {}
    for catalogue in sorted(path.parent.glob(f"{path.stem}.*.yaml")):
        place = catalogue.with_suffix(".ipynb")
        kept = nbformat.read(place, as_version=4) if place.exists() else None
        language = catalogue.stem.rpartition(".")[2]
        if not LANGUAGE.fullmatch(language):  # it becomes code of the notebook
            sys.exit(f"{catalogue}: {language!r} is no language, such as ko.")
        made[place] = translated(source, words_of(catalogue), language, kept)
    return made


def regenerate(path: Path) -> None:
    """Runs the notebook and then its translations, and writes those of which at most a tenth of the
    rows are doubtful. Raises SystemExit where more are: nothing is written from there on."""
    for place in (path, *translations(path)):
        is_first = place == path
        notebook = nbformat.read(path, as_version=4) if is_first else translations(path)[place]
        ran = run(notebook, path.parent)
        share = doubtful_share(ran)
        if share > MOST_DOUBTFUL:
            sys.exit(
                f"{place}: {100 * share:.0f} % of the rows are doubtful, more than"
                f" {100 * MOST_DOUBTFUL:.0f} %: run it on a quiet machine. Nothing is written."
            )
        nbformat.write(ran, place)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path, nargs="?", default=ROOT / "notebooks/seminar.ipynb")
    parser.add_argument(
        "--translate", action="store_true", help="run nothing, write the other languages"
    )
    given = parser.parse_args()
    if given.translate:
        for place, words in translations(given.notebook).items():
            nbformat.write(words, place)
    else:
        regenerate(given.notebook)
