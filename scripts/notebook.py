"""Runs the notebook in each language and stores its outputs: `python scripts/notebook.py
[notebooks/seminar.ipynb]`.

Existing measurements are not repeated. The stored outputs omit paths of this machine, times of day,
warnings, colours and progress lines. A translation is a catalogue of the markdown cells:
`seminar.ko.yaml` gives `seminar.ko.ipynb`, which runs after the original and measures nothing. If
more than a tenth of the measured rows are doubtful, because other programs ran at the same time,
nothing is written. With `--translate` nothing runs, and translated cells with the same code keep
their outputs.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import nbclient
import nbformat

from mfulab.core.files import UnreadableError
from mfulab.core.language import LANGUAGES, Texts
from mfulab.core.yaml_text import load_yaml

ROOT = Path(__file__).resolve().parents[1]
MOST_DOUBTFUL = 0.1  # share of the rows that a notebook shows
# What the cell with the tables prints, by the key of its sentence in the notebook's texts.
PRINTED = {"measured": ("steps", "matmuls"), "of_them_doubtful": ("count",)}
LANGUAGE_NAME = re.compile(r"[a-z]{2,3}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Progress lines of measurements, and Snakemake's lines about its graph of jobs.
PROGRESS = re.compile(
    r"(?: +|\d+/\d+ +)\S.* · [\d.]+ (?:s|min).*|"
    r"DAG of jobs will be .*|Updating checkpoint dependencies.*|Using workflow.*"
)


def run(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Executes the notebook in a folder and returns it with cleaned outputs. Raises
    CellExecutionError if a cell fails."""
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=1200, record_timing=False, resources=resources
    ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = together(cell.outputs)
    text = json.dumps(notebook).replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    return nbformat.from_dict(json.loads(text))


def together(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Merges consecutive stdout outputs into one. Drops colours, progress lines and warnings."""
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
            lines = [line for line in lines if not PROGRESS.fullmatch(line.rstrip("\n"))]
            output.text = "".join(lines)
    return [output for output in kept if output.output_type != "stream" or output.text.strip()]


def doubtful_share(notebook: nbformat.NotebookNode) -> float:
    """Share of the measured rows that the notebook reports as doubtful. Raises ValueError if it
    does not report any number."""
    printed = ""
    for cell in notebook.cells:
        streams = [part for part in cell.get("outputs", []) if part.output_type == "stream"]
        printed += "".join(stream.get("text", "") for stream in streams)
    found = next(filter(None, (measured(language, printed) for language in LANGUAGES)), None)
    if found is None:
        raise ValueError("no cell prints how many rows are doubtful")
    return found["count"] / max(1, found["steps"] + found["matmuls"])


def measured(language: str, printed: str) -> dict[str, int]:
    """Numbers of measured rows in a notebook's printed text; empty if it is in another
    language."""
    text = Texts(language, "notebook")
    numbers: dict[str, int] = {}
    for key, names in PRINTED.items():
        sentence = re.escape(text(key, **{name: name.upper() for name in names}))
        for name in names:
            sentence = sentence.replace(name.upper(), rf"(?P<{name}>\d+)")
        found = re.search(sentence, printed)
        if found is None:
            return {}
        numbers |= {name: int(number) for name, number in found.groupdict().items()}
    return numbers


def translated(
    notebook: nbformat.NotebookNode,
    texts: dict[str, str],
    language: str,
    previous: nbformat.NotebookNode | None = None,
) -> nbformat.NotebookNode:
    """Copies the notebook with its markdown cells replaced by `words` (text by cell id) and its
    language set. Code cells take their outputs from cells with the same code in `previous`.

    Raises ValueError if the ids do not match the markdown cells.
    """
    markdown = {cell.id for cell in notebook.cells if cell.cell_type == "markdown"}
    if markdown != set(texts):
        unmatched = ", ".join(sorted(markdown ^ set(texts)))
        raise ValueError(f"cells without words, or words without a cell: {unmatched}")
    cells = {}
    if previous is not None:
        cells = {
            (cell.id, cell.source): cell for cell in previous.cells if cell.cell_type == "code"
        }
    copy = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = texts[cell.id]
            continue
        cell.source = cell.source.replace('LANGUAGE = "en"', f'LANGUAGE = "{language}"')
        old = cells.get((cell.id, cell.source))
        cell.outputs = old.outputs if old else []
        cell.execution_count = old.execution_count if old else None
    return copy


def words_of(catalogue: Path) -> dict[str, str]:
    """Texts by cell id from a catalogue. Raises SystemExit with the file's name if it is
    invalid."""
    try:
        texts = load_yaml(catalogue)
    except UnreadableError as error:
        sys.exit(f"{error}.")
    parts = [*texts, *texts.values()] if isinstance(texts, dict) else [None]
    if not all(isinstance(part, str) for part in parts):
        sys.exit(f"{catalogue}: give a text for each cell of words, as CELL: TEXT.")
    return texts


def translations(path: Path) -> dict[Path, nbformat.NotebookNode]:
    """Translations of the notebook at `path`, by output file: one for each catalogue."""
    source = nbformat.read(path, as_version=4)
    made = {}
    for catalogue in sorted(path.parent.glob(f"{path.stem}.*.yaml")):
        output = catalogue.with_suffix(".ipynb")
        previous = nbformat.read(output, as_version=4) if output.exists() else None
        language = catalogue.stem.rpartition(".")[2]
        if not LANGUAGE_NAME.fullmatch(language):  # it is inserted into the notebook's code
            sys.exit(f"{catalogue}: {language!r} is no language, such as ko.")
        made[output] = translated(source, words_of(catalogue), language, previous)
    return made


def regenerate(path: Path) -> None:
    """Runs the notebook and its translations and writes each. Raises SystemExit at the first with
    too many doubtful rows, which is not written."""
    for output in (path, *translations(path)):
        is_first = output == path
        notebook = nbformat.read(path, as_version=4) if is_first else translations(path)[output]
        ran = run(notebook, path.parent)
        share = doubtful_share(ran)
        if share > MOST_DOUBTFUL:
            sys.exit(
                f"{output}: {100 * share:.0f} % of the rows are doubtful, more than"
                f" {100 * MOST_DOUBTFUL:.0f} %: run it on a quiet machine. Nothing is written."
            )
        nbformat.write(ran, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path, nargs="?", default=ROOT / "notebooks/seminar.ipynb")
    parser.add_argument(
        "--translate", action="store_true", help="run nothing, write the other languages"
    )
    options = parser.parse_args()
    if options.translate:
        for place, texts in translations(options.notebook).items():
            nbformat.write(texts, place)
    else:
        regenerate(options.notebook)
