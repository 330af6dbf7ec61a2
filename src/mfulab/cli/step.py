"""A planned run of a step, as the workflow starts it without importing click.

scripts/run.py profile_step --config results/…/config.json
"""

import sys
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.runtime.client import REFUSED


def main(step: str) -> None:
    """Measures the run of `--config FILE`; `--failed MESSAGE --after SECONDS` writes the row of one that ended so.

    Ends the process with `REFUSED`, after one message, where the run must not become a row.
    """
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    try:
        from mfulab.runtime import run as runs

        given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        config = Path(given["--config"])
        if failed := given.get("--failed"):
            row = runs.record_failure(step, config, failed, float(given.get("--after") or 0) or None)
        else:
            row = runs.measure(step, config)
    except ConfigurationError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    print(f"{row.status}: {row.run}" + (f": {row.message}" if row.message else ""))
