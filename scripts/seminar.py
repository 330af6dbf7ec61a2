"""Computes every number that the seminar's material prints: `python scripts/seminar.py`."""

from mfulab.seminar.claims import main

if __name__ == "__main__":
    main()
