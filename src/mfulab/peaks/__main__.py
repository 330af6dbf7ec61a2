"""Runs the command, as `python -m mfulab_peaks`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
