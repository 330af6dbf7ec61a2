"""One run of a step: a planned one by its config, or any by Hydra overrides.

mfulab run profile_step model=resnet18 batch_size=4            one run, and what its numbers are joined with
mfulab run bench_matmul -m experiment=kernels                  a sweep, without Snakemake
scripts/run.py profile_step --config results/…/config.json     what the workflow runs, without importing click
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.runtime.client import REFUSED, USAGE


def main(step: str) -> None:
    """Runs `step` as the arguments of this process say, and ends it with the run's status."""
    sys.exit(run(step, sys.argv[1:]))


def run(step: str, words: Sequence[str]) -> int:
    """Runs `step`; returns the exit status, after one message `USAGE` or, of a planned run, `REFUSED`.

    Args:
        step: a measurement's name.
        words: `--config FILE`, then `--failed MESSAGE --after SECONDS` to write the row of a run that ended so; or
            Hydra's overrides and flags.
    """
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    try:
        if "--config" in words:
            from mfulab.runtime import run as runs

            given = dict(zip(words[::2], words[1::2], strict=True))
            if failed := given.get("--failed"):
                after = float(given.get("--after") or 0) or None
                row = runs.record_failure(step, Path(given["--config"]), failed, after)
            else:
                row = runs.measure(step, Path(given["--config"]))
            print(f"{row.status}: {row.run}" + (f": {row.message}" if row.message else ""))
        else:
            from mfulab.cli import standalone

            standalone.main(step, words)
    except ConfigurationError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        return REFUSED if "--config" in words else USAGE
    return 0
