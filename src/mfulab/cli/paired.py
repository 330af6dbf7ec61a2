"""Two commits on one machine, measured in turn in one sweep: A B, later B A, so that drift hits both alike.

    make compare BASE=main                                           the experiment `repeat`, this checkout against main
    python scripts/paired.py --base ../before --config experiment=kernels size=512,1024
    python scripts/paired.py --base v1.0 --rounds 6 --out results/tables/comparison.csv          and on the page

Each side plans with its own code and runs in a warm worker of its own; what is in results/ stays as it is. The exit
code is that of scripts/compare.py: 1 where a run is slower, 2 where nothing can be compared, otherwise 0.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, remove
from mfulab.core.replicates import turn
from mfulab.runtime import client, lifetime
from mfulab.tables import compare, paired

PLACE = Path("results/paired").absolute()
ROUNDS = 4  # pairs of each run; half of them begin with the old code
# What each side runs in its own tree: writes the configs of its runs below a folder, one process each.
PLAN = """
import sys
from pathlib import Path
from mfulab.planning import store
from mfulab.planning.load import load

for plan in load(dict(each.split("=", 1) for each in sys.argv[2:])).plans:
    store.write(plan, Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Side:
    """One of the two: its checkout, where its runs lie, and the socket of its warm worker."""

    code: Path
    runs: Path
    socket: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes: its own modules come first."""
        known = {**os.environ, "PYTHONPATH": str(self.code / "src")}
        return known | ({client.SOCKET: self.socket} if self.socket else {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both sides in turn and prints the comparison; the exit code is 1 where a run is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="the old code: a commit, or the folder of a checkout")
    parser.add_argument("--config", nargs="+", default=["experiment=repeat"], help="the runs, as Snakemake's --config")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs of each run ({ROUNDS})")
    parser.add_argument(
        "--noticeable", type=float, default=compare.NOTICEABLE, help="the relative difference that matters"
    )
    parser.add_argument("--out", type=Path, help="also write CSV; the page shows results/tables/comparison.csv")
    options = parser.parse_args(arguments)
    try:
        if options.rounds < paired.FEWEST_PAIRS:
            raise ConfigurationError(f"--rounds={options.rounds}: {paired.FEWEST_PAIRS} or more give an interval.")
        compared = _compare(options.base, options.config, options.rounds, options.noticeable)
    except ConfigurationError as error:
        parser.error(str(error))
    status = compare.tell(
        compared, f"this checkout against {options.base}", "intervals are of the ratio, between pairs"
    )
    if options.out:
        compare.write(compared, options.out, Path(options.base), Path.cwd())
    return status


def _compare(base: str, config: Sequence[str], rounds: int, noticeable: float) -> list[compare.Compared]:
    with ExitStack() as stack:
        old = Side(stack.enter_context(checkout(base)), PLACE / "old")
        new = Side(Path.cwd(), PLACE / "new")
        both = [planned(side, config) for side in (old, new)]
        runs = [run for run in both[1] if run in both[0]]
        alone = [run for each, other in (both, both[::-1]) for run in each if run not in other]
        if not runs:
            raise ConfigurationError(
                f"--config {' '.join(config)}: no run is planned by both {base} and this checkout."
            )
        sides = [stack.enter_context(warm(side)) for side in (old, new)]
        pairs: dict[paired.Run, list[paired.Pair]] = {run: [] for run in runs}
        reasons: dict[paired.Run, str] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}: {len(runs)} runs", flush=True)
            for run in shuffled(runs, number):
                pairs[run].append(_pair(sides, run, reasons, swapped=bool(number % 2)))
    only = [compare.Compared(*run, "not comparable", because="planned by one of them alone") for run in alone]
    return [*paired.judge(pairs, reasons, noticeable), *only]


def shuffled(runs: Sequence[paired.Run], seed: int) -> list[paired.Run]:
    """The runs in an order of this round's own."""
    return sorted(runs, key=lambda run: turn("/".join(run), seed))


def _pair(sides: Sequence[Side], run: paired.Run, reasons: dict[paired.Run, str], *, swapped: bool) -> paired.Pair:
    """Both times of a run, one after the other, the new first where `swapped`."""
    times: dict[int, float | None] = {}
    for place in (1, 0) if swapped else (0, 1):
        times[place], because = measured(sides[place], run)
        if because:
            reasons[run] = f"{('old', 'new')[place]} is {because}"
    return times[0], times[1]


@contextlib.contextmanager
def checkout(base: str) -> Iterator[Path]:
    """The folder of `base`: itself, or a worktree of a commit, as long as it is needed. Raises ConfigurationError."""
    if (Path(base) / "scripts").is_dir():
        yield Path(base).absolute()
        return
    folder = PLACE / "base"
    _git("worktree", "remove", "--force", str(folder), check=False)  # one that an end from outside left
    remove(folder)
    _git("worktree", "prune", check=False)
    _git("worktree", "add", "--detach", str(folder), base, told=f"--base={base}")
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder), check=False)


def _git(*words: str, check: bool = True, told: str = "") -> None:
    command = ["git", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigurationError(f"{told}: no folder of a checkout, and git says: {lines[-1] if lines else 'nothing'}.")


def planned(side: Side, config: Sequence[str]) -> list[paired.Run]:
    """The runs that a side's own code plans, written below its folder. Raises ConfigurationError."""
    remove(side.runs)
    command = [sys.executable, "-c", PLAN, str(side.runs), *config, "replicates=1"]
    done = subprocess.run(command, cwd=side.code, env=side.environment, capture_output=True, text=True)
    if done.returncode:
        raise ConfigurationError(f"{side.code}: {(done.stderr.strip() or 'cannot be planned').splitlines()[-1]}")
    found = [path.parent for step in compare.STEPS for path in sorted(side.runs.glob(f"*/{step}/*/config.json"))]
    return [(folder.parent.name, folder.name) for folder in found]


@contextlib.contextmanager
def warm(side: Side) -> Iterator[Side]:
    """The side with a warm worker of its own, where this system can fork one."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", client.SOCKET)}
    with contextlib.chdir(side.code):
        os.environ["PYTHONPATH"] = side.environment["PYTHONPATH"]
        worker = lifetime.start_worker()
    _restore(before)
    try:
        yield Side(side.code, side.runs, worker.socket if worker else "")
    finally:
        if worker:
            worker.stop()


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def measured(side: Side, run: paired.Run) -> tuple[float | None, str]:
    """Seconds of one process of a run, or None with the reason."""
    (config,) = side.runs.glob(f"*/{run[0]}/{run[1]}/config.json")
    row = config.with_name("row.csv")
    remove(row)
    any_step = (side.code / "scripts/run.py").exists()  # earlier commits have a script a step
    script = ["scripts/run.py", run[0]] if any_step else [f"scripts/{run[0]}.py"]
    command = [sys.executable, client.__file__, *script, "--config", str(config)]
    with config.with_name("log").open("ab") as log:
        subprocess.run(command, cwd=side.code, env=side.environment, stdout=log, stderr=log)
    try:
        (found,) = read_csv(row)
    except (OSError, UnreadableError, ValueError):
        return None, "without a row"
    if found.get("status") != "ok" or not found.get("time_s"):
        return None, f"{found.get('status')}: {found.get('message')}"
    return float(found["time_s"]), ""
