"""Measures what the device can do at best: `python scripts/ceilings.py precision=bf16`."""

from mfulab.app import main

if __name__ == "__main__":
    main("ceilings")
