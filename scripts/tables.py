"""Joins rows into results/tables/*.csv."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tables", *sys.argv[1:]]))
