"""`mfulab measure train.py`: runs a script with Python and measures the steps of the model in
it."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from mfulab.cli.options import COUNT, FILE, LANGUAGE, SECONDS, SECONDS_OR_NONE, command
from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Said, of_source
from mfulab.loop.interactive.following import environment
from mfulab.loop.interactive.wanted import Wanted


@command(
    "measure",
    "measure --steps 100 train.py --batch-size 8",
    more=(
        "The script is not changed. Options stand before it, its own arguments behind it. A step "
        "ends with the optimiser's step, without an optimiser with each forward pass. What mfulab"
        " prints goes to the standard error."
    ),
    allow_interspersed_args=False,
)
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENT]…", required=True)
@click.option(
    "-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m package.train."
)
@click.option(
    "--steps", type=COUNT, help="Steps to measure after warm-up; 50 unless --seconds is given."
)
@click.option("--seconds", type=SECONDS, help="Seconds to measure after warm-up.")
@click.option("--warm-up", type=COUNT, default=3, help="Warm-up steps, which are not measured.")
@click.option(
    "--ceiling",
    "ceiling_s",
    type=SECONDS_OR_NONE,
    default=2.0,
    help="Seconds to search for the device's fastest matmul, its ceiling; 0: no search.",
)
@click.option(
    "--json",
    "out",
    type=FILE,
    metavar="FILE",
    help="Write the measured row to FILE as JSON; other ranks than 0 add .rankN to its name.",
)
@click.option(
    "--children",
    is_flag=True,
    help="Also measure the Python processes that the script starts, such as mp.spawn's ranks.",
)
@LANGUAGE
def run(words: Sequence[str], is_module: bool, **wanted: Any) -> Callable[[], int]:
    """Returns a function that replaces this process by Python running the script. Raises
    ConfigurationError if the script or the row's folder does not exist, or Python's flags prevent
    measuring."""
    script = words[0]
    path = Path(script)
    if not is_module and not path.is_file() and not (path / "__main__.py").is_file():
        module = f"mfulab measure -m {script.removesuffix('.py').replace('/', '.')}"
        raise ConfigurationError(of_source(script, Said("no_such_script", command=module)))
    out = wanted["out"]
    if out and not out.absolute().parent.is_dir():
        raise ConfigurationError(of_source(f"--json {out}", Said("no_such_folder")))
    wanted["out"] = out and out.absolute()  # the script may change its folder
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ConfigurationError(Said("python_flags_hide"))
    as_module = ["-m"] if is_module else []
    arguments = [sys.executable, *_python_options(), *as_module, *words]
    variables = environment(Wanted(script, **wanted), os.environ)
    return lambda: os.execve(sys.executable, arguments, variables)  # noqa: S606 (needs no shell)


def _python_options() -> list[str]:
    """Options that this Python process was started with, such as -u."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
    if options and options[-1] in ("-m", "-um"):  # from `python -m mfulab`
        options[-1:] = ["-u"] if options[-1] == "-um" else []
    return options
