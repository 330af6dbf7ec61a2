"""Computes the seminar's printed numbers anew: `python scripts/examples.py --out results/tables/examples.csv`."""

from mfulab.report.examples import main

if __name__ == "__main__":
    main()
