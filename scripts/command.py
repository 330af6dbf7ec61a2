"""Runs a subcommand of `mfulab` for the workflow: `python scripts/command.py page --language
ko`."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
