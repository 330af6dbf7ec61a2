"""Computes every number that the seminar's material prints: `python scripts/seminar.py`."""

from mfulab.flops.seminar import main

if __name__ == "__main__":
    main()
