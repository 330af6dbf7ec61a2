"""The command line of scripts/<step>.py: a planned run by its config, or any run by Hydra overrides.

python scripts/profile_step.py model=resnet18 batch_size=4         one run, and what its numbers are joined with
python scripts/bench_matmul.py -m experiment=kernels               a sweep, without Snakemake
python scripts/profile_step.py --config results/…/config.json      what the workflow runs
"""

import argparse
import sys
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.runtime.client import REFUSED, USAGE


def main(step: str) -> None:
    """Runs `step` as the arguments of this process say; a mistake in them ends it with one message and status 2."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    try:
        if "--config" in sys.argv[1:]:
            _planned(step)
        else:
            from mfulab.cli import standalone

            standalone.main(step, sys.argv[1:])
    except ConfigurationError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        sys.exit(REFUSED if "--config" in sys.argv[1:] else USAGE)


def _planned(step: str) -> None:
    from mfulab.runtime import run

    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help="config.json of the run; its row goes beside it")
    parser.add_argument("--failed", help="do not measure: write the row of a run that ended with this message")
    parser.add_argument("--after", type=float, metavar="SECONDS", help="with --failed: how long its process ran")
    arguments = parser.parse_args()
    if arguments.failed is None:
        row = run.measure(step, arguments.config)
    else:
        row = run.record_failure(step, arguments.config, arguments.failed, arguments.after)
    print(f"{row.status}: {row.run}" + (f": {row.message}" if row.message else ""))
