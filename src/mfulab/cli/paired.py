"""Two commits on one machine, measured in turn in one sweep: A B, later B A, so that drift hits
both alike. Each side plans with its own code and runs in its own warm worker."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click

from mfulab.cli.gate import worktree
from mfulab.cli.options import AS_JSON, COUNT, CSV, GATE, MINUTES, NOTICEABLE, command, several
from mfulab.cli.signals import ended_by_signals
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, remove
from mfulab.core.language import Texts
from mfulab.core.parts import Record
from mfulab.core.printing import say
from mfulab.core.replicates import base_name, numbered
from mfulab.core.said import Numbers, Said, as_told, of_source
from mfulab.core.terminal_language import in_words, usual_language
from mfulab.device.system import end_with_parent
from mfulab.lab.planning import store
from mfulab.lab.planning.resources import imported
from mfulab.lab.runtime import client, lifetime, processes
from mfulab.lab.tables import compare
from mfulab.timing import paired

PLACE = Path("results/paired").absolute()
MOST_ROUNDS = 60
# What each side runs in its own tree: writes the configs of its runs below a folder, one process
# each.
PLAN = """
import sys
from pathlib import Path
from mfulab.lab.planning import store
from mfulab.lab.planning.load import load

for plan in load(dict(word.split("=", 1) for word in sys.argv[2:])).plans:
    store.write(plan, Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Side:
    """One of two commits: its checkout, where its runs lie, and the socket of its warm worker."""

    code: Path
    runs: Path
    socket: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment with this checkout first on PYTHONPATH; what runs in it ends with this
        process."""
        variables = {**os.environ, "PYTHONPATH": str(self.code / "src")}
        variables[processes.WORKFLOW] = str(os.getpid())
        return variables | ({client.SOCKET: self.socket} if self.socket else {})


@command("paired", "paired --base main --config experiment=kernels size=512,1024")
@click.option("--base", required=True, help="The old code: a commit, or the folder of a checkout.")
@several("--config", default=["experiment=repeat"], help="The runs, as Snakemake's --config.")
@click.option(
    "--rounds",
    type=COUNT,
    default=60,
    help="The most pairs of a run; half of them begin with the old code.",
)
@click.option("--minutes", type=MINUTES, default=5, help="Begin no pair that would end later.")
@NOTICEABLE
@GATE
@CSV
@AS_JSON
def run(
    base: str,
    config: Sequence[str],
    rounds: int,
    minutes: float,
    noticeable: float,
    gate: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measures both sides in turn and prints the comparison; the status is that of
    `compare.tell`."""
    if not (few := paired.FEWEST_PAIRS) <= rounds <= MOST_ROUNDS:
        bounds: Numbers = {"rounds": rounds, "least": few, "most": MOST_ROUNDS}
        raise ConfigurationError(Said("paired_rounds", bounds))
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        is_folder = (Path(base) / "scripts").is_dir()
        code = Path(base).absolute() if is_folder else stack.enter_context(worktree(base))
        store.check_writable(PLACE)
        store.take(PLACE)  # another one would remove what this one has planned
        old = Side(code, PLACE / "old")
        new = Side(Path.cwd(), PLACE / "new")
        plans = [planned(side, config) for side in (old, new)]
        runs = []
        for run in plans[1]:
            if run in plans[0]:
                runs.append(run)
        alone = []
        for own, other in (plans, plans[::-1]):
            for run in own:
                if run not in other:
                    alone.append(run)
        if not runs:
            asked: Numbers = {"config": " ".join(config), "base": base}
            raise ConfigurationError(Said("paired_no_run_alike", asked))
        sides = [stack.enter_context(warm(side)) for side in (old, new)]
        reasons: dict[paired.Run, Said] = {}
        measure = partial(_pair, sides, reasons)
        matters = noticeable if gate is None else gate
        compared = paired.in_rounds(runs, measure, reasons, rounds, minutes, matters, say=_tell)
    for run in alone:
        compared.append(paired.Compared(*run, "not comparable", because=Said("planned_by_one")))
    if out:
        compare.write(compared, out, Path(base), Path.cwd())
    language = usual_language()
    text = Texts(language, "compare")
    note = f"{text('fast')}; {text('between_pairs')}"
    form = "json" if as_json else "text"
    title = text("against", new=text("this_checkout"), old=base)
    return compare.tell(compared, title, note, gate, form, language)


def _tell(line: Said) -> None:
    """Says where the measurement stands."""
    say(in_words(line), file=sys.stderr)


def _pair(
    sides: Sequence[Side], reasons: dict[paired.Run, Said], run: paired.Run, swapped: bool
) -> paired.Pair:
    """Two times of a run, one after the other, the new first where `swapped`."""
    times: dict[str, float | None] = {}
    for name, side in list(zip(("old", "new"), sides, strict=True))[:: -1 if swapped else 1]:
        times[name], row = measured(side, run)
        if times[name] is None:
            without = Said("side_without_row", {"side": name})
            reasons[run] = compare.untimed(name, row) if row else without
    return times["old"], times["new"]


def planned(side: Side, config: Sequence[str]) -> list[paired.Run]:
    """The runs that a side's code plans, two processes each, written below its folder. Raises
    ConfigurationError."""
    remove(side.runs)
    command = [sys.executable, "-c", PLAN, str(side.runs), *config, "replicates=2"]
    done = subprocess.run(
        command,
        cwd=side.code,
        env=side.environment,
        capture_output=True,
        text=True,
        # Or it would plan into the folder of the next one.
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = as_told(lines[-1]) if lines else Said("cannot_be_planned")
        raise ConfigurationError(of_source(str(side.code), why))
    folders = []
    for step in compare.STEPS:
        for path in sorted(side.runs.glob(f"*/{step}/*/config.json")):
            folders.append(path.parent)
    return list(dict.fromkeys((folder.parent.name, base_name(folder.name)) for folder in folders))


@contextlib.contextmanager
def warm(side: Side) -> Iterator[Side]:
    """The side with a warm worker of its own, where this system can fork one."""
    work = imported(
        [path.read_text(encoding="utf-8") for path in side.runs.glob("*/*/*/config.json")]
    )
    with contextlib.ExitStack() as running:
        with (
            contextlib.chdir(side.code),
            patch.dict(os.environ, PYTHONPATH=side.environment["PYTHONPATH"]),
        ):
            socket = running.enter_context(lifetime.worker(" ".join(["rows", *work])))
        yield Side(side.code, side.runs, socket)


def measured(side: Side, run: paired.Run) -> tuple[float | None, Record]:
    """The time and row of one process of a run, the second where one is planned: it traces nothing.
    No time of a row that failed, and an empty row where there is none."""
    names = (numbered(run[1], 2), run[1])
    config, *_ = [
        path for name in names for path in side.runs.glob(f"*/{run[0]}/{name}/config.json")
    ]
    file = config.with_name("row.csv")
    remove(file)
    command = [sys.executable, client.__file__, "scripts/run.py", run[0], "--config", str(config)]
    with config.with_name("log").open("ab") as log:
        subprocess.run(command, cwd=side.code, env=side.environment, stdout=log, stderr=log)
    try:
        (row,) = read_csv(file)
    except (OSError, UnreadableError, ValueError):
        return None, {}
    if row.get("status") != "ok" or not row.get("time_s"):
        return None, row
    return compare.fast_s(row), row
