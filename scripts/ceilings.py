"""Measures what the device can do at best: `python scripts/ceilings.py precision=bf16`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("ceilings")
