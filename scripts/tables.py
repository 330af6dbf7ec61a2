"""Joins rows into results/tables/*.csv."""

from mfulab.report.tables import main

if __name__ == "__main__":
    main()
