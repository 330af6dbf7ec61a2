"""Commands that make tables: of runs, of recordings, of other machines' results, and of the
seminar's numbers."""

from typing import Any

import click

from mfulab.cli.options import FILE, FOLDER, PATH, command, several
from mfulab.cli.signals import ended_by_signals


@command("tables", "tables --manifest results/xeon-4c/plan/quickstart.json")
@several("--manifest", type=PATH, help="Plans of the experiments to report.")
@several("--also", type=PATH, help="More plans, of which only finished rows are reported.")
@click.option("--partial", is_flag=True, help="Count runs without a row as pending, not as failed.")
@click.option(
    "--root", type=FOLDER, default=".", help="Folder that paths in the plans are relative to."
)
@click.option(
    "--results", type=FOLDER, help="Also report the folders in this folder that have no plan."
)
@click.option("--reference", type=FOLDER, help="Also report the recorded machines in this folder.")
@click.option("--recorded", metavar="NAME", default="", help="Report only this recorded machine.")
@click.option("--out", type=FOLDER, default="results/tables", help="Folder to write the tables to.")
def tables(**options: Any) -> None:
    """Joins rows into tables."""
    from mfulab.lab.tables.build import save

    save(**options)


@command("record", "record nvidia-h100-80gb-hbm3")
@click.argument("hardware", required=False)
@click.option("--results", type=FOLDER, default="results", help="Folder of the results to record.")
@click.option(
    "--commit",
    default="",
    help="Commit of the code that measured, for rows from a copy without its Git repository.",
)
@click.option(
    "--allow-dirty", is_flag=True, help="Also record rows that uncommitted code has measured."
)
@click.option(
    "--allow-unfit",
    is_flag=True,
    help="Also record rows that contradict one another or are known to less than ±25 %.",
)
@click.option("--replace", is_flag=True, help="Overwrite the existing recording.")
@click.option(
    "--rejoin",
    "again",
    is_flag=True,
    help="Record nothing; compute the joined columns of the recording again.",
)
def record(**options: Any) -> None:
    """Records a machine's finished results."""
    from mfulab.lab.tables.recording import run

    run(**options)


@command("collect", "collect /mnt/h100/mfulab laptop/results results.tar.gz")
@click.argument("sources", nargs=-1, type=PATH, metavar="FOLDER…", required=True)
@click.option("--into", type=FOLDER, default="results", help="Folder of the results to merge into.")
@click.option(
    "--class",
    "in_class",
    is_flag=True,
    help="FOLDER contains one folder or archive per participant; equal devices are kept apart.",
)
@click.option(
    "--pack",
    type=FILE,
    metavar="ARCHIVE",
    help="Pack what collect needs of FOLDER into ARCHIVE, a .tar.gz to hand in.",
)
@ended_by_signals()
def collect(**options: Any) -> int:
    """Merges results of other machines, or packs this one's."""
    from mfulab.lab.tables.merge import run

    return run(**options)


@command("seminar", "seminar")
@click.option("--out", type=FILE, default="results/tables/seminar.csv", help="CSV file to write.")
def seminar(**options: Any) -> None:
    """Writes the numbers of the seminar's material."""
    from mfulab.lab.tables.seminar import save

    save(**options)
