"""Merges results of other machines into this folder's: `python scripts/collect.py DIR…`."""

import sys

from mfulab.tables.merge import main

if __name__ == "__main__":
    sys.exit(main())
