"""Computes numbers and statements of the seminar's material anew: `python scripts/seminar.py`."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["seminar", *sys.argv[1:]]))
