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
    help="Topics of each text and where they are shown.",
)


@command("figures", "figures --only ceilings roofline --formats svg")
@TABLES
@click.option("--out", type=FOLDER, default="reports/figures")
@several("--only", type=FIGURE, help="Draw these figures alone.")
@several("--formats", type=Choice(["svg", "png", "pdf"]), default=["svg", "png", "pdf"])
@LANGUAGE
@click.option(
    "--list",
    "listed",
    type=FILE,
    metavar="FILE",
    help="Draw nothing: list the figures that have data.",
)
def figures(**options: Any) -> int:
    """Draws the figures of the tables."""
    from mfulab.lab.report.figures import draw

    return draw(**options)


@command("slides", "slides kernels --language ko")
@click.argument("which", metavar="TEXT", required=True)
@TOPICS
@TABLES
@click.option("--out", type=FOLDER, default="reports/slides")
@LANGUAGE
def slides(**options: Any) -> None:
    """Draws slides of one text of the seminar."""
    from mfulab.lab.report.slides import save

    save(**options)


@command("topics", "topics --json")
@TOPICS
@click.option("--tables", type=FOLDER, help="Folder of tables; empty: the recordings'.")
@click.option("--config", type=FOLDER, default="config")
@click.option("--notebook", type=PATH, default="notebooks/seminar.ipynb")
@AS_JSON
def topics(**options: Any) -> int:
    """Counts the seminar's topics."""
    from mfulab.lab.report.topics import show

    return show(**options)


@command("page", "page --language ko")
@TABLES
@click.option(
    "--figures", "drawn", type=FOLDER, help="Folder of drawn figures; missing ones are drawn."
)
@click.option("--out", type=FILE, default="reports/report.html")
@LANGUAGE
def page(**options: Any) -> None:
    """Writes the page."""
    from mfulab.lab.report.page.document import save

    save(**options)


@command("summary", "summary")
@TABLES
@click.option("--page", type=PATH, default="reports/report.html")
@click.option("--json", "as_json", is_flag=True, help="The measured rows as lines of JSON.")
@LANGUAGE
def summary(**options: Any) -> int:
    """Prints what was measured."""
    from mfulab.lab.report.summary import show

    return show(**options)
