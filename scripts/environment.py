"""Describes the machine: `python scripts/environment.py`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("environment")
