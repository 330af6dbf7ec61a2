"""Prints what was measured, and where the page is."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["summary", *sys.argv[1:]]))
