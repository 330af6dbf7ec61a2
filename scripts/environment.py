"""Describes the machine: `python scripts/environment.py`."""

from mfulab.app import main

if __name__ == "__main__":
    main("environment")
