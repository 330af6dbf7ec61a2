"""The command line of scripts/<step>.py: a planned run by its config, or any run by hand in Hydra's words.

python scripts/profile_step.py model=gpt2 batch_size=8             one run, and what its numbers are joined with
python scripts/bench_matmul.py -m experiment=kernels               a sweep, without Snakemake
python scripts/profile_step.py --config results/…/config.json      what the workflow runs
"""

import argparse
import subprocess
import sys
from pathlib import Path

from mfulab.errors import ConfigurationError
from mfulab.worker.client import REFUSED

CONFIG = Path("config")
RESULTS = Path("results")


def main(step: str) -> None:
    """Runs `step` as the arguments of this process say; a mistake in them ends it with one message and status 2."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    try:
        if "--config" in sys.argv[1:]:
            _planned(step)
        else:
            _by_hand(step)
    except ConfigurationError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        sys.exit(REFUSED)


def _planned(step: str) -> None:
    from mfulab import runner

    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help="config.json of the run; its row goes beside it")
    parser.add_argument("--failed", help="do not measure: write the row of a run that ended so")
    arguments = parser.parse_args()
    if arguments.failed is None:
        row = runner.run(step, arguments.config)
    else:
        row = runner.record_failure(step, arguments.config, arguments.failed)
    print(f"{row.status}: {row.run}" + (f": {row.message}" if row.message else ""))


def _by_hand(step: str) -> None:
    import hydra
    from omegaconf import DictConfig

    from mfulab.planning.composition import check, composed_by_hydra
    from mfulab.planning.overrides import complete

    flags = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    overrides = complete([argument for argument in sys.argv[1:] if not argument.startswith("-")])
    check(overrides, CONFIG)
    sys.argv[1:] = [*flags, *overrides]
    done: set[str] = set()  # combinations that differ only in what this step does not read are one run

    def task(config: DictConfig) -> None:
        _measure(step, composed_by_hydra(config), done)

    hydra.main(version_base="1.3", config_path=str(CONFIG.resolve()), config_name="config")(task)()


def _measure(step: str, composition, done: set[str]) -> None:  # type: ignore[no-untyped-def]
    """Measures one composed run of `step` in a process of its own, after what its numbers are joined with."""
    from mfulab.planning import runs, store
    from mfulab.planning.load import place

    composition.base["steps"] = [step]
    planned = runs.plan(composition, *place(composition.base))
    for excluded in planned.excluded:
        print(f"left out: {excluded['run']}: {excluded['because']}")
    own = [run for run in planned.runs if run.step == step]
    joined = [run for run in planned.runs if run.folder in set(own[0].needs.values())] if own else []
    for run in [*joined, *own]:
        if run.folder in done or (run in joined and (RESULTS / run.folder / "row.csv").exists()):
            continue
        done.add(run.folder)
        store.write_run(run, RESULTS)
        config = RESULTS / run.folder / "config.json"
        print(f"{run.step}: {run.name}", flush=True)
        subprocess.run([sys.executable, f"scripts/{run.step}.py", "--config", str(config)], check=True)
