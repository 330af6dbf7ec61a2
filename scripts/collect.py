"""Merges results of other machines into this folder's: `python scripts/collect.py DIR…`."""

import sys

from mfulab.collect import main

if __name__ == "__main__":
    sys.exit(main())
