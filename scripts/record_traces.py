"""Keeps rows read from public traces in results/reference/public/traces.csv, with their source."""

import sys

from mfulab.tables.shipped_traces import main

if __name__ == "__main__":
    sys.exit(main())
