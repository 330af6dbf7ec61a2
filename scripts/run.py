"""Runs one run of a measurement: `python scripts/run.py profile_step --config
results/…/config.json`."""

import sys

from mfulab.lab.runtime.run import main

if __name__ == "__main__":
    main(sys.argv.pop(1))
