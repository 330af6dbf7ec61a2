"""Draws the figures of the tables into reports/figures/."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["figures", *sys.argv[1:]]))
