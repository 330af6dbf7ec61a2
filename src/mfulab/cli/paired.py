"""`mfulab paired`: measures two commits on one machine in turn, in the order A B, later B A, so
that drift affects both alike. Each side plans with its own code and runs in its own warm worker."""

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
from mfulab.core.said import Said, as_told, of_source
from mfulab.core.terminal_language import in_words, usual_language
from mfulab.device.system import end_with_parent
from mfulab.lab.planning import store
from mfulab.lab.planning.resources import imported
from mfulab.lab.runtime import client, lifetime, processes
from mfulab.lab.tables import compare
from mfulab.timing import paired

FOLDER = Path("results/paired").absolute()
MOST_ROUNDS = 60
# Run by each side in its own checkout: writes the configs of its runs below a folder.
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
    """One of two commits: its checkout, the folder of its runs, and the socket of its warm
    worker."""

    code: Path
    runs: Path
    socket: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with this checkout first on PYTHONPATH. Processes that run with
        them end with this process."""
        variables = {**os.environ, "PYTHONPATH": str(self.code / "src")}
        variables[processes.WORKFLOW] = str(os.getpid())
        return variables | ({client.SOCKET: self.socket} if self.socket else {})


@command("paired", "paired --base main --config experiment=kernels size=512,1024")
@click.option(
    "--base", required=True, help="Old code to compare with: a commit, or the folder of a checkout."
)
@several(
    "--config",
    default=["experiment=repeat"],
    help="Runs to measure, written as for snakemake --config.",
)
@click.option(
    "--rounds",
    type=COUNT,
    default=60,
    help="Maximum number of pairs per run; half of them start with the old code.",
)
@click.option(
    "--minutes",
    type=MINUTES,
    default=5,
    help="Time limit in minutes: no pair starts that would end after it.",
)
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
    """Measures both sides in turn and prints the comparison. Returns the exit status of
    `compare.tell`."""
    if not paired.FEWEST_PAIRS <= rounds <= MOST_ROUNDS:
        raise ConfigurationError(
            Said("paired_rounds", rounds=rounds, least=paired.FEWEST_PAIRS, most=MOST_ROUNDS)
        )
    matters = noticeable if gate is None else gate
    compared = _compared(base, config, rounds, minutes, matters)
    if out:
        compare.write(compared, out, Path(base), Path.cwd())
    language = usual_language()
    text = Texts(language, "compare")
    note = f"{text('fast')}; {text('between_pairs')}"
    form = "json" if as_json else "text"
    title = text("against", new=text("this_checkout"), old=base)
    return compare.tell(compared, title, note, gate, form, language)


def _compared(
    base: str, config: Sequence[str], rounds: int, minutes: float, matters: float
) -> list[paired.Compared]:
    """Plans both sides and measures the runs that both have; the other runs are not comparable.
    Raises ConfigurationError if the sides have no run in common."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        code = Path(base).absolute()
        if not (code / "scripts").is_dir():
            code = stack.enter_context(worktree(base))
        store.check_writable(FOLDER)
        store.take(FOLDER)  # another command would remove what this one has planned
        old = Side(code, FOLDER / "old")
        new = Side(Path.cwd(), FOLDER / "new")
        old_runs = planned(old, config)
        new_runs = planned(new, config)
        runs = [run for run in new_runs if run in old_runs]
        if not runs:
            raise ConfigurationError(
                Said("paired_no_run_alike", config=" ".join(config), base=base)
            )
        sides = [stack.enter_context(warm(side)) for side in (old, new)]
        reasons: dict[paired.Run, Said] = {}
        measure = partial(_pair, sides, reasons)
        compared = paired.in_rounds(runs, measure, reasons, rounds, minutes, matters, say=_report)
    for run in [*old_runs, *new_runs]:
        if run not in runs:
            compared.append(paired.Compared(*run, "not comparable", because=Said("planned_by_one")))
    return compared


def _report(progress: Said) -> None:
    say(in_words(progress), file=sys.stderr)


def _pair(
    sides: Sequence[Side], reasons: dict[paired.Run, Said], run: paired.Run, swapped: bool
) -> paired.Pair:
    """Times (s) of a run by the old and the new code, measured one after the other; the new one
    first if `swapped`. None, with the reason added to `reasons`, if a process failed."""
    times: dict[str, float | None] = {}
    named_sides = list(zip(("old", "new"), sides, strict=True))
    if swapped:
        named_sides.reverse()
    for name, side in named_sides:
        times[name], row = measured(side, run)
        if times[name] is None:
            without = Said("side_without_row", side=name)
            reasons[run] = compare.untimed(name, row) if row else without
    return times["old"], times["new"]


def planned(side: Side, config: Sequence[str]) -> list[paired.Run]:
    """The runs that a side's code plans, two processes each; their configs are written below its
    folder. Raises ConfigurationError if planning fails."""
    remove(side.runs)
    command = [sys.executable, "-c", PLAN, str(side.runs), *config, "replicates=2"]
    done = subprocess.run(
        command,
        cwd=side.code,
        env=side.environment,
        capture_output=True,
        text=True,
        # A planner that outlived this process would write into the folder of a later command.
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = as_told(lines[-1]) if lines else Said("cannot_be_planned")
        raise ConfigurationError(of_source(str(side.code), why))
    runs = list[paired.Run]()
    for step in compare.STEPS:
        for path in sorted(side.runs.glob(f"*/{step}/*/config.json")):
            runs.append((step, base_name(path.parent.name)))
    return list(dict.fromkeys(runs))


@contextlib.contextmanager
def warm(side: Side) -> Iterator[Side]:
    """Starts a warm worker for a side and yields the side with its socket, which is empty if this
    system cannot fork one."""
    configs = [path.read_text(encoding="utf-8") for path in side.runs.glob("*/*/*/config.json")]
    work = imported(configs)
    with contextlib.ExitStack() as running:
        with (
            contextlib.chdir(side.code),
            patch.dict(os.environ, PYTHONPATH=side.environment["PYTHONPATH"]),
        ):
            socket = running.enter_context(lifetime.worker(" ".join(["rows", *work])))
        yield Side(side.code, side.runs, socket)


def measured(side: Side, run: paired.Run) -> tuple[float | None, Record]:
    """Runs one process of a run and returns its time (s) and row. The time is None if it failed,
    the row empty if there is none. Prefers the second process, which traces nothing."""
    step, base_run = run
    configs = list[Path]()
    for name in (numbered(base_run, 2), base_run):
        configs.extend(side.runs.glob(f"*/{step}/{name}/config.json"))
    config = configs[0]
    file = config.with_name("row.csv")
    remove(file)
    command = [sys.executable, client.__file__, "scripts/run.py", step, "--config", str(config)]
    with config.with_name("log").open("ab") as log:
        subprocess.run(command, cwd=side.code, env=side.environment, stdout=log, stderr=log)
    try:
        (row,) = read_csv(file)
    except (OSError, UnreadableError, ValueError):
        return None, {}
    if row.get("status") != "ok" or not row.get("time_s"):
        return None, row
    return compare.fast_s(row), row
