"""Spends what is left of a sweep's budget on further processes, where precision lacks."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["refine", *sys.argv[1:]]))
