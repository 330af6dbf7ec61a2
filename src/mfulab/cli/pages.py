"""Commands that show tables as figures, slides, a page or a summary."""

from typing import Any

import click

from mfulab.cli.options import (
    AS_JSON,
    FIGURE,
    FILE,
    FOLDER,
    LANGUAGE,
    PATH,
    TABLES,
    Choice,
    command,
    several,
)

TOPICS = click.option(
    "--topics",
    type=PATH,
    default="docs/seminar.yaml",
    help="YAML file of each text's topics and the places that show them.",
)


@command("figures", "figures --only ceilings roofline --formats svg")
@TABLES
@click.option(
    "--out", type=FOLDER, default="reports/figures", help="Folder to write the figures to."
)
@several("--only", type=FIGURE, help="Draw only these figures.")
@several(
    "--formats",
    type=Choice(["svg", "png", "pdf"]),
    default=["svg", "png", "pdf"],
    help="File formats of the figures.",
)
@LANGUAGE
@click.option(
    "--list",
    "listed",
    type=FILE,
    metavar="FILE",
    help="Draw nothing; write the names of the figures that have data to FILE.",
)
def figures(**options: Any) -> int:
    """Draws the figures of the tables."""
    from mfulab.lab.report.figures import draw

    return draw(**options)


@command("slides", "slides kernels --language ko")
@click.argument("which", metavar="TEXT", required=True)
@TOPICS
@TABLES
@click.option("--out", type=FOLDER, default="reports/slides", help="Folder to write the slides to.")
@LANGUAGE
def slides(**options: Any) -> None:
    """Draws slides of one text of the seminar."""
    from mfulab.lab.report.slides import save

    save(**options)


@command("topics", "topics --json")
@TOPICS
@click.option(
    "--tables",
    type=FOLDER,
    help="Folder of the tables; without it, those of the recordings are used.",
)
@click.option(
    "--config",
    type=FOLDER,
    default="config",
    help="Folder of the configs, which name the experiments.",
)
@click.option(
    "--notebook",
    type=PATH,
    default="notebooks/seminar.ipynb",
    help="Notebook whose cells topics may name.",
)
@AS_JSON
def topics(**options: Any) -> int:
    """Counts the seminar's topics."""
    from mfulab.lab.report.evidence import show

    return show(**options)


@command("page", "page --language ko")
@TABLES
@click.option(
    "--figures",
    "drawn",
    type=FOLDER,
    help="Folder of figures drawn before; those missing are drawn.",
)
@click.option("--out", type=FILE, default="reports/report.html", help="HTML file to write.")
@LANGUAGE
def page(**options: Any) -> None:
    """Writes the page."""
    from mfulab.lab.report.page.document import save

    save(**options)


@command("summary", "summary")
@TABLES
@click.option(
    "--page", type=PATH, default="reports/report.html", help="Page whose path is printed."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the measured rows as JSON, one per line."
)
@LANGUAGE
def summary(**options: Any) -> int:
    """Prints what was measured."""
    from mfulab.lab.report.summary import show

    return show(**options)
