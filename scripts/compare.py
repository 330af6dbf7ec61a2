"""Compares two sets of results run by run: `python scripts/compare.py OLD NEW`."""

import sys

from mfulab.tables.compare import main

if __name__ == "__main__":
    sys.exit(main())
