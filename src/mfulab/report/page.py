"""One self-contained page: findings first, then figures, rows, environment and definitions; it needs no network."""

import argparse
import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from mfulab.report import figures, frames, style
from mfulab.report.columns import TABLES
from mfulab.report.language import Texts, catalogue
from mfulab.schema import ROWS

# The columns shown at first; the rest appear on request and are always exported.
MAIN = {
    "profile": (
        "hardware model mode batch_size precision execution status time_s samples_per_s tokens_per_s mfu_percent"
        " hfu_percent utilization_percent memory_bytes energy_j verdict"
    ),
    "matmul": (
        "hardware kernel size precision status time_s tflop_s share_of_measured_percent share_of_reference_percent"
        " relative_error end_to_end_s"
    ),
    "ceilings": (
        "hardware ceiling status measured_tflop_s computed_tflop_s datasheet_tflop_s measured_gb_s computed_gb_s"
    ),
    "flops": "run model batch_size sequence_length status parameters forward_flops backward_flops uncounted_operators",
    "environment": "hardware recorded device device_name python operating_system",
}
ORDER = ("profile", "matmul", "ceilings", "flops", "environment")


def main(arguments: Sequence[str] | None = None) -> None:
    """`python scripts/report.py --tables results/tables --out reports/report.html`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--out", type=Path, default=Path("reports/report.html"))
    parser.add_argument("--language", default="en")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_name(f".{options.out.name}")
    partial.write_text(build(options.tables, options.language), encoding="utf-8")
    partial.replace(options.out)


def build(folder: Path, language: str = "en") -> str:
    """The page as text, from the tables in `folder`, whatever is missing of them."""
    tables, problems = frames.read(folder)
    text = Texts(language, "page")
    drawn = [figure for name in figures.modules() if (figure := figures.render(name, tables, language))]
    headline = next((figure.finding for figure in drawn), None)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_template("report.html"))
    return template.render(
        text=text,
        headline=headline,
        provenance=style.provenance(_all_rows(tables)),
        problems=[*_unmeasured(tables, text), *problems],
        sections=_sections(drawn, text),
        has_rows=any(len(tables[name]) for name in TABLES),
        environments=_environments(tables),
        definitions=catalogue(language)["definitions"].items(),
        words={key: text(key) for key in ("copy", "copied", "count", "row", "config", "log")},
        data=_packed({"tables": _compact(tables), "details": {}}),
        css=Markup(_template("report.css")),
        javascript=Markup(_template("report.js")),
    )


def _template(name: str) -> str:
    return resources.files("mfulab.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _all_rows(tables: frames.Tables) -> pd.DataFrame:
    wanted = [
        tables[name][["hardware", "recorded", "started_at", "commit"]] for name in ("profile", "matmul", "ceilings")
    ]
    return frames.with_machine(tables, pd.concat(wanted, ignore_index=True))


def _unmeasured(tables: frames.Tables, text: Texts) -> list[str]:
    """What was asked for and has no speed, in words; many of a kind are counted, not listed."""
    lines = []
    for name in TABLES:
        table = tables[name]
        for status, rows in table[table["status"] != "ok"].groupby("status", sort=False):
            for _, row in rows.head(5).iterrows():
                lines.append(f"{row['run'] or name}: {text.name('status', str(status))}. {row['message']}".strip())
            if len(rows) > 5:
                lines.append(
                    text("more_unmeasured", count=len(rows) - 5, status=text.name("status", str(status)), table=name)
                )
    noted = tables["profile"][tables["profile"]["mfu_note"] != ""]
    for note, rows in noted.groupby("mfu_note", sort=False):
        lines.append(text("note", count=len(rows), example=rows["run"].iloc[0], note=note))
    if tables["profile"].empty and tables["matmul"].empty:
        lines.append(text("no_rows"))
    return lines


def _sections(drawn: Sequence[figures.Drawn], text: Texts) -> list[dict[str, Any]]:
    sections: dict[str, list[dict[str, Any]]] = {}
    for figure in drawn:
        shown = {
            "name": figure.name,
            "title": figure.title,
            "finding": figure.finding,
            "svg": Markup(inline_svg(figure)),
            "command": f"snakemake --cores 1 reports/figures/{figure.name}.svg",
        }
        sections.setdefault(figure.topic, []).append(shown)
    return [{"topic": topic, "title": text(f"topic_{topic}"), "figures": shown} for topic, shown in sections.items()]


def inline_svg(drawn: figures.Drawn) -> str:
    """The figure as SVG for the page: its own ids, no fixed size, and the theme's colours instead of its own."""
    buffer = BytesIO()
    with style.theme():
        drawn.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1
    )
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{drawn.name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{drawn.name}-", svg)
    themed = {style.INK: "ink", style.MUTED: "muted", style.GRID: "grid", style.PAPER: "paper"}
    themed |= {color: f"c{index}" for index, color in enumerate(style.PALETTE)}
    for color, name in themed.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg


def _environments(tables: frames.Tables) -> list[dict[str, Any]]:
    rows = frames.with_machine(tables, tables["environment"])
    skipped = {"experiment", "run", "recorded", "status", "machine"}
    return [
        {
            "name": row["machine"],
            "facts": [(name, _fact(value)) for name, value in row.items() if _known(name, value, skipped)],
        }
        for _, row in rows.iterrows()
    ]


def _known(name: object, value: object, skipped: set[str]) -> bool:
    return name not in skipped and not pd.isna(value) and value != ""


def _fact(value: object) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float) and not value.is_integer()
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def _compact(tables: frames.Tables) -> dict[str, Any]:
    """Tables by column, texts that repeat as numbers into a dictionary."""
    compact = {}
    for name in ORDER:
        table, kinds = tables[name], dict(frames.kinds(name))
        if table.empty:
            continue
        fields, main = ROWS[TABLES[name]].model_fields, MAIN[name].split()
        columns, values = [], []
        for column in table.columns:
            described = fields[column].description if column in fields else None
            entry: dict[str, Any] = {"name": column, "main": column in main, "description": described or ""}
            if kinds[column] is str:
                codes, distinct = pd.factorize(table[column])
                entry["dictionary"] = list(distinct)
                values.append(codes.tolist())
            else:
                entry["number"] = kinds[column] is float
                values.append([_json(value) for value in table[column].tolist()])
            columns.append(entry)
        compact[name] = {"columns": columns, "values": values, "length": len(table)}
    return compact


def _json(value: object) -> object:
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _packed(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
