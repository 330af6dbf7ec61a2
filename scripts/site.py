"""Hooks of mkdocs: the documentation's site from docs/, from what lies beside it, and from the
models.

Nothing is copied: the README is the first page, and tables and schemas are read from `mfulab.core`.
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
    """Leads links of the checkout to pages of the site; a file that is no page becomes its name."""
    source = next((ROOT / name for name, made in BESIDE.items() if made == page.file.src_uri), None)
    folder = source.parent if source else ROOT / "docs"

    def led(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = (folder / target).resolve()
        if not path.exists():
            return match[0]  # mkdocs ends with its name
        name = path.relative_to(ROOT).as_posix()
        if name in BESIDE or name.startswith("docs/"):
            return f"{image}[{text}]({BESIDE.get(name, name.removeprefix('docs/'))}{anchor or ''})"
        return text if text == name else f"{text} (`{name}`)"

    return LINK.sub(led, markdown) if source or page.file.generated_by is None else markdown


def _notebook(config: Any) -> Iterator[File]:
    """The notebook as a page, with the outputs that it keeps."""
    parts: list[str] = []
    for cell in json.loads((ROOT / "notebooks/seminar.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name, told = (
                    f"notebook/{len(parts)}.png",
                    output["metadata"].get("image/png", {}).get("alt", "figure"),
                )
                yield File.generated(
                    config, name, content=base64.b64decode("".join(data["image/png"]))
                )
                parts.append(f"![{told}]({name})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append("```text\n" + "".join(data.get("text/plain", "")) + "\n```")
    yield File.generated(config, "notebook.md", content="\n\n".join(parts))


def _library() -> str:
    """The functions of `import mfulab`."""
    import mfulab

    names = [getattr(mfulab, name) for name in mfulab.__all__]
    return "# Library\n\n" + "\n\n".join(
        f"::: {each.__module__}.{each.__qualname__}" for each in names
    )


def _tables() -> str:
    """Columns of every table, as in results/tables/columns.csv."""
    parts = [
        "# Tables\n\nOne row a run, in `results/tables/`; `columns.csv` there holds this page."
    ]
    for table, found in itertools.groupby(dictionary(), lambda each: each.table):
        parts.append(
            f"## {table}\n\n| column | type | unit | from | meaning |\n|---|---|---|---|---|"
        )
        lines = (
            [f"`{each.column}`", each.type, each.unit, each.source, each.description]
            for each in found
        )
        parts[-1] += "".join(
            "\n| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
    return "\n\n".join(parts)


def _schemas() -> str:
    """JSON schemas of configs and rows."""
    parts = [
        "# Schemas\n\nJSON Schema of a run's `config.json` and `row.csv`: `mfulab schema MEASUREMENT` prints one."
    ]
    for each in MEASUREMENTS.values():
        for kind, model in (("config", each.config), ("row", each.row)):
            text = json.dumps(model.model_json_schema(), indent=1)
            parts.append(f"## {each.step}: {kind}\n\n```json\n{text}\n```")
    return "\n\n".join(parts)


def _gallery(config: Any) -> Iterator[File]:
    """A page of every figure that the recordings fill, with its sentence."""
    parts = ["# Gallery\n\nFrom the machines, traces and public runs in `results/reference/`."]
    with TemporaryDirectory() as folder:
        build.write(build.collect(reference=ROOT / "results/reference"), Path(folder))
        tables, _ = frames.read(Path(folder))
    for name in list(figures.modules())[: config.extra["figures"]]:
        if drawn := figures.render(name, tables):
            picture = io.BytesIO()
            drawn.figure.savefig(picture, format="svg")
            yield File.generated(config, f"gallery/{name}.svg", content=picture.getvalue())
            parts.append(
                f"## {drawn.title}\n\n![{drawn.title}](gallery/{name}.svg)\n\n{drawn.finding}"
            )
    yield File.generated(config, "gallery.md", content="\n\n".join(parts))
