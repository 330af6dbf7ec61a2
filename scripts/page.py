"""Writes the page reports/report.html from the tables."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["page", *sys.argv[1:]]))
