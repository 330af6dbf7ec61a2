"""Measures this checkout and another in turn and compares them: `python scripts/paired.py --base COMMIT`."""

import sys

from mfulab.cli.paired import main

if __name__ == "__main__":
    sys.exit(main())
