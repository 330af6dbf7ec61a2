"""Hooks of mkdocs: build the documentation site from docs/, other files of the checkout, and the
models.

Nothing is copied: the README becomes the first page, and tables and schemas come from
`mfulab.core`.
"""

import base64
import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File, Files

from mfulab.lab.report import figures, frames
from mfulab.lab.tables import build
from mfulab.lab.tables.columns import dictionary
from mfulab.measurements.registry import MEASUREMENTS

ROOT = Path(__file__).parent.parent
BESIDE = {
    "README.md": "index.md",
    "config/README.md": "configuration.md",
    "config/KEYS.md": "keys.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changes.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in BESIDE.items()}
    pages |= {
        "library.md": _library(),
        "tables.md": _tables(),
        "schemas.md": _schemas(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for file in (*_gallery(config), *_notebook(config)):
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links between files of the checkout to pages of the site. A link to any other file
    is replaced by its name."""
    source = next((ROOT / name for name, made in BESIDE.items() if made == page.file.src_uri), None)
    folder = source.parent if source else ROOT / "docs"

    def led(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = (folder / target).resolve()
        if not path.exists():
            return match[0]  # mkdocs fails and prints the link
        name = path.relative_to(ROOT).as_posix()
        if name in BESIDE or name.startswith("docs/"):
            return f"{image}[{text}]({BESIDE.get(name, name.removeprefix('docs/'))}{anchor or ''})"
        return text if text == name else f"{text} (`{name}`)"

    return LINK.sub(led, markdown) if source or page.file.generated_by is None else markdown


def _notebook(config: Any) -> Iterator[File]:
    """Notebook as a page, with its stored outputs."""
    parts: list[str] = []
    for cell in json.loads((ROOT / "notebooks/seminar.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"notebook/{len(parts)}.png"
                caption = output["metadata"].get("image/png", {}).get("alt", "figure")
                picture = base64.b64decode("".join(data["image/png"]))
                yield File.generated(config, name, content=picture)
                parts.append(f"![{caption}]({name})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append("```text\n" + "".join(data.get("text/plain", "")) + "\n```")
    yield File.generated(config, "notebook.md", content="\n\n".join(parts))


def _library() -> str:
    """Page with the functions of `import mfulab`."""
    import mfulab

    functions = [getattr(mfulab, name) for name in mfulab.__all__]
    parts = [f"::: {function.__module__}.{function.__qualname__}" for function in functions]
    return "\n\n".join(["# Library", *parts])


def _tables() -> str:
    """Page with the columns of every table, as in results/tables/columns.csv."""
    parts = [
        "# Tables\n\nOne row a run, in `results/tables/`; `columns.csv` there holds this page."
    ]
    for table, columns in itertools.groupby(dictionary(), lambda column: column.table):
        lines = ["| column | type | unit | from | meaning |", "|---|---|---|---|---|"]
        for column in columns:
            cells = [f"`{column.column}`", column.type, column.unit, column.source]
            cells.append(column.description)
            escaped = [cell.replace("|", "\\|") for cell in cells]
            lines.append(f"| {' | '.join(escaped)} |")
        parts += [f"## {table}", "\n".join(lines)]
    return "\n\n".join(parts)


def _schemas() -> str:
    """Page with the JSON schemas of configs and rows."""
    parts = [
        "# Schemas\n\nJSON Schema of a run's `config.json` and `row.csv`: `mfulab schema MEASUREMENT` prints one."
    ]
    for measurement in MEASUREMENTS.values():
        for kind, model in (("config", measurement.config), ("row", measurement.row)):
            text = json.dumps(model.model_json_schema(), indent=1)
            parts.append(f"## {measurement.step}: {kind}\n\n```json\n{text}\n```")
    return "\n\n".join(parts)


def _gallery(config: Any) -> Iterator[File]:
    """Page with every figure that the recordings can fill, and its finding."""
    parts = ["# Gallery\n\nFrom the machines, traces and public runs in `results/reference/`."]
    with TemporaryDirectory() as folder:
        build.write(build.collect(reference=ROOT / "results/reference"), Path(folder))
        tables, _ = frames.read(Path(folder))
    for name in list(figures.modules())[: config.extra["figures"]]:
        drawn = figures.render(name, tables)
        if drawn:
            picture = io.BytesIO()
            drawn.figure.savefig(picture, format="svg")
            yield File.generated(config, f"gallery/{name}.svg", content=picture.getvalue())
            parts.append(
                f"## {drawn.title}\n\n![{drawn.title}](gallery/{name}.svg)\n\n{drawn.finding}"
            )
    yield File.generated(config, "gallery.md", content="\n\n".join(parts))
