"""Computes numbers and statements of the seminar's material anew: `python scripts/seminar.py`."""

from mfulab.tables.seminar import main

if __name__ == "__main__":
    main()
